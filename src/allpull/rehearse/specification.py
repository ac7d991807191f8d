"""The specification of a rehearsal of the virtual accelerator, its record, and the options of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from allpull.launch.job import Job
from allpull.rehearse.cluster.model import Cluster, to_plain
from allpull.rehearse.cluster.quantity import number
from allpull.rundir.run_record import write_record
from allpull.schema.spec import LaunchSpec, RunSpec
from allpull.schema.trainspec import TrainSpec

_RECORDED = ("name", "launch", "observe", "rehearsal")  # the other parts belong to trainings that compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What is rehearsed. Planted faults enter only by ``sha256``, the file's hash, so that no analysis can see them.

    ``accelerator`` is that of ``cluster.to_plain``; ``network`` has the rates of the file, before they are divided by
    ``shrink``, and is None if nothing is shaped.
    """

    sha256: str
    steps: int
    shrink: float
    accelerator: dict[str, Any]
    network: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalSpec(RunSpec):
    """The specification of a rehearsal; ``train`` has only the batch and the number of epochs."""

    rehearsal: Rehearsal


def specification(cluster: Cluster, *, steps: int, source: str, shaped: bool) -> RehearsalSpec:
    """The specification of ``steps`` steps on ``cluster``, which has an accelerator and was read from ``source``.

    ``shaped``: on virtual hosts; else all ranks run directly on this machine.
    """
    accelerator = cluster.accelerator
    assert accelerator is not None
    return RehearsalSpec(
        name=cluster.table.name or "rehearsal",
        train=TrainSpec(epochs=-(-steps // (accelerator.epoch_steps or steps)), batch=accelerator.batch),
        launch=LaunchSpec(
            ranks=cluster.ranks,
            hosts=cluster.table.hosts if shaped else 1,
            launcher=f"rehearse:{source}" if shaped else "local",
        ),
        rehearsal=Rehearsal(
            sha256=cluster.sha256,
            steps=steps,
            shrink=float(cluster.table.shrink),
            accelerator=to_plain(cluster)["accelerator"],
            network=_network(cluster) if shaped else None,
        ),
    )


def options(cluster: Cluster, steps: int) -> Mapping[str, Any]:
    """The options of a job whose ranks are virtual accelerators (``ranks.__main__``)."""
    return {"cluster": to_plain(cluster), "steps": steps}


def recorded(job: Job) -> Job:
    """``job``, prepared, with a record of the rehearsal's options only: none of a real training, and no seed.

    Raises:
        OSError: it cannot be written.
    """
    spec = {name: value for name, value in job.record.spec.items() if name in _RECORDED}
    job = replace(job, record=job.record.model_copy(update={"spec": spec, "seed": None}))
    write_record(job.directory, job.record)
    return job


def _network(cluster: Cluster) -> dict[str, Any]:
    return {
        "hosts": cluster.table.hosts,
        "ranks_per_host": cluster.table.ranks_per_host,
        "links_bytes_per_s": [host.link_bytes_per_s for host in cluster.hosts],
        "latency_s": cluster.latency_s,
        "switches": [
            {"hosts": list(switch.hosts), "uplink_bytes_per_s": number(switch, "uplink")} for switch in cluster.switches
        ],
    }
