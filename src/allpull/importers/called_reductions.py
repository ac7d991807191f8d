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

USUAL = 0.5  # of the steps of a rank


def why_called(steps: Mapping[int, Sequence[Step]], size: int) -> str | None:
    """Why the reductions in the ``steps`` of ranks count as calls, as a sentence; None: they do not.

    Decided for all ranks together, of a job of ``size``: what is a call on one rank is so on all.
    """
    if any(_in_group(step, size) for its in steps.values() for step in its):
        return "gradients are reduced within groups of fewer than all ranks: each reduction counts as a call"
    if any(_usually_awaited(its) for its in steps.values()):
        return "backward waits for each reduction of gradients before it goes on: each counts as a call"
    return None


def _in_group(step: Step, size: int) -> bool:
    reduction = step.reduction
    return reduction is not None and any(0 < call.use.group_ranks < size for call in reduction.calls)


def _usually_awaited(steps: Sequence[Step]) -> bool:
    reduced = [step.reduction.calls for step in steps if step.reduction is not None]
    return sum(map(_is_awaited, reduced)) > USUAL * len(reduced)


def _is_awaited(calls: Sequence[Call]) -> bool:
    """Whether the gradients after one of ``calls`` were computed after it."""
    return any(one.is_awaited and (after.ready_ns or 0) >= (one.left_ns or 0) for one, after in pairwise(calls))
