"""One rank writes checkpoints while all others wait for it in their next collective.

What it is
    Rank 0 saves the state, at the speed of the file system, and no rank can continue without it. Or a call on all ranks
    gathers the state of a sharded optimizer on one of them: each rank packs and sends its part, and the others wait.

How it is found
    By checkpoints that some ranks record and others do not. Waiting in a collective within a checkpoint is not part of
    it.

What it costs
    The replay without them, and without the collectives within them.

What to do
    Save in the background: `torch.distributed.checkpoint.async_save`, or copy the state to memory and write it in a
    thread; write to local disk and move it later; save less often (`--set train.checkpoint_every=…`). Where ranks
    gather their state, call `consolidate_state_dict()` only before the state is saved, or let each rank save its own
    part (`torch.distributed.checkpoint.save`).

When it is wrong
    A copy in memory needs that memory, and a checkpoint written in the background can be lost with its host.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import Action, program, sentence
from allpull.explain.remedy_text import save_less
from allpull.replay.useful import TAKES_PART
from allpull.replay.whatif.work import without_calls, without_work
from allpull.replay.window import Window
from allpull.units import show_time

PHASE = "checkpoint"
GATHER_LESS = sentence(
    "gather the state less often, only before it is saved (ZeroRedundancyOptimizer's ",
    program("consolidate_state_dict()"),
    ", or get_state_dict with full_state_dict); or let each rank save its own part: ",
    program("torch.distributed.checkpoint.save"),
)


def writers(facts: Facts) -> tuple[int, ...]:
    """The ranks that write checkpoints."""
    by_rank = facts.window.per_step(PHASE).sum(axis=0)
    if not by_rank.sum() > 0:
        return ()
    return tuple(int(rank) for rank in np.flatnonzero(by_rank >= TAKES_PART * by_rank.max()))


def without_checkpoints(window: Window) -> Window:
    """No rank works for a checkpoint, and none takes part in collectives within one."""
    return without_calls(without_work(window, (PHASE,)), gathering(window))


def gathering(window: Window) -> tuple[str, ...]:
    """The collectives that ranks call within checkpoints, of ``window.uses``."""
    return tuple(use for use in window.uses if use.endswith(f" in {PHASE}"))


def less_often(facts: Facts) -> Action:
    """How to spend less time on checkpoints, and on gathering the state for them."""
    return GATHER_LESS if gathering(facts.window) else save_less(facts.start)


def find(facts: Facts) -> list[Candidate]:
    """The ranks that write checkpoints while others do not."""
    ranks = writers(facts)
    if not ranks or len(ranks) == facts.window.ranks:
        return []
    by_step = facts.window.per_step(PHASE).max(axis=1)
    steps, times = by_step.size, int((by_step > 0).sum())
    each = show_time(float(by_step.sum()) / times)
    if gathering(facts.window):
        who = f"rank {ranks[0]} packs and sends its part" if len(ranks) == 1 else f"{len(ranks)} ranks send their parts"
        title = f"All ranks gather their state for checkpoints: {who} for {each} each time, while the others wait"
    else:
        who = f"Rank {ranks[0]} writes" if len(ranks) == 1 else f"{len(ranks)} of {facts.window.ranks} ranks write"
        title = f"{who} checkpoints alone, {each} each, while the others wait"
    return [
        Candidate(
            rule="sequential-checkpoint",
            kind="job",
            title=title,
            remedy=less_often(facts),
            evidence=(
                seconds("checkpoints, spread over all steps", float(by_step.sum()) / steps, facts.span),
                count("checkpoints", times, facts.span),
            ),
            without=without_checkpoints,
            ranks=() if gathering(facts.window) else ranks,
        )
    ]
