"""Compare the runs before a change with the runs after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from allpull.api.explanation import kept_explanation
from allpull.api.places import Place
from allpull.api.reporting import unscaled_report
from allpull.api.results import Shown
from allpull.api.runs import Run, opened, unopened
from allpull.compare import comparison, gate, known_variation
from allpull.compare.measured_run import MeasuredRun, measured_run
from allpull.errors import BadInput
from allpull.report.terminal.compare import headline
from allpull.schema.compared import CompareResult
from allpull.schema.reported import ScalingReport
from allpull.units import counted


class Comparison(Shown, CompareResult):
    """Two sides of runs compared: the fields of ``allpull compare --json``."""

    _runs: Callable[[], ScalingReport] | None = PrivateAttr(default=None)
    """Makes what charts need of all runs, those before first."""

    @classmethod
    def of(cls, result: CompareResult, runs: Callable[[], ScalingReport] | None = None) -> Comparison:
        """``result`` as it shows itself; ``runs`` makes what its page draws of the runs, those before first."""
        made = cls.model_construct(**{name: getattr(result, name) for name in CompareResult.model_fields})
        made._runs = runs
        return made

    def __getstate__(self) -> dict[Any, Any]:
        self._runs = None  # whole runs are not sent along
        return super().__getstate__()

    def report(self, path: Place) -> Path:
        """Write one self-contained HTML page of the comparison to ``path``; returns its path.

        Runs that were given as places are read again for its charts.

        Raises:
            RunDirError: one of them cannot be read any more.
            BadInput: ``path`` cannot be written, or the comparison was not made in this process.
        """
        from allpull.report.compared_page import write  # noqa: PLC0415  charts take long to import

        if self._runs is None:
            raise BadInput("the runs of this comparison are not at hand", hint="compare them again")
        return write(self, self._runs(), Path(path)).resolve()

    def _lines(self) -> Iterator[str]:
        yield headline(self).plain
        yield f"{counted(len(self.before), 'run')} before, {counted(len(self.after), 'run')} after"
        for checked in self.gates:
            yield f"gate {checked.outcome}: {checked.gate}"

    def _repr_html_(self) -> str:
        from allpull.report.html.compare import block  # noqa: PLC0415  charts take long to import
        from allpull.report.html.fragment import fragment  # noqa: PLC0415

        return fragment([block(self)])


def compare(
    before: Run | Place | Iterable[Run | Place],
    after: Run | Place | Iterable[Run | Place],
    *,
    metrics: str | Sequence[str] = (),
    fail_if: str | Sequence[str] = (),
    between_run: str | Path | float | None = None,
    anyway: bool = False,
    skip_damaged: bool = False,
    accuracy: float | None = None,
) -> Comparison:
    """Compare the runs ``before`` a change with the runs ``after`` it, with intervals.

    Args:
        before: runs, run directories, or folders of them; three or more show the run-to-run variation.
        after: the same.
        metrics: compare only this one or these; the first one decides. Empty: all, and throughput decides.
        fail_if: one or several gates such as ``throughput < -3%``; each becomes one of ``Comparison.gates``.
        between_run: run-to-run variation, for fewer than three runs per side: a standard deviation such as ``0.8%`` or
            0.008, or the path of a file with the output of ``allpull compare --json``.
        anyway: compare the runs even if they differ in facts that must agree.
        skip_damaged: skip lines of records that cannot be read.
        accuracy: the test accuracy, a fraction, whose time is compared; None: that at which each training was to stop.

    Raises:
        RunDirError: one of the runs cannot be read.
        UnknownName: there is no such metric.
        BadInput: a side is empty, a run is given twice on one side, key facts do not agree, a metric was not measured,
            or ``fail_if`` or ``between_run`` cannot be parsed.
    """
    options = comparison.Options(
        metrics=[gate.find_metric(name).name for name in _each(metrics)],
        gates=[gate.parse_gate(text) for text in _each(fail_if)],
        known_variation=known_variation.parse_known_variation(between_run) if between_run is not None else None,
        anyway=anyway,
    )
    sides = [unopened(side) for side in (before, after)]

    def measured(run: Run) -> MeasuredRun:
        return measured_run(run.aligned, kept_explanation(run.aligned), accuracy)

    # A loop variable would keep each run until the next one is read: of large runs, twice the memory.
    measured_sides = [list(map(measured, opened(side, skip_damaged=skip_damaged))) for side in sides]
    result = comparison.compare(comparison.Sides(before=measured_sides[0], after=measured_sides[1]), options)
    every = [*sides[0], *sides[1]]
    return Comparison.of(
        result, lambda: unscaled_report(map(attrgetter("aligned"), opened(every, skip_damaged=skip_damaged)))
    )


def _each(texts: str | Sequence[str]) -> Sequence[str]:
    """One text, or each of several."""
    return [texts] if isinstance(texts, str) else texts
