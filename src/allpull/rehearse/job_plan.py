"""Turn a job and a cluster into the keeper's order: shrunk rates, ranks and clocks by host, faults as timed changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from allpull.errors import BadInput
from allpull.launch.job import Job
from allpull.rehearse.cluster.faults import HostCutOff, KillRank, SlowLink, SlowUplink
from allpull.rehearse.cluster.model import Cluster
from allpull.rehearse.cluster.quantity import number
from allpull.rehearse.host.network import MASTER_PORT, MIN_BITS_PER_S, Change, Topology, Uplink
from allpull.rehearse.host.order import HostOrder, Order
from allpull.rundir import layout

STEPLESS = "allpull.probe"  # programs below it have no steps

_RATES = ("throttle", "throttle-uplink")


def make_order(job: Job, cluster: Cluster, *, cluster_id: str, state_file: Path) -> Order:
    """The order for the keeper to make ``cluster`` for ``job``, owned by this process.

    Raises:
        BadInput: a link becomes slower than can be shaped.
    """
    return Order(
        cluster=cluster_id,
        owner_pid=os.getpid(),
        state_file=str(state_file),
        truth_file=str(job.directory / layout.CLUSTER_TRUTH),
        directory=str(job.directory),
        job_file=str(job.file),
        module=job.module,
        port=job.spec.launch.port or MASTER_PORT,
        grace_s=job.spec.launch.grace_s,
        hosts=tuple(
            HostOrder(
                name=host.name,
                ranks=host.ranks,
                link_bits_per_s=_shrunk(cluster, host.link_bytes_per_s),
                clock_offset_s=host.clock_offset_s,
                clock_drift_ppm=host.clock_drift_ppm,
            )
            for host in cluster.hosts
        ),
        topology=topology(cluster),
        zero="start" if job.module.startswith(STEPLESS) else "first-step",
        changes=tuple(changes(cluster)),
    )


def topology(cluster: Cluster) -> Topology:
    """The links of ``cluster`` at the start, their rates divided by ``shrink``; latency is not divided.

    Raises:
        BadInput: a link becomes slower than can be shaped.
    """
    links = [_shrunk(cluster, host.link_bytes_per_s) for host in cluster.hosts]
    uplinks = [_shrunk(cluster, number(switch, "uplink") or 0.0) for switch in cluster.switches]
    for change in _every_change(cluster):
        if change.at_s == 0 and change.kind in _RATES:
            (links if change.kind == "throttle" else uplinks)[change.number] = change.bits_per_s
    return Topology(
        links_bits_per_s=tuple(links),
        uplinks=tuple(
            Uplink(hosts=tuple(switch.hosts), bits_per_s=bits)
            for switch, bits in zip(cluster.switches, uplinks, strict=True)
        ),
        latency_s=cluster.latency_s,
    )


def changes(cluster: Cluster) -> list[Change]:
    """What happens to links, hosts and ranks while the job runs; a rate that is low from the start is no change."""
    return [change for change in _every_change(cluster) if change.at_s > 0 or change.kind not in _RATES]


def _every_change(cluster: Cluster) -> Iterator[Change]:
    for fault in cluster.faults:
        if isinstance(fault, SlowLink):
            rate = number(fault, "rate") or fault.factor * cluster.hosts[fault.host].link_bytes_per_s
            yield Change(kind="throttle", at_s=fault.from_s, number=fault.host, bits_per_s=_shrunk(cluster, rate))
        elif isinstance(fault, SlowUplink):
            whole = number(cluster.switches[fault.switch], "uplink") or 0.0
            bits = _shrunk(cluster, number(fault, "rate") or fault.factor * whole)
            yield Change(kind="throttle-uplink", at_s=fault.from_s, number=fault.switch, bits_per_s=bits)
        elif isinstance(fault, HostCutOff):
            yield Change(kind="cut", at_s=fault.from_s, number=fault.host)
        elif isinstance(fault, KillRank):
            yield Change(kind="kill", at_s=fault.from_s, number=fault.rank)


def _shrunk(cluster: Cluster, bytes_per_s: float) -> int:
    bits_per_s = round(bytes_per_s * 8 / cluster.table.shrink)
    if bits_per_s < MIN_BITS_PER_S:
        raise BadInput(
            f"a link of {bytes_per_s:g} bytes/s divided by shrink = {cluster.table.shrink:g} is too slow to shape",
            hint=f"keep every link above {MIN_BITS_PER_S:,} bit/s after shrinking",
        )
    return bits_per_s
