"""How many threads decode in each rank, where nobody says: the processors that are a rank's share of its host.

In a container that may have a part of their time alone, those are fewer (its quota: ``kernel.cpu_quota``).
"""

from __future__ import annotations

import os

from allpull.kernel import Tree, allowed_cpus, cpu_quota

MOST = 16  # of simplejpeg on one current core, 16 give 10,000 photographs a second: more than any GPU trains on


def usual_threads(*, bound: bool = False, tree: Tree | None = None) -> int:
    """Those of this rank; ``bound``: the processors it may run on are its own, and no other rank's.

    A quota is one for all ranks of the host, also where each has processors of its own. ``tree`` stands for what the
    kernel says.
    """
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")  # by torchrun, and by our launchers
    ranks = int(told) if told.isdecimal() else 1
    threads = shared_out(allowed_cpus(), 1 if bound else ranks)
    quota = cpu_quota(tree or Tree())
    return threads if quota is None else min(threads, shared_out(int(quota), ranks))


def shared_out(cpus: int, ranks: int) -> int:
    """Threads of each of ``ranks`` that share ``cpus``: at least one, at most ``MOST``.

    >>> shared_out(96, 8), shared_out(2, 4), shared_out(256, 1)
    (12, 1, 16)
    """
    return max(1, min(MOST, cpus // max(1, ranks)))
