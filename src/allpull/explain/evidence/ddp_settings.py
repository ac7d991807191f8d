"""How the program set up DistributedDataParallel, as far as all ranks recorded the same."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import polars as pl

from allpull.rundir.read.run import RunData
from allpull.schema.events import CollectiveKind, DataParallel
from allpull.units import NS_PER_S

BUFFERS_IN = "forward"  # the phase in which DDP broadcasts buffers
BROADCAST = f"broadcast in {BUFFERS_IN}"  # the use of these calls in a window


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """One network of the program, the same on all ranks.

    ``buffers_bytes``: size of the buffers that are broadcast before forward, 0: none are. ``unused_bytes``: the most
    parameters that any rank had no gradient of in one of ``checked_passes``; None: DDP does not look for them.
    ``buckets``: how many it reduces; 0: not known. ``gradients_bytes``: the size of each gradient, in the order of
    reduction; empty: not known.
    """

    buffers_bytes: int = 0
    unused_bytes: int | None = None
    checked_passes: int = 0
    buckets: int = 0
    gradients_bytes: tuple[int, ...] = ()


def ddp_settings(run: RunData) -> tuple[DdpSettings, ...]:
    """The networks of ``run``; empty where a rank did not record them, or ranks differ."""
    ranks = run.record.ranks
    latest: dict[int, list[DataParallel]] = {}
    for log in run.events.values():
        for one in {one.network: one for one in log.data_parallel}.values():
            latest.setdefault(one.network, []).append(one)
    if any(len(of_ranks) < ranks for of_ranks in latest.values()):
        return ()
    return tuple(_merged(latest[network], _cut(run, network)) for network in sorted(latest))


def _cut(run: RunData, network: int) -> tuple[int, tuple[int, ...]]:
    """The buckets of ``network``, and the size of each of its gradients, where all ranks reduce them alike."""
    cuts = {
        (len(cut.sizes_bytes), tuple(cut.gradients_bytes))
        for log in run.events.values()
        for cut in log.buckets
        if cut.network == network
    }
    return cuts.pop() if len(cuts) == 1 else (0, ())


def _merged(of_ranks: list[DataParallel], cut: tuple[int, tuple[int, ...]]) -> DdpSettings:
    unused = [one.unused_bytes for one in of_ranks if one.find_unused_parameters and not one.static_graph]
    known = [size_bytes for size_bytes in unused if size_bytes is not None]
    return DdpSettings(
        buffers_bytes=min(one.buffers_bytes if one.broadcast_buffers else 0 for one in of_ranks),
        unused_bytes=max(known) if len(known) == len(of_ranks) else None,
        checked_passes=min(one.checked_passes for one in of_ranks),
        buckets=cut[0],
        gradients_bytes=cut[1],
    )


def new_networks(reductions: pl.DataFrame) -> tuple[int, ...]:
    """Steps at which ranks reduce the gradients of networks that they did not reduce before, but for the first step.

    ``reductions``: columns of ``analyse.collectives.reductions``.
    """
    begins = reductions.group_by("networks").agg(pl.col("step").min())["step"]
    return tuple(sorted(set(begins.to_list()))[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommHook:
    """A communication hook: ``seconds`` in its Python code per step, on the median rank, in ``calls`` per step."""

    name: str
    seconds: float
    calls: float


def comm_hooks(run: RunData) -> tuple[CommHook, ...]:
    """The communication hooks of ``run``, from ranks that recorded them at two steps."""
    rates: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for log in run.events.values():
        known = [
            one for one in log.data_parallel if one.hook is not None and one.hook_ns is not None and one.hook_calls
        ]
        for network in sorted({one.network for one in known}):
            mine = [one for one in known if one.network == network]
            first, last = mine[0], mine[-1]
            steps = last.step - first.step
            if steps > 0 and first.hook == last.hook:
                spent_ns = (last.hook_ns or 0) - (first.hook_ns or 0)
                calls = (last.hook_calls or 0) - (first.hook_calls or 0)
                rates.setdefault((network, str(last.hook)), []).append((spent_ns / NS_PER_S / steps, calls / steps))
    return tuple(
        CommHook(name=name, seconds=median(one for one, _ in each), calls=median(one for _, one in each))
        for (_, name), each in sorted(rates.items())
    )


def broadcasts_only_buffers(run: RunData, networks: tuple[DdpSettings, ...]) -> bool:
    """Whether all broadcasts in forward are those of DDP, by their sizes."""
    sizes_bytes = {one.buffers_bytes for one in networks if one.buffers_bytes}
    calls = [kind for log in run.events.values() for kind in log.collective_kinds if _is_broadcast(kind)]
    return bool(calls) and all(kind.size_bytes in sizes_bytes for kind in calls)


def _is_broadcast(kind: CollectiveKind) -> bool:
    return kind.op == "broadcast" and kind.inside == BUFFERS_IN
