"""Explain a run, on its own or against runs of the same training on other numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allpull.api.results import Explanation
from allpull.api.runs import Place, Run, as_runs, in_order
from allpull.api.scaling import scaling_report
from allpull.errors import BadInput
from allpull.explain import explanation
from allpull.rundir.derived import cache_explanation, cached_explanation
from allpull.schema.base import tag
from allpull.schema.explained import ExplainDetail, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import ShowResult


def explain(
    runs: Run | Place | Iterable[Run | Place], reference: Run | Place | Iterable[Run | Place] | None = None
) -> Explanation:
    """Explain the run with the most ranks: its efficiency tree, its findings, and what each remedy gains.

    The answer is kept in the run directory, as ``allpull explain`` keeps it.

    Args:
        runs: runs, run directories, or folders of them; the others are references.
        reference: more runs of the same training on other numbers of ranks; efficiency is measured against the one
            with the fewest ranks.

    Raises:
        RunDirError: one of them cannot be read.
        BadInput: no run was given.
    """
    given = as_runs(runs)
    if not given:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    run = in_order(given)[-1]
    references = [one for one in given if one is not run] + ([] if reference is None else as_runs(reference))
    return explain_run(run, references)


def explain_run(run: Run, references: Sequence[Run] = ()) -> Explanation:
    """``run`` explained against ``references``; the answer is kept in its directory."""
    result = explanation.explain(run.aligned, [one.aligned for one in references]).result
    cache_explanation(run.data.directory, run.data.record, result)
    return Explanation.of(result, lambda: _report(result, run, references))


def kept_explanation(run: Run) -> ExplainResult:
    """What ``explain`` kept of ``run`` alone, if its records are still the same; else its explanation now."""
    kept = cached_explanation(run.data.directory, run.data.record)
    return kept or explanation.explain(run.aligned).result


def _report(result: ExplainResult, run: Run, references: Sequence[Run]) -> ScalingReport:
    """What sections draw of ``result``: with the speed-up where it has a reference."""
    detail = ExplainDetail(result=result, lateness=None, caused_s_per_step=None, timeline=[])
    reference = next((one for one in references if one.id == result.reference), None)
    if reference is not None:
        return scaling_report([reference, run]).model_copy(update={"explained": [detail]})
    show = ShowResult(schema=tag("show"), runs=[], reference=None, scaling=None, notes=[])
    return ScalingReport(schema=tag("report"), show=show, words=[], details=[], explained=[detail])
