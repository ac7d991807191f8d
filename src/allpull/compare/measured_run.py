"""What a comparison takes of one run: little, so that many large runs are never in memory together."""

from __future__ import annotations

from dataclasses import dataclass

from allpull.analyse.aligned import AlignedRun
from allpull.compare.comparability import Facts, facts
from allpull.compare.metrics import Measures, measures
from allpull.schema.explained import ExplainResult
from allpull.schema.gap import Gap
from allpull.schema.run import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run without its step records; ``directory``: as results name it; ``explained`` is None if it is not known."""

    record: RunRecord
    directory: str
    gaps: tuple[Gap, ...]
    facts: Facts
    measures: Measures
    explained: ExplainResult | None


def measured_run(
    aligned: AlignedRun, explained: ExplainResult | None = None, accuracy: float | None = None
) -> MeasuredRun:
    """What a comparison takes of ``aligned``; ``explained`` and ``accuracy`` as of ``metrics.measures``."""
    run = aligned.data
    return MeasuredRun(
        record=run.record,
        directory=run.shown_directory,
        gaps=run.gaps,
        facts=facts(run),
        measures=measures(aligned, explained, accuracy),
        explained=explained,
    )
