"""Algorithms of an all-reduce, against the message counts of simulated ranks and against published formulas."""

from __future__ import annotations

import pytest

from allpull.predict.terms.algorithms import ALGORITHMS, halving_doubling, ring, tree, two_level


def ring_messages(ranks: int, hosts: int) -> tuple[int, float]:
    """Hops in turn between hosts, and the share of the data over the busiest link between two hosts, by counting."""
    host = [rank * hosts // ranks for rank in range(ranks)]
    carried = dict.fromkeys(range(hosts), 0.0)
    for _ in range(2 * (ranks - 1)):
        for rank in range(ranks):
            if host[rank] != host[(rank + 1) % ranks]:
                carried[host[rank]] += 1 / ranks
    return 2 * (ranks - 1), max(carried.values())


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 2), (4, 2), (8, 4), (6, 3), (16, 16)])
def test_a_ring_is_what_its_messages_add_up_to(ranks: int, hosts: int) -> None:
    cost = ring(ranks, hosts)
    hops, carried = ring_messages(ranks, hosts)
    assert cost.hops_local + cost.hops_network == hops
    assert cost.bytes_network == pytest.approx(carried)
    assert cost.bytes_local == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS.values())
def test_one_rank_exchanges_nothing(algorithm) -> None:
    cost = algorithm(1, 1)
    assert (cost.hops_local, cost.hops_network, cost.bytes_local, cost.bytes_network) == (0, 0, 0, 0)


def test_bytes_saturate_and_only_rings_have_hops_in_proportion_to_ranks() -> None:
    for name, algorithm in ALGORITHMS.items():
        small, large = algorithm(64, 64), algorithm(16_384, 16_384)
        assert large.bytes_network <= 2 + 2e-9, name
        grown = large.hops_network / small.hops_network
        assert grown > 250 if name in {"ring", "two-level"} else grown <= 14 / 6, name


def test_two_levels_carry_what_two_rings_do() -> None:
    cost = two_level(8, 2)
    assert (cost.bytes_local, cost.bytes_network) == (ring(4, 1).bytes_local, ring(2, 2).bytes_network)
    assert tree(8, 2).hops_network == 2
    assert halving_doubling(8, 8).hops_network == 6
