"""The sidecar counts what the ranks of a real process tree do, and ends with them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from allpull.observe.family import Family
from allpull.schema.base import tag
from allpull.schema.counters import CounterSample, CountersHeader, RankCounters

pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's I/O accounting")

MIB = 1 << 20
FILE_BYTES = 8 * MIB
SLACK_BYTES = 4 * MIB  # a bare Python reads its own library, some hundred kB; half of FILE_BYTES tells it from a file

RANK = """
import os, sys, threading, time
big, helper_may_end, may_end = sys.argv[1:]
def read():
    with open(big, "rb") as file:
        while file.read(1 << 20):
            pass
def wait(flag):
    while not os.path.exists(flag):
        time.sleep(0.02)
for _ in range(3):
    threading.Thread(target=wait, args=(may_end,)).start()
if os.environ["RANK"] == "1":
    read()
helper = os.fork()
if helper == 0:
    read()
    wait(helper_may_end)
    os._exit(0)
os.waitpid(helper, 0)
with open(os.devnull, "wb") as sink:
    sink.write(bytes(1 << 20))
wait(may_end)
"""

AGENT = """
import os, subprocess, sys
python = [sys.executable, "-S", "-c"]
ranks = [subprocess.Popen([*python, *sys.argv[1:]], env={**os.environ, "RANK": rank}) for rank in ("0", "1")]
subprocess.run([*python, "import sys; open(sys.argv[1], 'rb').read()", sys.argv[2]])
for rank in ranks:
    rank.wait()
