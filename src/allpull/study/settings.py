"""The table `[study]` of a study file: how often and how long each point is measured, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from allpull.schema.option import option
from allpull.units import parse_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """``[study]``: how often and how long each point is measured, and within which limits."""

    name: str = option("", "name of the study, and of its directory below studies/")
    title: str = option("", "what it is about, in a line")
    scaling: Literal["", "weak", "strong"] = option("", "weak: same batch per rank; strong: global_batch on all ranks")
    global_batch: int = option(0, "with scaling = strong: samples per step on all ranks together", ge=0)
    repeats: int = option(1, "runs of each point; with half_width: at most", ge=1, le=1000)
    seed: int = option(0, "seed of the order of runs", ge=0, lt=2**32)
    launcher: str = option("auto", "where ranks run, as --launcher")
    timeout: str = option("", "longest time of one run, such as '30 min'; empty: no limit")
    limit: str = option("", "longest time of all runs together, such as '4 h'; empty: no limit")
    limit_rank_hours: float = option(0.0, "ranks × hours that all runs together may use; 0: no limit", ge=0)
    warmup_steps: int = option(5, "first steps of a run that rates leave out", ge=0)
    steps: int = option(0, "steps of a run; 0: as the recipe or the command has it", ge=0)
    notes: tuple[str, ...] = option((), "what a reader of the plan and of the results has to know")
    half_width: float = option(
        0.0,
        "repeat a point until the 95 % interval of its throughput is ± this share; 0: repeat it `repeats` times",
        ge=0,
        lt=1,
    )

    run_half_width: float = option(
        0.0,
        "end a run once the 95 % interval of its throughput is ± this share, after `steps` at the latest; 0: never",
        ge=0,
        lt=1,
    )

    @property
    def timeout_s(self) -> float | None:
        """Longest time of one run, in s."""
        return parse_time_s(self.timeout) if self.timeout else None

    @property
    def limit_s(self) -> float | None:
        """Longest time of all runs together, in s."""
        return parse_time_s(self.limit) if self.limit else None
