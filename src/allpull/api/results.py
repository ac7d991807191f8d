"""The results of the API: the records of ``--json``, with a ``repr`` of a few lines and a figure in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from pydantic import PrivateAttr

from allpull.api.side_by_side import side_by_side
from allpull.report.epoch_layout import whole_epochs
from allpull.report.printable import short
from allpull.report.terminal import explain as explained
from allpull.report.terminal.table import compact_phases
from allpull.report.wording import ABSENT, NAME_CHARACTERS, labels, percent, spread, times
from allpull.schema.base import Record, tag
from allpull.schema.explained import ExplainResult
from allpull.schema.reported import ProgramTable, ScalingReport
from allpull.schema.results import RunMetrics, ShowResult
from allpull.units import counted, show_time

MOST_LINES = 5  # findings or runs in a repr


Kind = TypeVar("Kind", bound="Shown")


class Shown(Record):
    """A record that shows itself: as ``_lines`` in a console, and as sections of the report in a notebook."""

    _sections: tuple[str, ...] = PrivateAttr(default=())
    _report: Callable[[], ScalingReport] | None = PrivateAttr(default=None)
    """Makes what is drawn, which may take reading runs; called at most once."""
    _drawn: ScalingReport | None = PrivateAttr(default=None)

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        from allpull.report.html.fragment import fragment  # noqa: PLC0415  charts take long to import
        from allpull.report.sections import SECTIONS  # noqa: PLC0415  as above

        self._draw()
        blocks = [SECTIONS.load(name)(self._drawn) for name in self._sections] if self._drawn else []
        return fragment([block for block in blocks if block is not None], title="\n".join(self._lines()))

    def __getstate__(self) -> dict[Any, Any]:
        self._draw()  # a function that holds whole runs is not sent along, what it makes is
        return super().__getstate__()

    def _draw(self) -> None:
        if self._report is not None:
            self._drawn, self._report = self._report(), None


def _shown(kind: type[Kind], record: Record, sections: tuple[str, ...], **more: Any) -> Kind:
    """``record`` with the fields ``more``, as one that shows itself by ``sections`` of the report."""
    fields = {name: getattr(record, name) for name in type(record).model_fields} | more
    made = cast("Kind", kind.model_construct(**fields))  # pydantic's plugin for mypy forgets which class it is
    made._sections = sections
    return made


class Metrics(Shown, RunMetrics):
    """The metrics of one run: the fields of ``allpull show --json``. None: not measured."""

    @classmethod
    def of(cls, metrics: RunMetrics) -> Metrics:
        """``metrics`` as they show themselves."""
        show = ShowResult(schema=tag("show"), runs=[metrics], reference=None, scaling=None, notes=[])
        made = _shown(cls, metrics, ("phases",))
        made._drawn = ScalingReport(schema=tag("report"), show=show, words=[], details=[])
        return made

    def _lines(self) -> Iterator[str]:
        step = show_time(self.step_s.median) if self.step_s else ABSENT
        where = f"{counted(self.ranks, 'rank')} on {counted(self.hosts, 'host')}"
        yield f"{short(self.name, NAME_CHARACTERS)}, {where}: {spread(self.throughput)} samples/s, median step {step}"
        yield f"phases of a mean step: {compact_phases(self) or 'not measured'}"
        if (overall := whole_epochs(self)) is not None:
            yield overall
        if self.accuracy is not None:
            yield f"test top-1: {percent(self.accuracy)}"
        if self.gaps:
            yield f"{counted(len(self.gaps), 'gap')} in the records: see .gaps"


class Scaling(Shown, ShowResult):
    """Several runs side by side: the fields of ``allpull show --json``.

    Of each program the run with the fewest ranks is the reference; ``words`` says what the numbers mean, a sentence
    each.
    """

    words: list[str]

    @classmethod
    def of(cls, report: ScalingReport) -> Scaling:
        """The scaling tables of ``report`` as they show themselves."""
        tables: list[ProgramTable] = [report, *report.others]
        words = [f"{one.program}: {line}" if one.program else line for one in tables for line in one.words]
        made = _shown(cls, side_by_side(report), ("throughput", "phases", "programs"), words=words)
        made._drawn = report
        return made

    def _lines(self) -> Iterator[str]:
        for label, run in zip(labels(self.runs)[:MOST_LINES], self.runs, strict=False):
            yield (
                f"{label}: {spread(run.throughput)} samples/s, speed-up {times(run.speedup)}, "
                f"efficiency {percent(run.efficiency)}"
            )
        if len(self.runs) > MOST_LINES:
            yield f"and {counted(len(self.runs) - MOST_LINES, 'more run')}"


class Explanation(Shown, ExplainResult):
    """The efficiency tree and the findings of one run: the fields of ``allpull explain --json``."""

    @classmethod
    def of(cls, result: ExplainResult, report: Callable[[], ScalingReport]) -> Explanation:
        """``result`` as it shows itself; ``report`` has it, and the run and its reference where there is one."""
        made = _shown(cls, result, ("losses", "findings"))
        made._report = report
        return made

    def _lines(self) -> Iterator[str]:
        yield explained.headline(self)
        if self.efficiency is not None:
            line = f"parallel efficiency {percent(self.efficiency.parallel.value)}"
            whole = self.efficiency.global_
            yield line + (f", global efficiency {percent(whole.value)}" if whole else "")
        for finding in self.findings[:MOST_LINES]:
            gain = "advice" if finding.gain is None else f"gain {times(finding.gain.value)}"
            yield f"{finding.title} [{finding.rule}, {gain}]"
        if not self.findings:
            yield self.healthy or "no finding; .notes says what could not be decided"
