"""Write a rehearsal as a shell script, to read or to run line by line as root."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator

from allpull.rehearse.host import network
from allpull.rehearse.host.order import Order

ZEROS = {"first-step": "every rank has made its first step", "start": "all ranks were started"}


def show(order: Order, remarks: Iterable[str] = ()) -> str:
    """Namespaces, links and ranks of ``order``, after ``remarks``. allpull makes the same inside its own namespace."""
    comments = (f"# {line}" for line in remarks)
    return "\n".join(["#!/bin/sh", *comments, *_hosts(order), *_links(order), *_changes(order), *_ranks(order), ""])


def _hosts(order: Order) -> Iterator[str]:
    yield "# Hosts: one network namespace each, all inside an outer one (unshare --net --mount)."
    for host in order.hosts:
        yield f"ip netns add {host.name}"


def _links(order: Order) -> Iterator[str]:
    yield "# Links, shaped at both ends."
    yield from _lines(order, network.plan(order.topology))
    if order.topology.latency_s > 0:
        yield f"# Between two hosts {order.topology.latency_s * 1e6:g} µs are added, by netem or its replacement."


def _changes(order: Order) -> Iterator[str]:
    for change in order.changes:
        yield f"# {change.at_s:g} s after {ZEROS[order.zero]}:"
        yield from _lines(order, network.batches_of(change, order.topology)) if change.kind != "kill" else _kill(change)


def _kill(change: network.Change) -> Iterator[str]:
    yield f"kill -KILL $PID_OF_RANK_{change.number}"


def _ranks(order: Order) -> Iterator[str]:
    yield "# Ranks: allpull imports torch once and forks all of them; as separate programs they would be"
    for index, host in enumerate(order.hosts):
        if host.has_own_clock:
            yield f"# (wall clock of {host.name}: {host.clock_offset_s:+g} s, {host.clock_drift_ppm:+g} ppm)"
        for local_rank, rank in enumerate(host.ranks):
            variables = network.rank_variables(rank, local_rank, order.ranks, len(host.ranks), order.port)
            command = ["ip", "netns", "exec", host.name, "env", *(f"{key}={value}" for key, value in variables.items())]
            command += [sys.executable, "-m", "allpull.observe.rank", order.job_file, order.module]
            yield f"{shlex.join(command)} &  # {network.address(index)}"
    yield "wait"


def _lines(order: Order, batches: list[network.Batch]) -> Iterator[str]:
    names = {f"net{index}": host.name for index, host in enumerate(order.hosts)}
    for batch in batches:
        where = f" -n {order.hosts[batch.host].name}" if batch.host is not None else ""
        for line in batch.lines:
            yield f"{batch.tool}{where} {line.format(**names)}"
