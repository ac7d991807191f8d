"""Check a cluster file as a whole: names and numbers that refer to nothing, and options that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from allpull.config.typed import show
from allpull.errors import nearest
from allpull.nets import NETS, network
from allpull.nets.devices import DEVICES
from allpull.rehearse.cluster.faults import ALL, ClockOffset, Fault, Jitter, Pause, SlowLink, SlowRank, SlowUplink
from allpull.rehearse.cluster.model import AcceleratorTable, Cluster, to_plain
from allpull.rehearse.cluster.quantity import number
from allpull.rehearse.ranks.schedule import plan
from allpull.units import show_time

ROUNDING = 1e-9  # rounding error of a third of a time in milliseconds
DEVIATIONS = 3  # of a normal distribution: times cannot be negative, so the tail beyond (1 in 1000) is clipped to zero

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?")  # a label of RFC 1123, short enough for a path


def find_contradictions(cluster: Cluster) -> list[str]:
    """One line for each error in ``cluster``; empty if there is none.

    Jitter is checked only if all else is valid, because its bound comes from the plan of the whole cluster.
    """
    contradictions = [*_switches(cluster), *_hosts(cluster)]
    if cluster.accelerator is not None:
        contradictions += _accelerator(cluster.accelerator, None if cluster.layers is None else len(cluster.layers))
    for index, fault in enumerate(cluster.faults):
        contradictions += [f"faults[{index}].{line}" for line in _fault(cluster, fault)]
    return contradictions or list(_jitter(cluster))


def _switches(cluster: Cluster) -> Iterator[str]:
    switch_of: dict[int, int] = {}
    for index, switch in enumerate(cluster.switches):
        if not switch.hosts:
            yield f"switch[{index}].hosts: expected at least one host"
        for host in switch.hosts:
            if not 0 <= host < cluster.table.hosts:
                yield f"switch[{index}].hosts: {_no_host(cluster, host)}"
            elif host in switch_of:
                yield f"switch[{index}].hosts: host {host} is behind switch[{switch_of[host]}] already"
            else:
                switch_of[host] = index


def _hosts(cluster: Cluster) -> Iterator[str]:
    described: dict[int, int] = {}
    for index, table in enumerate(cluster.host_tables):
        if table.index >= cluster.table.hosts:
            yield f"host[{index}].index: {_no_host(cluster, table.index)}"
        elif table.index in described:
            yield f"host[{index}].index: host {table.index} is described by host[{described[table.index]}] already"
        described.setdefault(table.index, index)
        if table.name and not _HOST_NAME.fullmatch(table.name):
            yield f"host[{index}].name: expected letters, digits and hyphens, at most 32; found {show(table.name)}"
    names = [host.name for host in cluster.hosts]
    for name in _twice(names):
        yield f"host: two hosts are called {show(name)}"


def _accelerator(table: AcceleratorTable, layers: int | None) -> Iterator[str]:
    if table.backward_ms and not table.forward_ms:
        yield "accelerator.forward_ms: missing; backward_ms needs it"
    elif table.layers and table.forward_ms:
        yield "accelerator: expected either layers or forward_ms; found both"
    elif not (table.device or table.forward_ms or table.layers):
        yield "accelerator: expected device, forward_ms (and backward_ms), or layers; found none of them"
    if table.device and table.device not in DEVICES:
        yield f"accelerator.device: no device {_unknown(table.device, DEVICES)}"
    if table.model not in NETS.names():
        yield f"accelerator.model: no network {_unknown(table.model, NETS.names())}"
    elif layers is not None and layers != len(network(table.model).layers):
        yield (
            f"accelerator.layers: expected {len(network(table.model).layers)} layers, those of {table.model} that "
            f"have parameters; found {layers}"
        )


def _fault(cluster: Cluster, fault: Fault) -> Iterator[str]:
    rank, host = getattr(fault, "rank", ALL), getattr(fault, "host", 0)
    if rank >= cluster.ranks:
        yield f"rank: no rank {rank}; the cluster has ranks 0 to {cluster.ranks - 1}"
    if host >= cluster.table.hosts:
        yield f"host: {_no_host(cluster, host)}"
    if isinstance(fault, SlowUplink) and fault.switch >= len(cluster.switches):
        count = len(cluster.switches)
        yield f"switch: no switch {fault.switch}; the file has {count} [[switch]] table{'s' if count != 1 else ''}"
    if isinstance(fault, SlowLink | SlowUplink) and bool(fault.rate) == bool(fault.factor):
        yield "rate: expected either rate or factor; found " + ("both" if fault.rate else "neither")
    if isinstance(fault, SlowRank) and fault.rotating == (fault.rank != ALL):
        yield "rank: expected either rank or rotating = true; found " + ("both" if fault.rotating else "neither")
    if isinstance(fault, Pause) and fault.rotating and fault.rank != ALL:
        yield "rank: expected either rank or rotating = true; found both"
    if isinstance(fault, ClockOffset) and any(
        table.index == fault.host and (table.clock_drift_ppm or table.clock_offset != "0 s")
        for table in cluster.host_tables
    ):
        yield f"host: the clock of host {fault.host} is set by a [[host]] table already; leave one of them out"


def _jitter(cluster: Cluster) -> Iterator[str]:
    """Jitter with zero mean needs a time long enough to shorten, or clipping would raise its mean above 0."""
    if cluster.accelerator is None:
        return  # this fault has no effect
    planned = plan(to_plain(cluster))
    times_s = {"input": planned.input_s, "forward": planned.forward_s, "backward": planned.backward_s}
    for index, fault in enumerate(cluster.faults):
        if not isinstance(fault, Jitter) or fault.distribution != "normal":
            continue
        time_s = times_s[fault.where]
        if DEVIATIONS * (number(fault, "std") or 0.0) > time_s * (1 + ROUNDING):
            yield (
                f"faults[{index}].std: expected at most a third of {fault.where}, which takes {show_time(time_s)}, "
                f"because no time is below 0; found {show(fault.std)}; "
                "the other distributions only lengthen, and have no such bound"
            )


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = nearest(name, names)
    suggestion = f"did you mean '{close}'? " if close else ""
    return f"{show(name)}; {suggestion}known: {', '.join(names)}"


def _no_host(cluster: Cluster, host: int) -> str:
    return f"no host {host}; the cluster has hosts 0 to {cluster.table.hosts - 1}"


def _twice(names: Iterable[Any]) -> list[Any]:
    every = list(names)
    return sorted({name for name in every if every.count(name) > 1})
