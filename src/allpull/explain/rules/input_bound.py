"""All ranks wait for their data: the loaders are slower than the training.

What it is
    A step can be no shorter than the time that the loader takes for a batch. Accelerators are then idle, and more of
    them do not help.

How it is found
    By the time in `input` that at least half of the ranks wait in ordinary steps; of two ranks, the one that waits
    less. A late first batch of an epoch is `first-batch-stall`, one rank that waits longer than the others is
    `slow-loader-rank`; where the loaders already keep all CPUs busy, it is `preprocess-offline`.

What it costs
    The replay without that waiting. After a late batch a device begins its phases together with its host and may wait
    for it inside them, too: where that is not known, the interval reaches up to it.

What to do
    More loader workers: `DataLoader(num_workers=…, prefetch_factor=4, persistent_workers=True, pin_memory=True)`, and
    as many CPUs for them (`sbatch --cpus-per-task=…`). If the storage is slow, copy the data to local disks or pack
    them into a few large files.

When it is wrong
    Where the loop itself makes the batch look late: a `.item()` that waits for the device just before the next batch is
    requested moves waiting for the device close to the loader.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, count, rate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loader import ALONE, LEAST, common_input, has_no_cpu_left, without_common_input
from allpull.explain.evidence.pacing import fed_in_time
from allpull.schema.explained import Evidence
from allpull.units import show_time


def find(facts: Facts) -> list[Candidate]:
    """The job, where all loaders are behind and CPUs are free."""
    waited = common_input(facts)
    if waited is None or has_no_cpu_left(facts):
        return []
    behind = tuple(one.rank for one in facts.late.loaders)
    without = partial(without_common_input, first=facts.first, behind=behind)
    return [
        Candidate(
            rule="input-bound",
            kind="job",
            title=f"All ranks wait {show_time(waited.value)} per step for their data",
            remedy=_remedy(facts),
            evidence=(
                seconds("wait for the loader on at least half of the ranks", waited, facts.span),
                *loader_evidence(facts),
            ),
            without=without,
            bounds=None if facts.window.paced_s is None else (without, partial(fed_in_time, without=without)),
            least_share=LEAST,
        )
    ]


def loader_evidence(facts: Facts) -> tuple[Evidence, ...]:
    """What the counters show of loaders and storage."""
    machine = facts.machine
    evidence = []
    if machine.started is not None:
        evidence.append(
            count("processes of a rank, including its loader workers", machine.started, "counters of the hosts")
        )
    for host in machine.host_names:
        busy = machine.busy_share(host)
        if busy is not None:
            evidence.append(
                share(f"share of the CPUs of {host} that ranks and workers keep busy", busy, "counters of the hosts")
            )
    if machine.read_bytes_per_s is not None:
        evidence.append(rate("data read by all ranks", machine.read_bytes_per_s, "counters of the ranks"))
    if machine.storage_read_bytes_per_s is not None:
        evidence.append(rate("of that, from storage", machine.storage_read_bytes_per_s, "counters of the ranks"))
    return tuple(evidence)


def _remedy(facts: Facts) -> str:
    started = facts.machine.started
    now = "" if started is None else f" (now at most {max(0, started - ALONE)} per rank)"
    return (
        f"more loader workers{now}: DataLoader(num_workers=…, prefetch_factor=4, persistent_workers=True), "
        "with sbatch --cpus-per-task=… for them; data on local disks where storage is slow"
    )
