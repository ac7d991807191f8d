"""Check that this machine can run a virtual cluster, and name what will differ from the cluster file."""

from __future__ import annotations

import math
import os
import shutil
import sys
from types import UnionType

import psutil

from allpull.errors import BadInput, MissingPart
from allpull.nets import network
from allpull.rehearse.cluster.model import Cluster
from allpull.rehearse.host import fake_clock
from allpull.rehearse.host.network import INTERFACE
from allpull.rehearse.job_plan import topology
from allpull.schema.spec import RunSpec
from allpull.units import show_bytes

MAX_RANKS = 64  # two cores cannot schedule more, and a virtual cluster is for small machines
RANK_BYTES = 250 << 20  # a forked rank shares most of torch's memory, but its training's own memory is private
PARAMETER_BYTES = 12  # 4 for the parameter and 4 for its gradient; as measured, Gloo and autograd hold 3 more
CORE_BITS_PER_S = 2e9  # of all links together: two cores keep 4 Gbit/s to within 5 %, and fall behind above
TOOLS = {"ip": "iproute2", "tc": "iproute2"}
UNSHAPED = (
    "allpull rehearse --unshaped runs the same ranks without hosts and links; --launcher local runs any other job"
)


def check_machine(cluster: Cluster, spec: RunSpec, *, accelerated: bool) -> None:
    """Check that this machine can make ``cluster``, and that the job of ``spec`` fits it.

    ``accelerated``: the job trains the virtual accelerator.

    Raises:
        BadInput: the job does not fit the cluster, or this machine has not enough memory.
        MissingPart: this is not Linux, or a program is not installed.
    """
    check_job(cluster, spec)
    check_memory(cluster, accelerated=accelerated)
    check_tools()
    wrong = any(host.clock_offset_s or host.clock_drift_ppm for host in cluster.hosts)
    if wrong and fake_clock.library() is None:
        raise MissingPart("a wrong wall clock needs libfaketime", hint="apt install faketime")


def check_tools() -> None:
    """Check that this is a system with virtual hosts and links.

    Raises:
        MissingPart: this is not Linux, or a program is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise MissingPart("a virtual cluster needs Linux: its hosts are network namespaces", hint=UNSHAPED)
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise MissingPart(f"a virtual cluster needs `{tool}`", hint=f"apt install {package}; {UNSHAPED}")


def check_job(cluster: Cluster, spec: RunSpec) -> None:
    """Check that the job of ``spec`` has the size of ``cluster``, and sets no option that a cluster cannot honour.

    Raises:
        BadInput: it has another size, or sets such an option.
    """
    table, ranks = cluster.table, spec.launch.ranks
    if spec.launch.hosts not in {1, table.hosts}:
        raise BadInput(
            f"launch.hosts is {spec.launch.hosts}, and cluster '{table.name}' has {table.hosts}",
            hint="omit launch.hosts: the cluster file has the number of hosts",
        )
    for option, is_set, reason in (
        ("container.image", bool(spec.container.image), "its ranks are forked from one process, outside containers"),
        ("launch.bind", spec.launch.bind != "none", "its hosts share the cores of this machine"),
        ("launch.interface", bool(spec.launch.interface), f"its hosts have one interface, {INTERFACE}"),
        ("launch.max_restarts", spec.launch.max_restarts > 0, "a rank that fails there ends the job"),
    ):
        if is_set:
            raise BadInput(f"{option} has no effect on a virtual cluster: {reason}", hint=f"omit {option}")
    if ranks != cluster.ranks:
        raise BadInput(
            f"the job has {ranks} ranks, and cluster '{table.name}' has {cluster.ranks} "
            f"({table.hosts} hosts of {table.ranks_per_host})",
            hint=f"use -n {cluster.ranks}, or change hosts or ranks_per_host in the cluster file",
        )


def check_memory(cluster: Cluster, *, accelerated: bool) -> None:
    """Check that this machine has memory for the ranks, and for the virtual accelerator's network if they train it.

    Raises:
        BadInput: there are more than ``MAX_RANKS`` ranks, or they need more memory than is free.
    """
    ranks, model_bytes = cluster.ranks, 0
    if ranks > MAX_RANKS:
        raise BadInput(
            f"{ranks} ranks are more than the {MAX_RANKS} that one machine can rehearse", hint="use fewer hosts"
        )
    if accelerated and cluster.accelerator is not None:
        model_bytes = round(PARAMETER_BYTES * network(cluster.accelerator.model).parameters / cluster.table.shrink)
    available, needed = psutil.virtual_memory().available, RANK_BYTES + model_bytes
    if ranks * needed > available:
        model = f", {show_bytes(model_bytes)} per rank for {cluster.accelerator.model}" if cluster.accelerator else ""
        raise BadInput(
            f"{ranks} ranks need about {show_bytes(ranks * needed)} of memory{model if model_bytes else ''}; "
            f"{show_bytes(available)} are free",
            hint=f"up to {available // needed} ranks fit"
            + ("; a larger shrink needs less memory per rank" * bool(model_bytes)),
        )


def too_fast(cluster: Cluster) -> str | None:
    """A sentence that this machine cannot reach the link rates of ``cluster``; None if it can.

    Raises:
        BadInput: a link becomes slower than can be shaped.
    """
    cores, links = len(os.sched_getaffinity(0)), topology(cluster).links_bits_per_s
    most = cores * CORE_BITS_PER_S
    if len(links) == 1 or sum(links) <= most:
        return None
    return (
        f"the links carry {_gbit(sum(links))} together after shrinking, and {cores} cores keep up with about "
        f"{_gbit(most)}: busy links will be slower than set; "
        f"shrink = {_round_up(cluster.table.shrink * sum(links) / most)} keeps the schedule at rates within reach"
    )


def idle_kinds(cluster: Cluster, kinds: UnionType) -> list[str]:
    """The kinds of those faults in ``cluster`` that are of class ``kinds``, each once, sorted."""
    return sorted({fault.kind for fault in cluster.faults if isinstance(fault, kinds)})


def tell(sentence: str) -> None:
    """Write ``sentence`` for the user to stderr."""
    sys.stderr.write(f"allpull: {sentence}\n")
    sys.stderr.flush()


def _gbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.3g} Gbit/s"


def _round_up(value: float) -> int:
    """``value`` rounded up to an integer with two significant digits.

    >>> _round_up(1.01), _round_up(24.2), _round_up(1234)
    (2, 25, 1300)
    """
    unit = int(10 ** max(0, math.floor(math.log10(value)) - 1))
    return math.ceil(value / unit) * unit
