"""Checkpoints take a large part of the run, on all ranks at once.

What it is
    Every rank stops to write, as in sharded training, and the file system takes its time.

How it is found
    By checkpoints on every rank: a twentieth of the time, or more.

What it costs
    The replay without them.

What to do
    Save in the background (`torch.distributed.checkpoint.async_save`), less often (`--set train.checkpoint_every=…`),
    or to local disks.

When it is wrong
    The interval of checkpoints follows from how often hosts fail (Young 1974, CACM 17): with rare checkpoints, a
    failure loses more work.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.rules.sequential_checkpoint import PHASE, less_often, without_checkpoints, writers
from allpull.units import percent

LARGE = 0.05  # of the time: below it, being able to resume after a failure is worth its price


def find(facts: Facts) -> list[Candidate]:
    """The job, where checkpoints of all ranks take long."""
    if not writers(facts) or len(writers(facts)) < facts.window.ranks:
        return []
    each_s = float(facts.mean_s(PHASE).max())
    return [
        Candidate(
            rule="checkpoint-share",
            kind="job",
            title=f"Checkpoints by all ranks take {percent(each_s / facts.step_s)} of the time",
            remedy=less_often(facts),
            evidence=(
                seconds("checkpoints of the slowest rank, spread over all steps", each_s, facts.span),
                share("of the time", each_s / facts.step_s, facts.span),
            ),
            without=without_checkpoints,
            least_share=LARGE,
        )
    ]
