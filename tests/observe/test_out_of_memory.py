"""An OOM kill is named by the kernel's own counter, of either version of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.kernel import Tree, memory_limit, oom_kills
from allpull.observe.out_of_memory import OomKills

V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "proc/self/mountinfo": "30 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/job/memory.max": "2147483648\n",
    "sys/fs/cgroup/job/memory.events": "low 0\noom 9\noom_kill 9\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.events": "low 0\nhigh 7\nmax 5\noom 4\noom_kill 3\noom_group_kill 0\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/job\n0::/\n",
    "proc/self/mountinfo": "29 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "30 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2147483648\n",
    "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
}
COUNTERS = {2: "sys/fs/cgroup/job/step/memory.events", 1: "sys/fs/cgroup/memory/job/memory.oom_control"}


@pytest.mark.parametrize(("version", "files"), [(2, V2), (1, V1)])
def test_kills_since_the_begin_are_named_with_the_limit(version: int, files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tree = Tree(str(tmp_path))
    assert (oom_kills(tree), memory_limit(tree)) == (3, 2 << 30)
    kills = OomKills(tree)
    assert kills.sentence("n1") is None
    counter = tmp_path / COUNTERS[version]
    counter.write_text(counter.read_text().replace("oom_kill 3", "oom_kill 5"))
    said = "on n1 the kernel's OOM killer ended 2 processes of the job's control group, which has a limit of 2 GiB"
    assert kills.sentence("n1") == said
    for limit in tmp_path.rglob("memory.*max"), tmp_path.rglob("memory.limit_in_bytes"):
        for path in limit:
            path.unlink()
    assert kills.sentence("n1") == said.replace("a limit of 2 GiB", "no limit")


def test_a_kernel_that_counts_nothing_blames_nobody(tmp_path: Path) -> None:
    assert oom_kills(Tree(str(tmp_path))) is None
    assert OomKills(Tree(str(tmp_path))).sentence("n1") is None
