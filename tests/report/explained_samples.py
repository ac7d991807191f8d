"""A made-up explanation: eight ranks, one late inside backward, a thin network, evaluation on rank 0."""

from __future__ import annotations

import math
import random
from typing import Any

from report_samples import three

from allpull.schema.base import tag
from allpull.schema.explained import ExplainDetail
from allpull.schema.reported import ScalingReport

RANKS, STEPS = 8, 60
FACTORS = {
    "transfer": 0.91,
    "input": 0.995,
    "sequential": 0.88,
    "orchestration": 0.99,
    "serialisation": 0.97,
    "load_balance": 0.93,
}


def interval(value: float, share: float = 0.01) -> dict[str, float]:
    """A value with bounds on both sides of it."""
    return {"value": value, "low": value * (1 - share), "high": min(1.0, value * (1 + share))}


def efficiency(**changes: float) -> dict[str, Any]:
    """A tree whose product is exact; ``changes`` are of its factors."""
    values = {**FACTORS, **changes}
    factors = {name: interval(value) for name, value in values.items()}
    return {"parallel": interval(math.prod(values.values())), **factors, "computational": None, "global": None}


def finding(rule: str, title: str, loss_s: float, **changes: Any) -> dict[str, Any]:
    """One finding."""
    return {
        "rule": rule,
        "title": title,
        "ranks": [3],
        "hosts": ["node2"],
        "loss_s_per_step": loss_s,
        "loss_share": loss_s / 0.24,
        "gain": {"value": 1.1, "low": 1.08, "high": 1.12},
        "remedy": "Let all ranks evaluate their share: allpull train … --set evaluate.mode=parallel",
        "evidence": [
            {"what": "waiting that rank 3 caused", "value": 0.031, "unit": "s", "source": "steps 5 to 60 of all ranks"},
            {"what": "steps in which it was last", "value": 0.93, "unit": "share", "source": "arrivals of all ranks"},
        ],
        "wrong_when": "the rank shares its CPUs with something else that has ended since.",
        "advice": False,
        **changes,
    }


def explained(**changes: Any) -> ExplainDetail:
    """The whole of it."""
    draws = random.Random(1)
    late = [[draws.gauss(0, 5e-4) + (0.03 if rank == 3 else 0) for rank in range(RANKS)] for _ in range(STEPS)]
    result = {
        "schema": tag("explain"),
        "run": "20260312T101500_digits_n8_ab12",
        "reference": None,
        "ranks": RANKS,
        "hosts": 4,
        "window": {"steps": STEPS, "seconds": 14.4, "first_step": 5, "last_step": 64, "level": "bucket"},
        "efficiency": efficiency(),
        "gains": {name: 1 / value for name, value in FACTORS.items()},
        "simulation_error": 0.004,
        "clock_error_s": 3e-5,
        "phases": {"mean": {"forward": 0.06}, "per_rank": {"forward": [0.06] * RANKS}},
        "findings": [
            finding("sequential-evaluation", "Rank 0 evaluates alone while 7 ranks wait", 0.028),
            finding("slow-rank", "Rank 3 is 31 ms late in backward, each step", 0.016),
            finding(
                "mixed-precision",
                "Mixed precision may shorten the step",
                0.0,
                advice=True,
                gain=None,
                loss_s_per_step=None,
                loss_share=None,
                ranks=[],
                hosts=[],
            ),
        ],
        "healthy": None,
        "notes": ["clocks of hosts are aligned to within 30 µs"],
    }
    return ExplainDetail.model_validate(
        {
            "result": {**result, **changes},
            "lateness": {"steps": list(range(5, 5 + STEPS)), "ranks": list(range(RANKS)), "late_s": late},
            "caused_s_per_step": [
                [0.004 if row == 3 != column else 0.0 for column in range(RANKS)] for row in range(RANKS)
            ],
            "timeline": list(_timeline()),
        }
    )


def against_one_rank(*, speedup: float | None = 1.18, computational: float = 0.5, **factors: float) -> ScalingReport:
    """The largest of three runs explained against the smallest; ``speedup`` is what its metrics say."""
    tree = efficiency(**factors)
    values = {"computational": computational, "global": tree["parallel"]["value"] * computational}
    scale = {name: {"value": value, "low": None, "high": None} for name, value in values.items()}
    made = three()
    last = made.show.runs[-1].model_copy(update={"speedup": speedup, "efficiency": speedup and speedup / 4})
    show = made.show.model_copy(update={"runs": [*made.show.runs[:-1], last]})
    detail = explained(run=last.run, reference=show.reference, ranks=4, efficiency={**tree, **scale})
    return made.model_copy(update={"show": show, "explained": [detail]})


def _timeline() -> Any:
    for step in (20, 21):
        for rank in range(RANKS):
            at, late = 0.24 * (step - 20), 0.03 * (rank == 3)
            for part, length in (
                ("forward", 0.06),
                ("backward", 0.12 + late),
                ("wait", 0.03 - late),
                ("transfer", 0.02),
                ("optimizer", 0.005),
            ):
                if length:
                    yield {"rank": rank, "step": step, "part": part, "begin_s": at, "end_s": at + length}
                at += length
        for bucket in range(3):
            begin = 0.24 * (step - 20) + 0.12 + 0.03 * bucket
            yield {"rank": None, "step": step, "part": "bucket", "begin_s": begin, "end_s": begin + 0.02}
