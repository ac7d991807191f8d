"""Records for the contents of a cluster file: hosts, links and switches, the accelerator, and planted faults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from allpull.rehearse.cluster.faults import MAX_OFFSET_S, MAX_PPM, AcceleratorFault, ClockOffset, Fault, plain
from allpull.rehearse.cluster.quantity import needed, number, rate_option, time_option
from allpull.schema.option import option

MAX_HOSTS = 64
MAX_RANKS_PER_HOST = 64
MAX_LATENCY_S = 1.0  # beyond it connections time out before they are established


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTable:
    """``[cluster]``: what all hosts have in common."""

    name: str = option("rehearsal", "name of the cluster")
    hosts: int = needed("number of hosts", ge=1, le=MAX_HOSTS)
    ranks_per_host: int = option(1, "ranks of each host", ge=1, le=MAX_RANKS_PER_HOST)
    link: str = rate_option("rate of a host's link, each way")
    latency: str = time_option("latency added between hosts, one way", "0 s", le=MAX_LATENCY_S)
    shrink: float = option(1.0, "bytes and rates are divided by this, times are not", ge=1, le=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTable:
    """``[[switch]]``: hosts that share one uplink to all the others."""

    hosts: tuple[int, ...] = needed("its hosts, counted from 0")
    uplink: str = rate_option("rate of the uplink, each way")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTable:
    """``[[host]]``: how one host differs from the others."""

    index: int = needed("which host, counted from 0", ge=0, le=MAX_HOSTS - 1)
    name: str = option("", "host name; empty: node1, node2 …")
    link: str = rate_option("rate of its link, each way; omitted: as the others'", "")
    clock_offset: str = time_option(
        "how far its wall clock is ahead; negative: behind", "0 s", signed=True, le=MAX_OFFSET_S
    )
    clock_drift_ppm: float = option(0.0, "microseconds that its wall clock gains every second", ge=-MAX_PPM, le=MAX_PPM)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorTable:
    """``[accelerator]``: the network that the virtual accelerator trains, and how long each part takes.

    Times come from ``layers``, else from ``forward_ms`` and ``backward_ms``, else from ``device``.
    """

    model: str = option("resnet50", "network whose layers are trained")
    batch: int = option(64, "samples per rank and step", ge=1, le=1_000_000)
    device: str = option("", "device whose speed is taken")
    forward_ms: float = option(0.0, "forward pass of one step", gt=0, le=10_000_000)
    backward_ms: float = option(0.0, "backward pass of one step; omitted: twice the forward pass", gt=0, le=10_000_000)
    layers: str = option("", "JSON file: for each layer in order its forward_ms and backward_ms")
    input_ms: float = option(0.0, "waiting for the loader, each step", ge=0, le=10_000_000)
    optimizer_ms: float = option(0.0, "optimizer, each step; 0: as the device takes", ge=0, le=10_000_000)
    passes: int = option(1, "forward and backward of a step, each of which reduces its gradients", ge=1, le=1000)
    bucket_mib: float = option(0.0, "size of DDP's buckets, before shrinking; 0: DDP's own", ge=0, le=100_000)
    epoch_steps: int = option(0, "steps of an epoch; 0: all of them", ge=0)
    evaluation_ms: float = option(0.0, "evaluation by all ranks together", ge=0, le=10_000_000)
    evaluate_every: int = option(0, "epochs from one evaluation to the next; 0: never", ge=0)
    checkpoint_ms: float = option(0.0, "checkpoint after each epoch", ge=0, le=10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of one layer from a measured profile."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host as configured. ``clock_offset_s`` and ``clock_drift_ppm`` apply only to its wall clock."""

    index: int
    name: str
    ranks: tuple[int, ...]
    link_bytes_per_s: float
    clock_offset_s: float
    clock_drift_ppm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A whole cluster file, checked; ``sha256`` is the hash of its text.

    Rates are those in the file, before shrinking.
    """

    table: ClusterTable
    switches: tuple[SwitchTable, ...] = ()
    host_tables: tuple[HostTable, ...] = ()
    accelerator: AcceleratorTable | None = None
    layers: tuple[LayerTimes, ...] | None = None
    faults: tuple[Fault, ...] = field(default=())
    sha256: str = ""

    @property
    def ranks(self) -> int:
        """The number of ranks on all hosts."""
        return self.table.hosts * self.table.ranks_per_host

    @property
    def latency_s(self) -> float:
        """The one-way latency added from one host to another."""
        return number(self.table, "latency") or 0.0

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host; rank r runs on host r // ranks_per_host, as torchrun places them."""
        return tuple(self._host(index) for index in range(self.table.hosts))

    def _host(self, index: int) -> Host:
        per_host = self.table.ranks_per_host
        own = next((table for table in self.host_tables if table.index == index), HostTable(index=index))
        planted = [fault for fault in self.faults if isinstance(fault, ClockOffset) and fault.host == index]
        link = number(own, "link") or number(self.table, "link")
        assert link is not None  # the file must give it
        return Host(
            index=index,
            name=own.name or f"node{index + 1}",
            ranks=tuple(range(index * per_host, (index + 1) * per_host)),
            link_bytes_per_s=link,
            clock_offset_s=sum(number(fault, "offset") or 0.0 for fault in planted)
            + (number(own, "clock_offset") or 0.0),
            clock_drift_ppm=sum(fault.drift_ppm for fault in planted) + own.clock_drift_ppm,
        )


