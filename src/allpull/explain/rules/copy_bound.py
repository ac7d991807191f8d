"""Batches are copied to the accelerator while it waits for them.

What it is
    A copy from ordinary memory cannot run beside computing: the device stands still meanwhile.

How it is found
    By the phase `copy`: what of copies from the host the device had to wait for.

What it costs
    The replay without it, as far as ranks have it in common: what one of them takes longer is `slow-rank`.

What to do
    `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`; send bytes and convert them on the device.

When it is wrong
    On a machine where several accelerators share one way to the host, the copies may be as fast as they can be.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, seconds, share
from allpull.replay.whatif.work import lower_median, without_common
from allpull.units import show_time

LEAST = 0.05  # of a step: a batch has to get there in some way


def find(facts: Facts) -> list[Suspect]:
    """The job, where copies are waited for."""
    copied_s = float(lower_median(facts.mean_s("copy")))
    if copied_s < LEAST * facts.step_s:
        return []
    return [
        Suspect(
            rule="copy-bound",
            kind="job",
            title=f"Accelerators wait {show_time(copied_s)} a step for batches to be copied to them",
            remedy="DataLoader(pin_memory=True) and batch.to(device, non_blocking=True); send bytes",
            evidence=(
                seconds(
                    "copies that the device waited for, what at least half of the ranks take", copied_s, facts.span
                ),
                share("of a step", copied_s / facts.step_s, facts.span),
            ),
            without=partial(without_common, phases=("copy",)),
            least_share=LEAST,
        )
    ]
