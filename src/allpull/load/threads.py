"""How many threads decode in each rank, where nobody says: the processors that are a rank's share of its host."""

from __future__ import annotations

import os

MOST = 16  # of simplejpeg on one current core, 16 give 10,000 photographs a second: more than any GPU trains on


def usual_threads(*, bound: bool = False) -> int:
    """Those of this rank; ``bound``: the processors it may run on are its own, and no other rank's."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")  # by torchrun, and by our launchers
    return shared_out(cpus, 1 if bound or not told.isdigit() else int(told))


def shared_out(cpus: int, ranks: int) -> int:
    """Threads of each of ``ranks`` that share ``cpus``: at least one, at most ``MOST``.

    >>> shared_out(96, 8), shared_out(2, 4), shared_out(256, 1)
    (12, 1, 16)
    """
    return max(1, min(MOST, cpus // max(1, ranks)))