"""

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def sidecar(run: Path, pid: int, *options: str, python: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
    command = ["-m", "allpull.observe.sidecar", "--run", str(run), "--host", "node 1", "--watch", str(pid)]
    return subprocess.Popen([*python, *command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def records(run: Path) -> tuple[CountersHeader, list[CounterSample]]:
    header, *lines = (run / "counters" / "node-1.jsonl").read_text().splitlines()
    return CountersHeader.model_validate_json(header), [CounterSample.model_validate_json(line) for line in lines]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def wait_for_first_sample(run: Path) -> None:
    path = run / "counters" / "node-1.jsonl"
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= 2)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[CountersHeader, list[CounterSample]]:
    """What a sidecar recorded of an agent with two ranks, each of which had a helper."""
    run = tmp_path_factory.mktemp("run")
    big, helper_may_end, may_end = run / "big", run / "helper", run / "end"
    big.write_bytes(bytes(FILE_BYTES))
    agent = subprocess.Popen([sys.executable, "-S", "-c", AGENT, RANK, str(big), str(helper_may_end), str(may_end)])
    process = sidecar(run, agent.pid, "--interval-s", "0.05")
    wait_for_first_sample(run)

    def processes() -> list[int]:
        return [figures.processes for figures in records(run)[1][-1].ranks.values()]

    try:
        wait_until(lambda: processes() == [2, 2])
        helper_may_end.touch()
        wait_until(lambda: processes() == [1, 1])
    finally:
        helper_may_end.touch()
        may_end.touch()
    assert agent.wait(timeout=30) == 0
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, "", "")
    return records(run)


def test_the_header_says_what_follows(watched: tuple[CountersHeader, list[CounterSample]]) -> None:
    header, samples = watched
    assert (header.schema_, header.host, header.interval_ns) == (tag("counters"), "node 1", 50_000_000)
    assert header.clock.monotonic_ns <= samples[0].t_ns


def test_what_ranks_and_their_helpers_read_is_counted_once(
    watched: tuple[CountersHeader, list[CounterSample]],
) -> None:
    last = watched[1][-1]
    assert set(last.ranks) == {"0", "1"}  # the agent and its other child are no ranks
    for rank, files in (("0", 1), ("1", 2)):
        read_bytes = last.ranks[rank].read_bytes
        assert read_bytes is not None
        assert files * FILE_BYTES <= read_bytes < files * FILE_BYTES + SLACK_BYTES
        assert (last.ranks[rank].read_calls or 0) >= files * FILE_BYTES // MIB
        assert MIB <= (last.ranks[rank].write_bytes or 0) < 2 * MIB


def test_what_grows_never_falls(watched: tuple[CountersHeader, list[CounterSample]]) -> None:
    _, samples = watched
    grows = sorted(set(RankCounters.model_fields) - {"processes", "threads", "memory_bytes"})
    for before, after in pairwise(samples):
        assert before.t_ns < after.t_ns
        assert (before.cpu_ns or 0) <= (after.cpu_ns or 0)
        for rank, figures in before.ranks.items():
            for name in grows:
                assert getattr(figures, name) <= getattr(after.ranks[rank], name)
        for nic, counts in before.nics.items():
            assert counts.received_bytes <= after.nics[nic].received_bytes


def test_helpers_and_threads_are_seen_while_they_live(watched: tuple[CountersHeader, list[CounterSample]]) -> None:
    _, samples = watched
    ranks = [figures for sample in samples for figures in sample.ranks.values()]
    assert max(figures.processes for figures in ranks) == 2
    assert max(figures.threads or 0 for figures in ranks) == 5  # four of the rank and one of its helper
    assert max(figures.memory_bytes or 0 for figures in ranks) > MIB
    assert samples[-1].ranks["0"].processes == 0


def test_the_host_is_sampled_too(watched: tuple[CountersHeader, list[CounterSample]]) -> None:
    last = watched[1][-1]
    assert last.cpu_ns
    assert last.idle_ns
    assert last.memory_used_bytes
    assert last.load_1min is not None
    assert last.nics


def test_sigterm_ends_it_with_a_last_sample_and_ctrl_c_does_not(tmp_path: Path) -> None:
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "3600")
    try:
        wait_for_first_sample(tmp_path)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        _, stderr = process.communicate(timeout=20)
    finally:
        watched.kill()
        watched.wait()
    assert (process.returncode, stderr) == (0, "")
    assert len(records(tmp_path)[1]) == 2


def test_it_ends_soon_after_the_process_that_it_watches(tmp_path: Path) -> None:
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "3600")
    wait_for_first_sample(tmp_path)
    watched.kill()  # and not reaped yet: a zombie has ended
    assert process.wait(timeout=20) == 0
    watched.wait()
    assert len(records(tmp_path)[1]) == 2


def test_nothing_to_watch_is_no_fault(tmp_path: Path) -> None:
    gone = sleeper()
    gone.kill()
    gone.wait()
    process = sidecar(tmp_path, gone.pid)
    assert process.wait(timeout=20) == 0
    assert records(tmp_path)[1][-1].ranks == {}


def test_a_full_disk_ends_it_with_one_line(tmp_path: Path) -> None:
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "0.01", python=(sys.executable, "-c", LIMITED))
    try:
        _, stderr = process.communicate(timeout=20)
    finally:
        watched.kill()
        watched.wait()
    assert process.returncode == 1
    assert stderr.startswith("allpull sidecar: counters end: ")
    assert stderr.count("\n") == 1


def test_a_file_of_another_writer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "counters" / "node-1.jsonl"
    path.parent.mkdir()
    path.write_text("taken\n")
    process = sidecar(tmp_path, 1)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, path.read_text()) == (1, "taken\n")
    assert stderr.count("\n") == 1


def test_the_file_stays_within_its_budget(tmp_path: Path) -> None:
    budget = 20_000
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "0.01", "--budget", str(budget))
    path = tmp_path / "counters" / "node-1.jsonl"
    wait_until(lambda: path.exists() and path.stat().st_size > 0.6 * budget)
    time.sleep(0.2)
    watched.kill()
    watched.wait()
    _, stderr = process.communicate(timeout=20)
    _, samples = records(tmp_path)
    assert path.stat().st_size <= budget
    assert "is kept from now on" in stderr
    assert len(samples) > 3


def test_a_process_without_a_rank_is_followed_once_it_has_one() -> None:
    """Between fork and exec a rank shows the environment of its agent."""
    script = "import os, sys, time; sys.stdin.readline(); os.execve(sys.argv[1], sys.argv[1:], {'RANK': '4'})"
    agent = subprocess.Popen(
        ["sh", "-c", '"$0" -S -c "$1" /bin/sleep 60; true', sys.executable, script], stdin=subprocess.PIPE, text=True
    )
    family = Family(agent.pid)
    try:
        assert family.ranks() == {}
        assert agent.stdin is not None
        agent.stdin.write("go\n")
        agent.stdin.flush()
        wait_until(lambda: "4" in family.ranks())
        assert family.ranks()["4"]["processes"] == 1
    finally:
        for child in family._family().values():
            child.kill()
        agent.wait(timeout=20)
    assert family.ranks()["4"]["processes"] == 0
    assert not family.alive()
