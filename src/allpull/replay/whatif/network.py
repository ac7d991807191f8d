"""What if transfers were different: gone, on another network, in other buckets, or hidden behind backward.

At the level of buckets the time of each bucket is known. At the level of steps only the exposed part of all transfers
is, as one bucket: a faster network then gains at least what is given here, and a slower one costs at least that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.engine import lane_s
from allpull.replay.window import CALL, REDUCE, Bools, Reductions, Window


def without_transfer(window: Window) -> Window:
    """Transfers take no time: POP's ideal network, with no latency and infinite bandwidth. Ranks still meet."""
    return with_network(window, rate_factor=np.inf)


def with_network(
    window: Window, *, rate_factor: float = 1.0, latency_s: float = 0.0, latency_now_s: float = 0.0
) -> Window:
    """Bytes move ``rate_factor`` times as fast; the latency of a transfer is ``latency_s``, not ``latency_now_s``.

    A transfer of τ takes max(0, τ − latency_now_s) ÷ rate_factor + latency_s; one that took less than
    latency_now_s is all latency, and changes by the difference.
    """
    lane = window.reductions

    def changed(seconds: Floats) -> Floats:
        fixed = np.minimum(seconds, latency_now_s)
        slower: Floats = (seconds - fixed) / rate_factor + np.maximum(fixed + (latency_s - latency_now_s), 0.0)
        return slower

    if lane is not None:  # the tail is the slower end of the same transfer, with no latency of its own
        lane = replace(lane, seconds=changed(lane.seconds), tail_s=lane.tail_s / rate_factor)
    taking_part = (window.kind == CALL)[:, None] & (window.meets | window.waits)
    return replace(
        window, transfer_s=np.where(taking_part, changed(window.transfer_s), window.transfer_s), reductions=lane
    )


def faster(window: Window, rate_factor: float, hosts_s: float | Floats = 0.0) -> Window:
    """Bytes move ``rate_factor`` ≥ 1 times as fast, while hosts process them as slowly as before.

    The time that a host takes to receive, add and forward data is hidden while more data is in flight, and shows on a
    faster network. A transfer (for the last bucket, with its tail) becomes no shorter than ``hosts_s``, unless it was:
    one number for all transfers, or one per bucket, (buckets,), the largest of which holds for calls.
    """
    quick = with_network(window, rate_factor=rate_factor)
    called_s = np.maximum(quick.transfer_s, np.minimum(window.transfer_s, np.max(hosts_s)))
    lane, before = quick.reductions, window.reductions
    if lane is None or before is None:
        return replace(quick, transfer_s=called_s)
    seconds = np.maximum(lane.seconds, np.minimum(before.seconds, hosts_s))
    left_s = np.maximum(np.ravel(hosts_s)[-1] - seconds[:, -1:], 0.0)
    tail_s = np.maximum(lane.tail_s, np.minimum(before.tail_s, left_s))
    return replace(quick, transfer_s=called_s, reductions=replace(lane, seconds=seconds, tail_s=tail_s))


def overlapped(window: Window) -> Window:
    """The reduction overlaps the whole of backward, as far as that is long enough.

    It uses one lane and depends on the last rank: it starts once all ranks have begun backward, and takes the sum of
    its buckets. At the level of steps that sum is the exposed part alone, so the gain is an upper bound there.
    """
    lane = window.reductions
    if lane is None:
        return window
    begun = np.maximum(backward_s(window, lane), lane.lead_s[:, 0])
    ready_last = np.zeros_like(begun)
    seconds = lane.seconds.sum(axis=1)
    nothing = np.zeros_like(seconds)
    hidden = replace(
        lane,
        lead_s=np.stack([begun, ready_last], axis=1),
        seconds=np.stack([seconds, nothing], axis=1),
        size_bytes=None if lane.size_bytes is None else np.array([lane.size_bytes.sum(), 0], dtype=np.int64),
    )
    return replace(window, reductions=hidden)


def without_reductions(window: Window, needless: Bools) -> Window:
    """The reductions ``needless``, (reductions,), do not take place: ranks neither meet nor send there."""
    lane = window.reductions
    if lane is None or needless.shape != lane.seconds.shape[:1] or not needless.any():
        return window
    kind = window.kind.copy()
    kind[np.flatnonzero(kind == REDUCE)[needless]] = CALL  # in which no rank takes part
    kept = ~needless
    left = replace(
        lane,
        lead_s=lane.lead_s[kept],
        seconds=lane.seconds[kept],
        tail_s=lane.tail_s[kept],
        networks=None if lane.networks is None else lane.networks[kept],
        own=None if lane.own is None else lane.own[kept],
    )
    return replace(window, kind=kind, reductions=left)


