"""Checkpoints take a large part of the run, on all ranks at once.

What it is
    Every rank stops to write, as sharded trainings do, and the file system takes its time.

How it is found
    By checkpoints on every rank: a twentieth of the time, or more.

What it costs
    The replay without them.

What to do
    Save in the background (`torch.distributed.checkpoint.async_save`), less often (`--set train.checkpoint_every=…`),
    or to local disks.

When it is wrong
    The interval of checkpoints follows from how often hosts fail (Young 1974, CACM 17): rare ones cost more work when
    one does.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, seconds, share
from allpull.explain.rules.sequential_checkpoint import PHASE, writers
from allpull.replay.whatif import without_work
from allpull.units import percent

LARGE = 0.05  # of the time: below it, to be able to go on after a failure is worth its price


def find(facts: Facts) -> list[Suspect]:
    """The job, where all ranks write checkpoints for long."""
    if not writers(facts) or len(writers(facts)) < facts.window.ranks:
        return []
    each_s = float(facts.mean_s(PHASE).max())
    return [
        Suspect(
            rule="checkpoint-share",
            kind="job",
            title=f"Checkpoints by all ranks take {percent(each_s / facts.step_s)} of the time",
            remedy="save in the background: torch.distributed.checkpoint.async_save; or less often: "
            "--set train.checkpoint_every=…",
            options=("train.checkpoint_every",),
            evidence=(
                seconds("checkpoints of the slowest rank, spread over all steps", each_s, facts.span),
                share("of the time", each_s / facts.step_s, facts.span),
            ),
            without=partial(without_work, phases=(PHASE,)),
            least_share=LARGE,
        )
    ]
