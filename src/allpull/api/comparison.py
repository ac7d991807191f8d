"""Compare runs before and after a change, with statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allpull.api.explanation import kept_explanation
from allpull.api.results import Comparison
from allpull.api.runs import Place, Run, as_runs
from allpull.compare import comparison, gate, known_variation


def compare(
    before: Run | Place | Iterable[Run | Place],
    after: Run | Place | Iterable[Run | Place],
    *,
    metrics: Sequence[str] = (),
    fail_if: Sequence[str] = (),
    between_run: str | None = None,
    anyway: bool = False,
    skip_damaged: bool = False,
) -> Comparison:
    """Say what changed from the runs ``before`` to the runs ``after``, with intervals.

    Args:
        before: runs, run directories, or folders of them; three or more show how much such runs vary.
        after: the same.
        metrics: compare only these; the first one decides. Empty: all, and throughput decides.
        fail_if: gates such as ``throughput < -3%``; each becomes one of ``Comparison.gates``.
        between_run: how much such runs vary, for fewer than three per side: a standard deviation such as ``0.8%``, or
            the path of a stored answer.
        anyway: compare even runs that differ in what a fair comparison needs.
        skip_damaged: leave out lines of records that cannot be read.

    Raises:
        BadInput: a side is empty, a run stands on it twice, key facts do not agree, or a metric was not measured.
    """
    asked = comparison.Asked(
        metrics=[gate.find_metric(name).name for name in metrics],
        gates=[gate.parse_gate(text) for text in fail_if],
        figure=known_variation.parse_figure(between_run) if between_run is not None else None,
        anyway=anyway,
    )
    sides = [as_runs(side, skip_damaged=skip_damaged) for side in (before, after)]
    return Comparison.of(
        comparison.compare(
            comparison.Sides(
                before=[run.aligned for run in sides[0]],
                after=[run.aligned for run in sides[1]],
                explained={run.id: kept_explanation(run) for side in sides for run in side},
            ),
            asked,
        )
    )
