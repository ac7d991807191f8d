"""A container's quota of CPU time bounds the threads that nobody asked for, in each way the kernel may tell it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.data.loader.pool import MAX_THREADS, default_threads
from allpull.kernel import Tree, usable_cpus

CPUS = 12
V2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 23 0:28 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve CPUs, of which no mask takes any away."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CPUS)), raising=False)


def plant(root: Path, files: dict[str, str]) -> Tree:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Tree(str(root))


def container(root: Path, cpu_max: str) -> Tree:
    """As a container of cgroup v2 sees itself: its own group is the root of all."""
    files = {"proc/self/mountinfo": V2, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": cpu_max}
    return plant(root, files)


@pytest.mark.parametrize(
    ("cpu_max", "ranks", "bound", "threads"),
    [
        ("max 100000", 1, False, 12),  # no limit
        ("400000 100000", 1, False, 4),
        ("400000 100000", 2, False, 2),
        ("250000 100000", 1, False, 2),  # a third thread would be throttled
        ("50000 100000", 1, False, 1),  # half a CPU is one thread nevertheless
        ("400000 100000", 8, False, 1),
        ("2400000 100000", 1, False, 12),  # more than there are
        ("2400000 100000", 4, False, 3),
        ("400000 100000", 2, True, 2),  # the mask is the rank's own, the quota is not
        ("max 100000", 2, True, 12),
    ],
)
def test_ranks_share_the_quota_of_their_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, ranks: int, bound: bool, threads: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert default_threads(bound=bound, tree=container(tmp_path, cpu_max)) == threads


def test_the_least_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/cpu.max": "800000 100000",
        "sys/fs/cgroup/job/cpu.max": "300000 100000",
    }
    assert usable_cpus(plant(tmp_path, files)) == 3


def test_version_1_says_it_in_two_files(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/cpu.cfs"
    files = {
        "proc/self/mountinfo": V1,
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/ab\n",
        f"{group}_quota_us": "250000",
        f"{group}_period_us": "100000",
    }
    assert usable_cpus(plant(tmp_path, files)) == 2
    (tmp_path / f"{group}_quota_us").write_text("-1")
    assert usable_cpus(Tree(str(tmp_path))) == CPUS


def test_without_proc_there_is_no_limit(tmp_path: Path) -> None:
    assert usable_cpus(Tree(str(tmp_path / "nothing"))) == CPUS


@given(
    mounts=st.text() | st.just(V2),
    groups=st.text() | st.sampled_from(["0::/\n", "0::/../../etc\n", "0::/a\0b\n", "0::" + "/x" * 200]),
    cpu_max=st.text() | st.from_regex(r"-?[0-9]{1,20} -?[0-9]{1,20}", fullmatch=True),
)
def test_whatever_the_files_say_there_is_a_thread_and_none_too_many(
    tmp_path_factory: pytest.TempPathFactory, mounts: str, groups: str, cpu_max: str
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for path, text in (
        ("proc/self/mountinfo", mounts),
        ("proc/self/cgroup", groups),
        ("sys/fs/cgroup/cpu.max", cpu_max),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode("utf-8", "replace"))
    tree = Tree(str(root))
    assert 1 <= usable_cpus(tree) <= CPUS
    assert 1 <= default_threads(tree=tree) <= min(CPUS, MAX_THREADS)
