"""One rank writes checkpoints while all others wait for it in their next collective.

What it is
    Rank 0 saves the state, at the speed of the file system, and no rank can continue without it.

How it is found
    By checkpoints that some ranks record and others do not.

What it costs
    The replay without them.

What to do
    Save in the background: `torch.distributed.checkpoint.async_save`, or copy the state to memory and write it in a
    thread; write to local disk and move it later; save less often (`--set train.checkpoint_every=…`).

When it is wrong
    A copy in memory needs that memory, and a checkpoint written in the background can be lost with its host.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy_text import save_less
from allpull.replay.useful import TAKES_PART
from allpull.replay.whatif.work import without_sequential
from allpull.units import show_time

PHASE = "checkpoint"


def writers(facts: Facts) -> tuple[int, ...]:
    """The ranks that write checkpoints."""
    by_rank = facts.window.per_step(PHASE).sum(axis=0)
    if not by_rank.sum() > 0:
        return ()
    return tuple(int(rank) for rank in np.flatnonzero(by_rank >= TAKES_PART * by_rank.max()))


def find(facts: Facts) -> list[Candidate]:
    """The ranks that write checkpoints while others do not."""
    ranks = writers(facts)
    if not ranks or len(ranks) == facts.window.ranks:
        return []
    by_step = facts.window.per_step(PHASE).max(axis=1)
    steps, times = by_step.size, int((by_step > 0).sum())
    subject = f"Rank {ranks[0]} writes" if len(ranks) == 1 else f"{len(ranks)} of {facts.window.ranks} ranks write"
    remedy = save_less(facts.start)
    return [
        Candidate(
            rule="sequential-checkpoint",
            kind="job",
            title=f"{subject} checkpoints alone, {show_time(float(by_step.sum()) / times)} each, while the others wait",
            remedy=remedy,
            evidence=(
                seconds("checkpoints, spread over all steps", float(by_step.sum()) / steps, facts.span),
                count("checkpoints", times, facts.span),
            ),
            without=partial(without_sequential, phases=(PHASE,)),
            ranks=ranks,
        )
    ]
