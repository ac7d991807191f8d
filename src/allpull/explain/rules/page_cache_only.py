"""The data came from memory: on a cold machine, or with a larger data set, the loaders will be slower.

What it is
    The kernel caches what was read before. A second run, or a second epoch, of data that fit in memory measures that
    memory and not the storage.

How it is found
    Ranks read much data, and almost none of it came from storage.

What it costs
    Nothing, in this run. It is advice: do not conclude from this run how fast the storage is.

What to do
    Measure with a cold cache: a first epoch after `echo 3 > /proc/sys/vm/drop_caches` (root), on other hosts, or with a
    data set larger than their memory; then `allpull compare`.

When it is wrong
    Network file systems with their own client cache, and reads through `mmap`, are not counted as from storage.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, rate
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import sentence, shell

MUCH_BYTES_PER_S = 10e6  # of all ranks: below it no storage makes loaders wait
CACHED = 0.05  # from storage: below it the files are in memory


def find(facts: Facts) -> list[Candidate]:
    """Advice, where nearly all data come from memory."""
    read, stored = facts.machine.read_bytes_per_s, facts.machine.storage_read_bytes_per_s
    if read is None or stored is None or read < MUCH_BYTES_PER_S or stored > CACHED * read:
        return []
    return [
        Candidate(
            rule="page-cache-only",
            kind="advice",
            title="The data that ranks read came from memory, not from storage",
            remedy=sentence(
                "measure once with a cold cache: ",
                shell("sync; echo 3 > /proc/sys/vm/drop_caches"),
                " (root), or on other hosts",
            ),
            evidence=(
                rate("data read by all ranks", read, "counters of the ranks"),
                rate("of that, from storage", stored, "counters of the ranks"),
            ),
        )
    ]
