"""The sidecar counts what the ranks of a real process tree do, and ends with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from allpull.kernel import Tree, WatchedProcess
from allpull.observe.sidecar.gpus import Gpus
from allpull.observe.sidecar.host_counters import infiniband
from allpull.observe.sidecar.process_tree import ProcessTree
from allpull.observe.sidecar.rank_registry import RankRegistry, rank_by_variables
from allpull.rundir import layout
from allpull.rundir.job_file import JOB_VARIABLE
from allpull.schema.base import tag
from allpull.schema.counters import CounterSample, CountersHeader, GpuCounters, RankCounters

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
    deadline_s = time.monotonic() + 120
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
    assert agent.wait(timeout=120) == 0
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout, stderr) == (0, "", "")
    return records(run)


def test_the_header_says_what_follows(watched: tuple[CountersHeader, list[CounterSample]]) -> None:
    header, samples = watched
    assert (header.schema_, header.host, header.interval_ns) == (tag("counters"), "node 1", 50_000_000)
    assert header.clock.monotonic_ns <= samples[0].t_ns
    assert header.marks_last
    assert [sample.last for sample in samples] == [False] * (len(samples) - 1) + [True]


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
        process.send_signal(signal.SIGUSR1)  # a warning, which is for the ranks
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        _, stderr = process.communicate(timeout=120)
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
    assert process.wait(timeout=120) == 0
    watched.wait()
    assert len(records(tmp_path)[1]) == 2


def test_nothing_to_watch_is_no_fault(tmp_path: Path) -> None:
    gone = sleeper()
    gone.kill()
    gone.wait()
    process = sidecar(tmp_path, gone.pid)
    assert process.wait(timeout=120) == 0
    assert records(tmp_path)[1][-1].ranks == {}


def test_a_full_disk_ends_it_with_one_line(tmp_path: Path) -> None:
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "0.01", python=(sys.executable, "-c", LIMITED))
    try:
        _, stderr = process.communicate(timeout=120)
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
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, path.read_text()) == (1, "taken\n")
    assert stderr.count("\n") == 1


@pytest.mark.slow
def test_the_file_stays_within_its_budget(tmp_path: Path) -> None:
    budget = 20_000
    watched = sleeper()
    process = sidecar(tmp_path, watched.pid, "--interval-s", "0.01", "--budget", str(budget))
    path = tmp_path / "counters" / "node-1.jsonl"
    wait_until(lambda: path.exists() and path.stat().st_size > 0.6 * budget)
    time.sleep(0.2)
    watched.kill()
    watched.wait()
    _, stderr = process.communicate(timeout=120)
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
    tree = ProcessTree(agent.pid)
    try:
        assert tree.ranks() == {}
        assert agent.stdin is not None
        agent.stdin.write("go\n")
        agent.stdin.flush()
        wait_until(lambda: "4" in tree.ranks())
        assert tree.ranks()["4"]["processes"] == 1
    finally:
        for child in tree._processes().values():
            child.kill()
        agent.wait(timeout=120)
    assert tree.ranks()["4"]["processes"] == 0
    assert not WatchedProcess(agent.pid).is_alive()


# Who is a rank


@pytest.mark.parametrize(
    ("environ", "above", "rank"),
    [
        ({"RANK": "3"}, {}, 3),
        ({"RANK": "3"}, {"RANK": "3"}, 3),
        ({"RANK": "_______"}, {}, None),
        ({"RANK": "12345678"}, {}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, {}, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, {}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}, {}, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, {}, None),  # the script of a job
        ({"PMI_RANK": "\u00b2", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, {}, None),
        ({"PMI_RANK": "9" * 5000, "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, {}, None),
        ({}, {}, None),
    ],
)
def test_what_starts_ranks_says_who_is_one(environ: dict[str, str], above: dict[str, str], rank: int | None) -> None:
    assert rank_by_variables(environ, above) == rank
    assert rank_by_variables({**environ, JOB_VARIABLE: "job/spec.json"}, above) is None  # it would say so itself


def test_helpers_of_an_agent_that_srun_started_are_no_ranks() -> None:
    task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    assert rank_by_variables(task, task) is None
    assert rank_by_variables({**task, "RANK": "0"}, task) == 0


def say(run: Path, pid: int, rank: int | None, host: str = "node 1") -> None:
    path = run / layout.process_file(host, pid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "host": host, "rank": rank, "reason": None if rank is not None else "no"}))


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a process under the hook of the job in ``tmp_path``, with variables of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str = "pass", **variables: str) -> subprocess.Popen[str]:
        environ = {**os.environ, JOB_VARIABLE: str(tmp_path / layout.SPEC), **variables}
        script = f"import os, sys, time; {code}; print('on', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-S", "-c", script], env=environ, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_who_says_so_is_a_rank_and_no_launcher_is(tmp_path, hooked) -> None:
    """As under mp.spawn, or srun: the ranks need not be below the process that is watched."""
    variables = {"RANK": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    launcher, elsewhere = hooked(**variables), sleeper()
    rank = hooked("worker = os.fork(); worker or time.sleep(60)", **variables)
    tree = ProcessTree(elsewhere.pid, RankRegistry(str(tmp_path), "node 1"))
    try:
        assert tree.ranks() == {}
        say(tmp_path, rank.pid, 1)
        say(tmp_path, launcher.pid, None)
        ranks = tree.ranks()
        assert set(ranks) == {"1"}
        assert ranks["1"]["processes"] == 2  # it and its worker
    finally:
        for process in tree._processes().values():
            process.kill()
        elsewhere.kill()
        elsewhere.wait()
    rank.wait(timeout=120)
    wait_until(lambda: tree.ranks()["1"]["processes"] == 0)


def test_a_rank_that_is_watched_itself_has_its_workers(tmp_path, hooked) -> None:
    """As where the command is one process, or the first rank of a host started the sidecar."""
    rank = hooked("worker = os.fork(); worker or time.sleep(60)")
    say(tmp_path, rank.pid, 0)
    tree = ProcessTree(rank.pid, RankRegistry(str(tmp_path), "node 1"))
    try:
        assert [tree.ranks()["0"]["processes"] for _ in range(3)] == [2, 2, 2]
    finally:
        for process in tree._processes().values():
            process.kill()


def test_a_helper_that_becomes_a_rank_is_its_own(tmp_path, hooked) -> None:
    parent = hooked("child = os.fork(); child or time.sleep(60)")
    tree = ProcessTree(1 << 30, RankRegistry(str(tmp_path), "node 1"))
    say(tmp_path, parent.pid, 0)
    assert tree.ranks()["0"]["processes"] == 2
    (child,) = psutil.Process(parent.pid).children()
    try:
        say(tmp_path, child.pid, 1)
        assert {rank: figures["processes"] for rank, figures in tree.ranks().items()} == {"0": 1, "1": 1}
    finally:
        child.kill()


def test_who_is_of_another_job_or_host_is_not_ours(tmp_path, hooked) -> None:
    other_job = hooked(**{JOB_VARIABLE: str(tmp_path / "other/job/spec.json")})
    no_job, here = sleeper(), hooked()
    say(tmp_path, other_job.pid, 0)
    say(tmp_path, no_job.pid, 1)  # the id of a rank that ended, say, in the hands of another process
    say(tmp_path, here.pid, 2, host="node")
    say(tmp_path, here.pid, 3, host="node 1 2")
    try:
        assert ProcessTree(1 << 30, RankRegistry(str(tmp_path), "node 1")).ranks() == {}
    finally:
        no_job.kill()
        no_job.wait()


def test_files_that_hold_nonsense_are_nobodys(tmp_path: Path) -> None:
    folder = tmp_path / layout.PROCESSES
    folder.mkdir(parents=True)
    for pid, text in enumerate(["", "[]", "[" * 100_000, '{"pid": -1, "rank": 0}', '{"pid": true, "rank": 0}'], 1):
        (folder / f"node-1-{pid}.json").write_text(text)
    (folder / "node-1-7.json.99.tmp").write_text('{"pid": 7, "rank": 0, "host": "node 1"}')
    (folder / "node-1-8.json").mkdir()
    assert RankRegistry(str(tmp_path), "node 1").news() == {}


def test_a_file_is_heard_once_whenever_it_comes(tmp_path: Path) -> None:
    registry = RankRegistry(str(tmp_path), "node 1")
    assert registry.news() == {}
    for pid in (11, 12, 13):
        for _ in range(pid - 10):  # more and fewer readers in between
            assert registry.news() == {}
        say(tmp_path, pid, pid - 11)
        assert registry.news() == {pid: pid - 11}


# Accelerators and other networks


class Nvml:
    """NVML as nvidia-ml-py shows it, of a host with two devices: an old one, and one that fell off the bus."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver: bool = True) -> None:
        self.driver = driver

    def nvmlInit(self) -> None:  # noqa: N802  its name
        if not self.driver:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index == 1:
            raise self.NVMLError
        return "device"

    def nvmlDeviceGetUtilizationRates(self, _: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, _: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=16 << 30, used=3 << 30, free=13 << 30)

    def nvmlDeviceGetClockInfo(self, _: str, kind: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1410}[kind]

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:  # noqa: N802
        return 71_500

    def nvmlDeviceGetTotalEnergyConsumption(self, _: str) -> int:  # noqa: N802
        raise self.NVMLError  # not before Volta

    def nvmlDeviceGetTemperature(self, _: str, sensor: int) -> int:  # noqa: N802
        return {self.NVML_TEMPERATURE_GPU: 55}[sensor]

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "555.1"


def test_accelerators_are_told_in_si_units_and_what_they_lack_is_left_out() -> None:
    """With a stand-in for NVML: this test has not run on an accelerator."""
    gpus = Gpus(Nvml())
    assert gpus.sources() == ["NVML, driver 555.1"]
    assert gpus.look() == {
        "0": {
            "busy_share": 0.87,
            "memory_used_bytes": 3 << 30,
            "clock_hz": 1_410_000_000,
            "power_w": 71.5,
            "temperature_c": 55.0,
        }
    }
    GpuCounters.model_validate(gpus.look()["0"], strict=True)


def test_no_driver_is_no_fault() -> None:
    gpus = Gpus(Nvml(driver=False))
    assert (gpus.sources(), gpus.look()) == ([], {})


def test_infiniband_counts_in_words_of_four_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    folder.mkdir(parents=True)
    (folder / "port_rcv_data").write_text("250\n")
    (folder / "port_xmit_data").write_text("1000\n")
    (tmp_path / "sys/class/infiniband/mlx5_1/ports/1").mkdir(parents=True)
    assert infiniband(Tree(str(tmp_path))) == {"mlx5_0/1": {"received_bytes": 1000, "sent_bytes": 4000}}
