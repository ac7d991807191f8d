"""Explain a run, and keep the answer in its directory."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.analyse.aligned import AlignedRun
from allpull.api.reporting import scaling_report
from allpull.api.results import Explanation
from allpull.explain import explanation
from allpull.rundir.derived import cache_explanation, cached_explanation
from allpull.schema.base import tag
from allpull.schema.explained import ExplainDetail, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import ShowResult


def explain_run(run: AlignedRun, references: Sequence[AlignedRun] = ()) -> Explanation:
    """``run`` explained against ``references``; the answer is kept in its directory."""
    result = explanation.explain(run, references).result
    cache_explanation(run.data.directory, run.data.record, result)
    return Explanation.of(result, lambda: _report(result, run, references))


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
