"""Accelerators are idle while batches are copied to them.

What it is
    A copy from pageable memory cannot overlap computation: the device is idle meanwhile.

How it is found
    By the phase `copy`: the part of host-to-device copies that the device had to wait for.

What it costs
    The replay without it, as far as ranks have it in common: what one of them takes longer is `slow-rank`.

What to do
    `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`; send bytes and convert them on the device.

When it is wrong
    On a machine where several accelerators share one path to the host, the copies may be as fast as they can be.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.explain.remedy_text import TOPOLOGY
from allpull.replay.whatif.work import lower_median, without_common
from allpull.units import show_time

IN_PROGRAM = sentence(
    program("DataLoader(pin_memory=True)"), " and ", program("batch.to(device, non_blocking=True)"), "; send bytes"
)
OF_TRAINER = sentence(
    "batches are pinned and copied in the background already; see which GPUs share a path: ", TOPOLOGY
)
LEAST = 0.05  # of a step: every batch has to be copied


def find(facts: Facts) -> list[Candidate]:
    """The job, where accelerators wait for copies."""
    copied_s = float(lower_median(facts.mean_s("copy")))
    if copied_s < LEAST * facts.step_s:
        return []
    return [
        Candidate(
            rule="copy-bound",
            kind="job",
            title=f"Accelerators wait {show_time(copied_s)} per step for batches to be copied to them",
            remedy=OF_TRAINER if facts.start.starter == "train" else IN_PROGRAM,
            evidence=(
                seconds("copies that the device waited for, on at least half of the ranks", copied_s, facts.span),
                share("of the step", copied_s / facts.step_s, facts.span),
            ),
            without=partial(without_common, phases=("copy",)),
            least_share=LEAST,
        )
    ]