def to_plain(cluster: Cluster) -> dict[str, Any]:
    """The plan given to the ranks of the virtual accelerator: sizes, times in s, and only their own faults."""
    table = cluster.table
    return {
        "hosts": table.hosts,
        "ranks_per_host": table.ranks_per_host,
        "shrink": float(table.shrink),
        "accelerator": _accelerator(cluster),
        "faults": [plain(fault) for fault in cluster.faults if isinstance(fault, AcceleratorFault)],
    }


def _accelerator(cluster: Cluster) -> dict[str, Any] | None:
    table = cluster.accelerator
    if table is None:
        return None
    return {
        "model": table.model,
        "batch": table.batch,
        "device": table.device or None,
        "forward_s": _seconds(table.forward_ms),
        "backward_s": _seconds(table.backward_ms),
        "layers": None if cluster.layers is None else [dataclasses.asdict(layer) for layer in cluster.layers],
        "input_s": table.input_ms / 1e3,
        "optimizer_s": _seconds(table.optimizer_ms),
        "passes": table.passes,
        "bucket_mib": table.bucket_mib or None,
        "epoch_steps": table.epoch_steps or None,
        "evaluation_s": table.evaluation_ms / 1e3,
        "evaluate_every": table.evaluate_every or None,
        "checkpoint_s": table.checkpoint_ms / 1e3,
    }


def _seconds(ms: float) -> float | None:
    return ms / 1e3 if ms > 0 else None


def truth(cluster: Cluster, *, acting: UnionType = Fault) -> dict[str, Any]:
    """The contents of ``truth.json``: every planted fault with its size, and the true state of links and clocks.

    ``acting`` are the kinds of faults that affect the job; the others are left out.
    """
    shrink = float(cluster.table.shrink)
    faults = [fault for fault in cluster.faults if isinstance(fault, acting)]
    return {
        "cluster": cluster.table.name,
        "ranks": cluster.ranks,
        "shrink": shrink,
        "latency_s": cluster.latency_s,
        "hosts": [
            {
                "index": host.index,
                "name": host.name,
                "ranks": list(host.ranks),
                "link_bytes_per_s": host.link_bytes_per_s / shrink,
                "clock_offset_s": host.clock_offset_s,
                "clock_drift_ppm": host.clock_drift_ppm,
            }
            for host in cluster.hosts
        ],
        "switches": [
            {"hosts": list(switch.hosts), "uplink_bytes_per_s": (number(switch, "uplink") or 0.0) / shrink}
            for switch in cluster.switches
        ],
        "faults": [plain(fault) for fault in faults],
    }
