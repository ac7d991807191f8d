"""What an all-reduce costs by algorithm: hops that each cost a latency, and the bytes that a link carries.

With N ranks on n hosts, g = N/n ranks per host, and S bytes, an all-reduce takes::

    hops_local · α_local + hops_network · α_network + S · (bytes_local / B_local + bytes_network / B_network)

- ring: 2(N−1) hops, 2(n−1) of them between hosts; the slowest link carries 2(N−1)/N of the data (Patarasuk & Yuan 2009,
  J. Parallel Distrib. Comput. 69; hops as in NCCL's tuning.cc).
- tree: up and down a double binary tree, 2[(g−1) + ⌊log2 n⌋] hops, each link carries the data twice (Sanders, Speck &
  Träff 2009, Parallel Computing 35; NCCL's tuning.cc).
- two-level: reduce-scatter within a host, all-reduce between hosts, all-gather within a host (Jia et al. 2018,
  arXiv:1807.11205); the ranks of a host share its link.
- halving-doubling: 2 log2 N hops and 2(N−1)/N of the data; a number that is no power of two adds an exchange of all of
  it before and after (Thakur, Rabenseifner & Gropp 2005, Int. J. High Perf. Comput. Appl. 19).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Hops, and the share of the data that a link carries, within a host and between hosts."""

    hops_local: float = 0.0
    hops_network: float = 0.0
    bytes_local: float = 0.0
    bytes_network: float = 0.0


def ring(ranks: int, hosts: int) -> Cost:
    """A flat ring over all ranks, host by host.

    >>> ring(8, 2)
    Cost(hops_local=12, hops_network=2, bytes_local=0.0, bytes_network=1.75)
    """
    carried = 2 * (ranks - 1) / ranks
    return Cost(
        hops_local=2 * (ranks - hosts),
        hops_network=2 * (hosts - 1),
        bytes_local=0.0 if hosts > 1 else carried,
        bytes_network=carried if hosts > 1 else 0.0,
    )


def tree(ranks: int, hosts: int) -> Cost:
    """A double binary tree over the hosts, a chain within each.

    >>> tree(8, 4)
    Cost(hops_local=2, hops_network=4, bytes_local=0.0, bytes_network=2.0)
    """
    if ranks == 1:
        return Cost()
    return Cost(
        hops_local=2 * (-(-ranks // hosts) - 1),
        hops_network=2 * int(math.log2(hosts)),
        bytes_local=0.0 if hosts > 1 else 2.0,
        bytes_network=2.0 if hosts > 1 else 0.0,
    )


def two_level(ranks: int, hosts: int) -> Cost:
    """Rings within each host and between hosts."""
    local = -(-ranks // hosts)
    return Cost(
        hops_local=2 * (local - 1),
        hops_network=2 * (hosts - 1),
        bytes_local=2 * (local - 1) / local,
        bytes_network=2 * (hosts - 1) / hosts,
    )


def halving_doubling(ranks: int, hosts: int) -> Cost:
    """Recursive halving and doubling over all ranks; the first exchanges, of most bytes, are within hosts.

    >>> halving_doubling(4, 4), halving_doubling(3, 3).bytes_network
    (Cost(hops_local=0.0, hops_network=4.0, bytes_local=0.0, bytes_network=1.5), 3.0)
    """
    if ranks == 1:
        return Cost()
    power = 1 << (ranks.bit_length() - 1)
    extra = 0 if power == ranks else 1
    hops, carried = 2 * math.log2(power) + 2 * extra, 2 * (power - 1) / power + 2 * extra
    if hosts == 1:
        return Cost(hops_local=hops, bytes_local=carried)
    between = min(2.0 * math.ceil(math.log2(hosts)), hops)
    return Cost(hops_local=hops - between, hops_network=between, bytes_network=carried)


ALGORITHMS: dict[str, Callable[[int, int], Cost]] = {
    "ring": ring,
    "tree": tree,
    "two-level": two_level,
    "halving-doubling": halving_doubling,
}

OF_BACKEND: dict[str, tuple[str, ...]] = {
    "gloo": ("ring",),  # the default of its allreduce (gloo/allreduce.cc: UNSPECIFIED runs the ring)
    "nccl": ("ring", "tree", "two-level"),  # it chooses by size and ranks (tuning.cc)
    "mpi": ("ring", "tree", "halving-doubling"),
}
"""Back-end → what its all-reduce may be; another back-end may be any of them."""
