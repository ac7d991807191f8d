"""JSON Schema of every record, for readers that are not Python."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from allpull.schema import (
    audited,
    compared,
    counters,
    events,
    explained,
    exported,
    forecast,
    host,
    labs,
    operators,
    predicted,
    probed,
    probes,
    reported,
    results,
    run,
    steps,
    studied,
    tuned,
)
from allpull.schema.base import VERSION

DOCUMENTED: dict[str, Any] = {
    "run": run.RunRecord,
    "host": host.HostRecord,
    "steps-header": steps.StepsHeader,
    "steps": steps.StepRecord,
    "events-header": events.EventsHeader,
    "events": events.Event,
    "counters-header": counters.CountersHeader,
    "counters": counters.CounterSample,
    "show": results.ShowResult,
    "kernels": operators.KernelResult,
    "runs": results.ListResult,
    "explain": explained.ExplainResult,
    "export": exported.ExportResult,
    "compare": compared.CompareResult,
    "placements": compared.PlacementResult,
    "audit": audited.AuditResult,
    "study-plan": studied.StudyPlan,
    "study": studied.StudyResult,
    "tune": tuned.TuneResult,
    "lab-sgd": labs.SgdResult,
    "lab-ring": labs.RingResult,
    "lab-batch": labs.BatchResult,
    "predict": predicted.PredictResult,
    "forecast": forecast.ForecastResult,
    "report": reported.ScalingReport,
    "probes-loader": probes.LoaderAnswer,
    "probes-storage": probes.StorageAnswer,
    "probes-compute": probes.ComputeAnswer,
    "loader": probed.LoaderResult,
    "storage": probed.StorageResult,
    "compute": probed.ComputeResult,
    "doctor": probed.DoctorResult,
}
"""File stem → type. Add a record here and `make reference` writes its schema."""


def json_schema(stem: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the record called ``stem`` in ``DOCUMENTED``."""
    schema = TypeAdapter(DOCUMENTED[stem]).json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"allpull {stem} {VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
    }
