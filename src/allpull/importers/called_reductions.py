"""Treat reductions of gradients as calls of the program, where they are no exchange of all ranks that backward hides.

DDP reduces gradients among all ranks while backward goes on, and the replay moves its buckets accordingly. A program
that waits for each of its all-reduces before it computes the next gradients, and parallelism in two dimensions, which
reduces within groups, exchange otherwise: there each all-reduce is a meeting of its group, in which ranks are blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from allpull.importers.kineto.calls import Call
from allpull.importers.kineto.measure import Step

USUAL = 0.5  # of the steps of a rank, and of the reductions of one: some may be awaited by chance


def why_called(steps: Mapping[int, Sequence[Step]], size: int) -> str | None:
    """Why the reductions in the ``steps`` of ranks count as calls, as a sentence; None: they do not.

    Decided for all ranks together, of a job of ``size``: what is a call on one rank is so on all, and the rank that
    comes last may not be seen to wait.
    """
    reduced = {rank: [one.reduction.calls for one in its if one.reduction] for rank, its in steps.items()}
    uses = {call.use for its in reduced.values() for calls in its for call in calls}
    if len({use.group for use in uses}) > 1 and all(0 < use.group_ranks < size for use in uses):
        return "gradients are reduced within groups of fewer than all ranks: each reduction counts as a call"
    if any(sum(map(_are_awaited, its)) > USUAL * len(its) for its in reduced.values()):
        return "backward waits for each reduction of gradients before it goes on: each counts as a call"
    return None


def _are_awaited(calls: Sequence[Call]) -> bool:
    """Whether most of ``calls`` were awaited: the gradients after them were computed later."""
    pairs = list(pairwise(calls))
    awaited = sum(one.is_awaited and (after.ready_ns or 0) >= (one.left_ns or 0) for one, after in pairs)
    return awaited > USUAL * len(pairs)