def with_buckets(
    window: Window,
    cap_bytes: int,
    *,
    first_bytes: int | None = None,
    latency_s: float = 0.0,
    gradients_bytes: Sequence[int] = (),
) -> Window:
    """Gradients are reduced in buckets of ``cap_bytes``, the first of ``first_bytes`` (None: the same).

    With ``gradients_bytes``, the size of each in the order of reduction, a bucket is full once it has that many bytes,
    and no gradient is divided, as DDP does it (`compute_bucket_assignment_by_size`). Bytes are assumed to become ready
    evenly between the moments at which the recorded buckets did, from the start of backward on, and to take as long as
    they did. ``latency_s`` of the time of a bucket does not depend on its size: without it smaller buckets cost
    nothing, and the gain is an upper bound.

    Raises:
        ValueError: the window has no buckets of known size, or a size is not positive.
    """
    lane = window.reductions
    if lane is None or lane.size_bytes is None or lane.size_bytes.sum() <= 0:
        raise ValueError("a window without sizes of buckets has no other buckets")
    if cap_bytes <= 0 or (first_bytes is not None and first_bytes <= 0):
        raise ValueError("a bucket has at least one byte")
    edges = np.concatenate([[0.0], np.cumsum(lane.size_bytes.astype(np.float64))])
    cuts = _cuts(float(edges[-1]), float(cap_bytes), float(first_bytes or cap_bytes))
    if sum(gradients_bytes) == lane.size_bytes.sum():
        cuts = _full(gradients_bytes, cap_bytes, first_bytes or cap_bytes)
    after = np.clip(np.searchsorted(edges, cuts, side="left"), 1, lane.buckets)
    share = (cuts - edges[after - 1]) / np.maximum(edges[after] - edges[after - 1], 1.0)

    def at_cuts(at_edges: Floats) -> Floats:
        """Values at the edges of the recorded buckets, on axis 1, interpolated between them."""
        weight = share.reshape(1, -1, *([1] * (at_edges.ndim - 2)))
        before = at_edges[:, after - 1]
        between: Floats = before + weight * (at_edges[:, after] - before)
        return between

    moved = np.cumsum(np.maximum(lane.seconds - latency_s, 0.0), axis=1)
    begun = np.maximum(backward_s(window, lane), lane.lead_s[:, 0])
    lead_s = at_cuts(np.concatenate([begun[:, None], lane.lead_s], axis=1))
    lead_s[:, -1] = 0.0
    seconds = np.maximum(np.diff(at_cuts(np.pad(moved, ((0, 0), (1, 0)))), axis=1, prepend=0.0), 0.0) + latency_s
    sizes = np.diff(cuts, prepend=0.0).round().astype(np.int64)
    return replace(window, reductions=replace(lane, lead_s=lead_s, seconds=seconds, size_bytes=sizes))


def single_rank(window: Window) -> Window:
    """The window of a single rank, with its collectives as ``other`` work: there is no rank to meet or to send to."""
    if window.ranks != 1:
        return window
    blocked = np.zeros((window.events, 1))
    early = np.where(window.meets & window.waits, window.early_s, 0.0)  # it waits only for itself
    takes = np.where(window.waits, np.where(window.meets, window.transfer_s - early, 0.0), window.transfer_s)
    blocked += np.maximum(takes, 0.0)
    lane = window.reductions
    if lane is not None:
        exposed = np.maximum((lane_s(lane) - lane.lead_s[:, :, 0]).max(axis=1), 0.0)
        blocked[window.kind == REDUCE, 0] += exposed + lane.tail_s[:, 0]
    none = np.zeros((window.events, 1), dtype=np.bool_)
    return replace(
        window,
        work={**window.work, "other": window.work.get("other", 0.0) + blocked},
        meets=none,
        waits=none,
        early_s=np.zeros_like(blocked),
        transfer_s=np.zeros_like(blocked),
        reductions=None if lane is None else _nothing(lane),
    )


def _nothing(lane: Reductions) -> Reductions:
    return replace(lane, seconds=np.zeros_like(lane.seconds), tail_s=np.zeros_like(lane.tail_s))


def backward_s(window: Window, lane: Reductions) -> Floats:
    """Backward of the pass that each reduction ends, shape (reductions, ranks)."""
    if "backward" not in window.work:
        return np.zeros_like(lane.tail_s)
    before_s: Floats = window.work["backward"][window.kind == REDUCE]
    return before_s if lane.own is None else before_s * lane.own


def _cuts(total: float, cap: float, first: float) -> Floats:
    """Where buckets end, in bytes from the first gradient: at ``first``, then every ``cap``, and at ``total``."""
    inner = np.arange(first, total, cap)
    return np.append(inner, total)


def _full(gradients_bytes: Sequence[int], cap: int, first: int) -> Floats:
    """Where buckets end that are full with ``first`` or ``cap`` bytes or more, in bytes from the first gradient."""
    ends: list[int] = []
    for end in accumulate(gradients_bytes):
        if end - (ends[-1] if ends else 0) >= (cap if ends else first):
            ends.append(end)
    total = sum(gradients_bytes)
    return np.array(ends if ends and ends[-1] == total else [*ends, total], dtype=np.float64)
