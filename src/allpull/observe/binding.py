"""Give each rank of a host CPUs of its own. Linux; elsewhere nothing is bound. Standard library only."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence


def share(cpus: Sequence[int], local_rank: int, ranks_here: int) -> List[int]:
    """This rank's part of ``cpus``: neighbours, as many for each as can be.

    CPUs that are left over serve nobody, so that all ranks are equal. With fewer CPUs than ranks, ranks share.

    >>> share([0, 1, 2, 3, 4], 1, 2), share([0, 1], 3, 4)
    ([2, 3], [1])
    """
    ordered = sorted(cpus)
    if len(ordered) < ranks_here:
        return [ordered[local_rank * len(ordered) // ranks_here]]
    each = len(ordered) // ranks_here
    return ordered[local_rank * each : (local_rank + 1) * each]


def bind(kind: str, local_rank: int, ranks_here: int) -> None:
    """Keep this process, and all that it starts, on its share of the CPUs; ``kind`` is none or cores."""
    if kind == "cores" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share(sorted(os.sched_getaffinity(0)), local_rank, ranks_here))


def bound_to() -> Optional[str]:
    """The CPUs that this process may run on, as a list such as ``0-3,8``; None where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return ranges(sorted(os.sched_getaffinity(0)))


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, with neighbours joined.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    parts: List[List[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
