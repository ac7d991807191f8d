"""Explain a run, and keep the answer in its directory."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import program, titles
from allpull.api.reporting import scaling_report
from allpull.api.results import Explanation
from allpull.errors import BadInput
from allpull.explain import explanation
from allpull.rundir.derived import cache_explanation, cached_explanation
from allpull.schema.base import tag
from allpull.schema.explained import ExplainDetail, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import ShowResult


def explain_run(run: AlignedRun, references: Sequence[AlignedRun] = ()) -> Explanation:
    """``run`` explained against ``references``; the answer is kept in its directory.

    Raises:
        BadInput: a reference is of another program, of which a sample is other work.
    """
    edited = _edited(run, references)
    result = explanation.explain(run, references).result
    if edited:
        result = result.model_copy(update={"notes": [*edited, *result.notes]})
    cache_explanation(run.data.directory, run.data.record, result)
    return Explanation.of(result, lambda: _report(result, run, references))


def _edited(run: AlignedRun, references: Sequence[AlignedRun]) -> list[str]:
    """A note on each of ``references`` whose script was edited since.

    Raises:
        BadInput: one is of another program.
    """
    own, notes = program(run.data.record), []
    for reference in references:
        record = reference.data.record
        other = program(record)
        if own.is_edited(other):
            notes.append(f"The script is not the same as in reference {record.id}: what a sample costs may differ")
        elif not own.is_same(other):
            named = " and ".join(titles([own, other]))
            raise BadInput(
                f"reference {record.id} is of another program: {named}",
                hint="give a run of the same program, model and data on another number of ranks",
            )
    return notes


def kept_explanation(run: AlignedRun) -> ExplainResult:
    """The explanation of ``run`` alone that is kept in its directory, if it is of these records; else a new one."""
    return cached_explanation(run.data.directory, run.data.record) or explanation.explain(run).result


def _report(result: ExplainResult, run: AlignedRun, references: Sequence[AlignedRun]) -> ScalingReport:
    """What sections draw of ``result``: with the speed-up where it has a reference."""
    detail = ExplainDetail(result=result, lateness=None, caused_s_per_step=None, timeline=[])
    reference = next((one for one in references if one.data.record.id == result.reference), None)
    if reference is not None:
        return scaling_report([reference, run]).model_copy(update={"explained": [detail]})
    show = ShowResult(schema=tag("show"), runs=[], reference=None, scaling=None, notes=[])
    return ScalingReport(schema=tag("report"), show=show, words=[], details=[], explained=[detail])
