"""Checkpoints take a large part of the run, on all ranks at once.

What it is
    Every rank stops to write, as in sharded training, and the file system takes its time.

How it is found
    By checkpoints on every rank: a twentieth of the time, or more. Where one rank saves for much longer than the
    others, the title says so.

What it costs
    The replay without them.

What to do
    Save in the background (`torch.distributed.checkpoint.async_save`), less often (`--set train.checkpoint_every=…`),
    or to local disks. If one rank saves for longer, see what it saves more, or where its host writes to.

When it is wrong
    The interval of checkpoints follows from how often hosts fail (Young 1974, CACM 17): with rare checkpoints, a
    failure loses more work.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.rules.sequential_checkpoint import PHASE, less_often, without_checkpoints, writers
from allpull.units import percent

LARGE = 0.05  # of the time: below it, being able to resume after a failure is worth its price
LONGER = 1.5  # times the median of the others: a rank that saves for that long is named


def find(facts: Facts) -> list[Candidate]:
    """The job, where checkpoints of all ranks take long."""
    if not writers(facts) or len(writers(facts)) < facts.window.ranks:
        return []
    of_rank_s = facts.mean_s(PHASE)
    each_s, longest = float(of_rank_s.max()), int(of_rank_s.argmax())
    others_s = float(np.median(np.delete(of_rank_s, longest))) if of_rank_s.size > 1 else each_s
    by = " by all ranks" if facts.window.ranks > 1 else ""
    title = f"Checkpoints{by} take {percent(each_s / facts.step_s)} of the time"
    evidence = [
        seconds("checkpoints of the slowest rank, spread over all steps", each_s, facts.span),
        share("of the time", each_s / facts.step_s, facts.span),
    ]
    if each_s > LONGER * others_s:
        title += f"; rank {longest} saves for {each_s / others_s:.1f} times as long as the others"
        evidence.append(seconds("checkpoints of the median other rank, spread over all steps", others_s, facts.span))
    return [
        Candidate(
            rule="checkpoint-share",
            kind="job",
            title=title,
            remedy=less_often(facts),
            evidence=tuple(evidence),
            without=without_checkpoints,
            least_share=LARGE,
        )
    ]
