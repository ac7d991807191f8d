"""Bind each rank of a host to CPUs of its own, on one memory node if requested. Linux; elsewhere nothing is bound.

Memory follows: Linux allocates a page on the node of the CPU that first writes to it, on another only if that one is
full, and a rank is bound before it allocates. The locality of accelerators is not considered: ranks go over the nodes
in order, which is near their devices on hosts that number devices in that order. Standard library only.
"""

from __future__ import annotations

import os
from typing import List, Optional, Sequence

NODES = "/sys/devices/system/node"  # a folder for each memory node: Documentation/ABI/stable/sysfs-devices-node


def share(cpus: Sequence[int], local_rank: int, ranks_here: int) -> List[int]:
    """This rank's part of ``cpus``: consecutive ones, the same number for each rank.

    CPUs that are left over stay unused, so that all ranks are equal. With fewer CPUs than ranks, ranks share.

    >>> share([0, 1, 2, 3, 4], 1, 2), share([0, 1], 3, 4)
    ([2, 3], [1])
    """
    ordered = sorted(cpus)
    if len(ordered) < ranks_here:
        return [ordered[local_rank * len(ordered) // ranks_here]]
    each = len(ordered) // ranks_here
    return ordered[local_rank * each : (local_rank + 1) * each]


def share_of_node(nodes: Sequence[Sequence[int]], local_rank: int, ranks_here: int) -> List[int]:
    """This rank's part of the CPUs of one of ``nodes``; neighbouring ranks share a node, divided as ``share`` does.

    Ranks are spread as evenly as possible; with fewer ranks than nodes each has a node of its own.

    >>> [share_of_node([[0, 1, 2, 3], [4, 5, 6, 7]], rank, 4) for rank in range(4)]
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> [share_of_node([[0, 1], [2, 3], [4, 5]], rank, 2) for rank in range(2)]
    [[0, 1], [2, 3]]
    """
    homes = [rank * len(nodes) // ranks_here for rank in range(ranks_here)]
    home = homes[local_rank]
    return share(nodes[home], local_rank - homes.index(home), homes.count(home))


def by_node(cpus: Sequence[int], folder: str = NODES) -> List[List[int]]:
    """``cpus`` grouped by memory node, in the order of nodes; one group where the system does not report nodes.

    Nodes without any of these CPUs are left out: nodes of memory only, and nodes that we may not use.
    """
    try:
        names = [name for name in os.listdir(folder) if name.startswith("node") and name[4:].isdigit()]
        lists = [_line(os.path.join(folder, name, "cpulist")) for name in sorted(names, key=lambda name: int(name[4:]))]
        groups = [sorted(set(cpus).intersection(numbers(text))) for text in lists]
    except (OSError, ValueError):
        groups = []
    known = [group for group in groups if group]
    return known if sorted(cpu for group in known for cpu in group) == sorted(cpus) else [sorted(cpus)]


def bind(kind: str, local_rank: int, ranks_here: int) -> None:
    """Bind this process and its children to its share of the CPUs; ``kind`` is none, cores or numa."""
    if kind == "none" or not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    nodes = by_node(allowed) if kind == "numa" else [allowed]
    os.sched_setaffinity(0, share_of_node(nodes, local_rank, ranks_here))


def bound_to() -> Optional[str]:
    """The CPUs that this process may run on, as a list such as ``0-3,8``; None where the system has no such report."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return ranges(sorted(os.sched_getaffinity(0)))


def ranges(numbers: Sequence[int]) -> str:
    """Ordered numbers as a list in which consecutive ones are joined.

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


def numbers(text: str) -> List[int]:
    """The numbers of a list in the notation of ``ranges``, which is the kernel's.

    >>> numbers("0-2,5,7-8"), numbers("")
    ([0, 1, 2, 5, 7, 8], [])

    Raises:
        ValueError: it is not such a list.
    """
    cpus: List[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _line(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.readline().strip()
