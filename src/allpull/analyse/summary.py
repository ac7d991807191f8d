"""Several runs side by side: the scaling table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.analyse.scaling import table
from allpull.rundir.read.run import RunData
from allpull.schema.results import ShowResult

COMPARABLE = ("model", "data")
"""Parts of a specification that decide how much work a sample is."""


def in_order(runs: Sequence[AlignedRun]) -> list[AlignedRun]:
    """``runs`` by ranks, then by the time they were created, then by id: the order of the scaling table."""
    return sorted(runs, key=_place)


def scaling_table(runs: Sequence[AlignedRun]) -> ShowResult:
    """Metrics of all ``runs``, ``in_order``, each against the one with fewest ranks; notes say what is not fair."""
    ordered = in_order(runs)
    return table([metrics(run) for run in ordered], [facts(run.data) for run in ordered])


def facts(run: RunData) -> dict[str, str]:
    """What must be equal between runs whose throughputs are compared, by name.

    It is the model and data (keys of the specification), the arithmetic among them; threads of a rank; torch; and
    the kinds of hosts. A fact that the run does not state is left out.
    """
    spec = run.record.spec
    found: dict[str, str] = {}
    for part in COMPARABLE:
        found |= _flat(spec.get(part), part)
    if run.record.threads_per_rank is not None:
        found["threads_per_rank"] = str(run.record.threads_per_rank)
    torch = run.record.versions.get("torch")
    if torch is not None:
        found["torch"] = torch
    if run.hosts:
        found["kinds of hosts"] = ", ".join(sorted({host.fingerprint for host in run.hosts}))
    return found


def _place(run: AlignedRun) -> tuple[int, str, str]:
    record = run.data.record
    return record.ranks, record.created_utc, record.id


def _flat(value: Any, path: str) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return {} if value is None else {path: str(value)}
    return {key: text for name, part in value.items() for key, text in _flat(part, f"{path}.{name}").items()}
