"""Which CPUs a rank gets: its own, equal shares, and with ``numa`` all on one memory node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.observe.affinity import by_node, numbers, ranges, share, share_of_node


def machine(folder: Path, *cpulists: str) -> str:
    """A sysfs tree of memory nodes with these CPUs, among the other things that stand there."""
    folder.mkdir()
    for number, cpulist in enumerate(cpulists):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}/cpulist").write_text(f"{cpulist}\n")
    (folder / "has_cpu").write_text("0\n")
    (folder / "power").mkdir()
    return str(folder)


def test_two_sockets_with_hyper_threads_as_the_kernel_numbers_them(tmp_path):
    """A common host of 2 × 4 cores: siblings 0 and 8 are one core, so a node is 0-3 and 8-11."""
    folder = machine(tmp_path / "node", "0-3,8-11", "4-7,12-15")
    nodes = by_node(range(16), folder)
    assert nodes == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert [ranges(share_of_node(nodes, rank, 4)) for rank in range(4)] == ["0-3", "8-11", "4-7", "12-15"]
    assert [ranges(share_of_node(nodes, rank, 1)) for rank in range(1)] == ["0-3,8-11"]


def test_nodes_are_in_the_order_of_their_numbers(tmp_path):
    """Sub-NUMA clusters make more than ten, and node10 is not the second."""
    folder = machine(tmp_path / "node", *(str(cpu) for cpu in range(12)))
    assert by_node(range(12), folder) == [[cpu] for cpu in range(12)]


def test_what_a_queue_gave_us_is_what_is_divided(tmp_path):
    """CPUs 6-9 of two nodes; and a node of memory alone, as HBM and CXL have."""
    folder = machine(tmp_path / "node", "0-7", "8-15", "")
    assert by_node([6, 7, 8, 9], folder) == [[6, 7], [8, 9]]
    assert by_node([9, 8], folder) == [[8, 9]]


@pytest.mark.parametrize("cpulists", [(), ("0-1",), ("0-1", "nonsense"), ("0-1", "2-3-4")])
def test_where_the_system_does_not_say_all_cpus_are_one_node(tmp_path, cpulists):
    """No sysfs in a container, a CPU that stands nowhere, or a text that is no list."""
    assert by_node([3, 0, 2, 1], machine(tmp_path / "node", *cpulists)) == [[0, 1, 2, 3]]


@given(st.integers(1, 64), st.integers(1, 16))
def test_on_one_node_it_is_the_same_as_cores(cpus, ranks):
    for rank in range(ranks):
        assert share_of_node([range(cpus)], rank, ranks) == share(range(cpus), rank, ranks)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 24))
def test_every_rank_stays_on_one_node_and_ranks_are_spread_evenly(sizes, ranks):
    nodes, first = [], 0
    for size in sizes:
        nodes.append(list(range(first, first + size)))
        first += size
    given_to = [share_of_node(nodes, rank, ranks) for rank in range(ranks)]
    homes = [next(place for place, node in enumerate(nodes) if set(mine) <= set(node)) for mine in given_to]
    assert homes == sorted(homes)
    counts = [homes.count(home) for home in set(homes)]
    assert max(counts) - min(counts) <= 1
    assert len(set(homes)) == min(ranks, len(nodes))
    for home in set(homes):
        mine = [cpu for where, cpus in zip(homes, given_to, strict=True) if where == home for cpu in cpus]
        assert len(mine) == len(set(mine)) or homes.count(home) > len(nodes[home])


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_is_read_back(cpus):
    assert numbers(ranges(sorted(cpus))) == sorted(cpus)


@pytest.mark.parametrize("kind", ["none", "cores", "numa"])
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds nothing")
def test_a_process_is_really_bound(kind):
    """The second of two ranks of this host; what it may use afterwards is asked of the kernel."""
    program = "import os, sys; from allpull.observe.affinity import bind; bind(sys.argv[1], 1, 2)"
    program += "; print(*sorted(os.sched_getaffinity(0)))"
    done = subprocess.run([sys.executable, "-c", program, kind], capture_output=True, text=True, check=True)
    ours = sorted(os.sched_getaffinity(0))
    nodes = {"none": None, "cores": [ours], "numa": by_node(ours)}[kind]
    assert [int(cpu) for cpu in done.stdout.split()] == (ours if nodes is None else share_of_node(nodes, 1, 2))
