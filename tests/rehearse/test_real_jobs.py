"""Whole rehearsals: real ranks on virtual hosts, their faults, their end, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.errors import BadInput, MissingPart
from allpull.launch.job import prepare, prospect
from allpull.rehearse import machine_check
from allpull.rehearse.cluster.file import load_cluster
from allpull.rehearse.host import fake_clock, ownership
from allpull.rehearse.host.network import TCP_RETRIES, payload_bytes_per_s
from allpull.rehearse.launcher import Rehearse
from allpull.schema.spec import LaunchSpec, RunSpec

needs_hosts = [pytest.mark.root, pytest.mark.ranks, pytest.mark.usefixtures("leaves_nothing")]

MBIT = 50
ELEMENTS = 125_000
SLOWER = 0.25
THROTTLED_S = 2.0
OFFSET_S = 5.0
TWO_HOSTS = f"""
[cluster]
name = "two-by-two"
hosts = 2
ranks_per_host = 2
link = "{MBIT * 10} Mbit/s"
shrink = 10

[[faults]]
kind = "slow-link"
host = 1
factor = {SLOWER}
from_s = {THROTTLED_S}
"""
DRIFT_PPM = 2000.0
LATE = f'[[faults]]\nkind = "clock-offset"\nhost = 1\noffset = "{OFFSET_S} s"\ndrift_ppm = {DRIFT_PPM}\n'

SLOW_RANK = '[[faults]]\nkind = "slow-rank"\nrank = 1\ndelay = "5 ms"\n'

FACTS = f"""
import json, os, random, socket, sys, time
import psutil, torch
import torch.distributed as dist
from allpull import marks

dist.init_process_group("gloo")
values = torch.ones({ELEMENTS})

def all_reduces(count):
    times = []
    for _ in range(count):
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(values)
        times.append(time.monotonic() - start)
        values.fill_(1.0)
        marks.step(1)
    return times

began_ns = time.monotonic_ns()
before = all_reduces(5)
time.sleep({THROTTLED_S} + 0.5)
slow_ns = time.monotonic_ns()
after = all_reduces(2)
one = torch.ones(1)
dist.all_reduce(one)
print(json.dumps({{
    "rank": int(os.environ["RANK"]), "local_rank": int(os.environ["LOCAL_RANK"]),
    "host": socket.gethostname(), "sum": one.item(), "before": before, "after": after,
    "addresses": [a.address for a in psutil.net_if_addrs()["eth0"] if a.family == socket.AF_INET],
    "names": [socket.gethostbyname(name) for name in ("node1", "node2")],
    "began_ns": began_ns, "slow_ns": slow_ns,
    "now_ns": time.monotonic_ns(), "ahead": time.time() - time.monotonic(), "draw": random.random(),
    "threads": os.environ["OMP_NUM_THREADS"], "retries": open("/proc/sys/net/ipv4/tcp_retries2").read().strip(),
    "job": sorted(json.load(open(sys.argv[1]))), "tag": os.environ["{ownership.TAG}"],
}}))
dist.destroy_process_group()
"""


def told(directory: Path, ranks: int = 4) -> list[dict[str, Any]]:
    logs = [(directory / f"job/logs/rank-{rank:05d}.log").read_text() for rank in range(ranks)]
    return [json.loads(log.splitlines()[-1]) for log in logs]


def alive(cluster: str) -> list[int]:
    """Processes that carry the id of a virtual cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{ownership.TAG}={cluster}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def facts(rehearsed):
    """A rehearsal of two hosts, one with a link that gets slower, and where possible with a wrong clock."""
    text = TWO_HOSTS + (LATE if fake_clock.library() else "")
    record, job = rehearsed(text, FACTS, counters=True)
    assert record.status == "completed", (job.directory / "job/logs/cluster.log").read_text()
    return record, job, told(job.directory)


def check_places(ranks: list[dict[str, Any]]) -> None:
    assert [one["rank"] for one in ranks] == [0, 1, 2, 3]
    assert [one["local_rank"] for one in ranks] == [0, 1, 0, 1]
    assert [one["host"] for one in ranks] == ["node1", "node1", "node2", "node2"]
    assert [one["addresses"] for one in ranks] == [["10.77.0.1"]] * 2 + [["10.77.0.2"]] * 2
    assert all(one["names"] == ["10.77.0.1", "10.77.0.2"] for one in ranks)
    assert {one["sum"] for one in ranks} == {4.0}
    assert {one["threads"] for one in ranks} == {"1"}
    assert {one["retries"] for one in ranks} == {str(TCP_RETRIES)}
    assert len({one["draw"] for one in ranks}) == 4


def check_speed(ranks: list[dict[str, Any]]) -> None:
    """2(N-1)/N · S/B, coarsely; the table of ``benchmarks/allreduce_table.py`` is the precise one."""
    ideal_s = 2 * 3 / 4 * ELEMENTS * 4 / payload_bytes_per_s(MBIT * 1e6)
    before_s, after_s = (
        statistics.median(map(max, zip(*(one[when] for one in ranks), strict=True))) for when in ("before", "after")
    )
    assert before_s == pytest.approx(ideal_s, rel=0.25)
    assert after_s == pytest.approx(ideal_s / SLOWER, rel=0.25)


def check_records(directory: Path) -> None:
    for name, own in (("node1", {"0", "1"}), ("node2", {"2", "3"})):
        host = json.loads((directory / f"hosts/{name}.json").read_text())
        assert host["host"] == name
        assert host["nics"] == [{"name": "eth0", "bits_per_s": MBIT * 10**6}]
        samples = [json.loads(line) for line in (directory / f"counters/{name}.jsonl").read_text().splitlines()[1:]]
        assert set(samples[-1]["ranks"]) == own
        assert samples[-1]["nics"]["eth0"]["sent_bytes"] > 5 * ELEMENTS * 4
        ended = json.loads((directory / f"job/ended/{name}.json").read_text())
        assert (ended["code"], ended["failures"]) == (0, [])
    steps = [directory / f"steps/rank-{rank:05d}.jsonl" for rank in range(4)]
    assert [json.loads(path.read_text().splitlines()[0])["host"] for path in steps] == ["node1"] * 2 + ["node2"] * 2
    assert [len(path.read_text().splitlines()) for path in steps] == [1 + 7] * 4


def check_secrets(directory: Path) -> None:
    truth = directory / "truth.json"
    assert truth.stat().st_mode & 0o777 == 0o600
    assert json.loads(truth.read_text())["faults"][0]["kind"] == "slow-link"
    assert "nonce" not in json.loads((directory / "job/spec.json").read_text())


def check_moments(directory: Path, ranks: list[dict[str, Any]]) -> None:
    """The truth has the moments of what was planted, on the clock of the ranks."""
    moments = json.loads((directory / "truth.json").read_text())["moments"]
    zero_ns, (struck,) = moments["zero"]["monotonic_ns"], moments["struck"]
    assert moments["zero"]["of"] == "first-step"
    assert max(one["began_ns"] for one in ranks) < zero_ns
    assert (struck["kind"], struck["host"]) == ("slow-link", 1)
    assert struck["rate_bytes_per_s"] == SLOWER * MBIT * 1e6 / 8
    assert THROTTLED_S <= (struck["monotonic_ns"] - zero_ns) / 1e9 < THROTTLED_S + 1
    assert struck["monotonic_ns"] < min(one["slow_ns"] for one in ranks)
    if fake_clock.library():
        (known,) = moments["clocks"]
        assert known["host"] == "node2"
        for one in ranks[2:]:
            since_s = (one["now_ns"] - known["monotonic_ns"]) / 1e9
            ahead_s = known["ahead_ns"] / 1e9 + DRIFT_PPM / 1e6 * since_s
            here_s = time.time() - time.monotonic()
            assert one["ahead"] - here_s == pytest.approx(ahead_s, abs=2e-3)


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.ranks
def test_a_rehearsal_from_end_to_end(facts, tmp_path):
    """One rehearsal, looked at from all sides, because each costs seconds."""
    record, job, ranks = facts
    assert record.hosts == ["node1", "node2"]
    check_places(ranks)
    check_speed(ranks)
    check_records(job.directory)
    check_secrets(job.directory)
    check_moments(job.directory, ranks)
    assert {"directory", "spec", "options"} <= set(ranks[0]["job"])
    if fake_clock.library():
        here = time.time() - time.monotonic()
        off = [one["ahead"] - here for one in ranks]
        assert off == [pytest.approx(0.0, abs=0.05)] * 2 + [pytest.approx(OFFSET_S, abs=0.2)] * 2
    assert alive(ranks[0]["tag"]) == []


LOOP = """
import os, time
import torch
import torch.distributed as dist
from allpull import marks

dist.init_process_group("gloo")
print(os.environ["ALLPULL_CLUSTER"], flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    marks.step(1)
    time.sleep(0.01)
"""


class TestEndings:
    """How rehearsals end that do not end well."""

    pytestmark = needs_hosts

    def test_a_killed_rank_ends_the_job_and_is_named(self, rehearsed, capsys):
        """And the other fault, which was to strike later, is said to have been none."""
        text = TWO_HOSTS + '[[faults]]\nkind = "kill-rank"\nrank = 2\nfrom_s = 1.0\n'
        record, job = rehearsed(text, LOOP)
        moments = json.loads((job.directory / "truth.json").read_text())["moments"]
        (struck,) = moments["struck"]
        assert (struck["kind"], struck["rank"]) == ("kill-rank", 2)
        assert struck["monotonic_ns"] - moments["zero"]["monotonic_ns"] >= 0.9e9  # the host may see the zero first
        assert "before these faults were to strike: slow-link" in capsys.readouterr().err
        assert record.status == "failed"
        assert record.exit is not None
        assert (record.exit.rank, record.exit.host, record.exit.signal) == (2, "node2", "SIGKILL")
        assert record.exit.code == 128 + 9
        cluster = (job.directory / "job/logs/rank-00000.log").read_text().split()[0]
        assert alive(cluster) == []

    def test_an_exception_is_named_with_its_rank_and_the_other_hosts_ranks_are_ended(self, rehearsed):
        program = (
            "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such label')\ntime.sleep(300)\n"
        )
        began = time.monotonic()
        record, job = rehearsed(TWO_HOSTS, program)
        assert time.monotonic() - began < 250
        assert record.exit is not None
        assert (record.exit.code, record.exit.rank, record.exit.host) == (1, 1, "node1")
        assert record.exit.exception == "ValueError: no such label"
        ended = json.loads((job.directory / "job/ended/node2.json").read_text())
        assert (ended["code"], ended["failures"], ended["stopped_by"]) == (143, [], 15)

    def test_a_cluster_that_breaks_down_says_so(self, rehearsed):
        """Without torch no host ever stands; the log's last line is the reason."""
        record, _ = rehearsed(TWO_HOSTS, LOOP, more={"sitecustomize.py": NO_TORCH})
        assert record.status == "failed"
        assert record.exit is not None
        assert record.exit.rank is None
        assert "the virtual cluster broke down: " in record.exit.reason
        assert "no torch today" in record.exit.reason


NO_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("no torch today")
sys.meta_path.insert(0, Absent())
"""

OWNER = """
import sys
from pathlib import Path
from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.rehearse.launcher import Rehearse
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

launcher = Rehearse(Path(sys.argv[1]) / "cluster.toml")
spec = RunSpec(name="loop", launch=LaunchSpec(ranks=launcher.ranks, grace_s=2), observe=ObserveSpec())
job = prepare(spec, kind="run", module="program", command=["loop"], out=Path(sys.argv[1]) / "runs")
sys.exit(execute(job, launcher, lambda: None).exit.code)
"""


@pytest.fixture
def owner(tmp_path):
    """A process that runs an endless rehearsal, with its ranks in their loop, and the id of its cluster."""
    (tmp_path / "cluster.toml").write_text('[cluster]\nhosts = 2\nlink = "100 Mbit/s"\n')
    (tmp_path / "program.py").write_text(LOOP)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    logs: list[Path] = []
    while time.monotonic() < deadline and process.poll() is None:
        logs = [path for path in tmp_path.glob("runs/*/job/logs/rank-*.log") if path.stat().st_size > 32]
        if len(logs) == 2:
            break
        time.sleep(0.05)
    assert len(logs) == 2, process.communicate()[1]
    cluster = logs[0].read_text().split()[0]
    yield process, cluster
    if process.poll() is None:
        process.kill()
    process.communicate()
    ownership.end_all(cluster)


def gone(cluster: str, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(cluster) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(cluster)


def net_namespaces(pids: list[int]) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}


class TestOwner:
    """What becomes of a rehearsal whose owner ends."""

    pytestmark = needs_hosts

    def test_nothing_outlives_a_killed_allpull(self, owner, tmp_path):
        process, cluster = owner
        assert len(net_namespaces(alive(cluster))) == 3  # the two hosts' and the world's
        process.kill()
        process.wait()
        assert gone(cluster)
        path = ownership.folder() / f"{cluster}.json"
        deadline = time.monotonic() + 60
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not path.exists()

    @pytest.mark.alone  # who starts another rehearsal forgets them too
    def test_nothing_outlives_allpull_and_its_keeper_and_the_next_start_forgets_them(self, owner, tmp_path):
        process, cluster = owner
        (keeper,) = [
            pid
            for pid in alive(cluster)
            if b"allpull.rehearse.host.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        process.send_signal(signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        process.kill()
        process.wait()
        assert gone(cluster)
        assert (ownership.folder() / f"{cluster}.json").exists()
        assert ownership.clean_dead() >= 1
        assert not (ownership.folder() / f"{cluster}.json").exists()

    def test_a_request_to_stop_ends_every_process(self, owner, tmp_path):
        process, cluster = owner
        process.terminate()
        process.wait(timeout=60)
        assert process.returncode == 143
        assert alive(cluster) == []
        (record,) = tmp_path.glob("runs/*/run.json")
        assert json.loads(record.read_text())["status"] == "cancelled"


def spec(ranks: int, **launch: Any) -> RunSpec:
    return RunSpec(name="program", launch=LaunchSpec(ranks=ranks, **launch))


def asked(tmp_path: Path, text: str, ranks: int, **launch: Any) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    job = prepare(spec(ranks, **launch), kind="run", module="program", command=["x"], out=tmp_path / "runs")
    Rehearse(tmp_path / "cluster.toml").submit(job)


def test_a_job_of_another_size_is_one_clear_error(tmp_path):
    with pytest.raises(
        BadInput, match=r"the job has 3 ranks, and cluster 'two-by-two' has 4 \(2 hosts of 2\)"
    ) as caught:
        asked(tmp_path, TWO_HOSTS, 3)
    assert "-n 4" in caught.value.hint
    with pytest.raises(BadInput, match=r"launch\.hosts is 4"):
        asked(tmp_path, TWO_HOSTS, 4, hosts=4)


@pytest.mark.parametrize("launch", [{"bind": "cores"}, {"interface": "ib0"}, {"max_restarts": 1}])
def test_what_a_virtual_cluster_cannot_do_is_refused_and_not_passed_over(tmp_path, launch):
    with pytest.raises(BadInput, match=f"launch.{next(iter(launch))} has no effect on a virtual cluster"):
        asked(tmp_path, TWO_HOSTS, 4, **launch)


def test_more_ranks_than_the_machine_holds_are_one_clear_error(tmp_path, monkeypatch):
    many = '[cluster]\nhosts = 33\nranks_per_host = 2\nlink = "1 Gbit/s"\n'
    with pytest.raises(BadInput, match="66 ranks are more than the 64"):
        asked(tmp_path, many, 66)
    monkeypatch.setattr(machine_check, "RANK_BYTES", 1 << 50)
    with pytest.raises(BadInput, match="of memory"):
        asked(tmp_path, TWO_HOSTS, 4)


def test_the_model_of_the_virtual_accelerator_counts_as_memory_of_every_rank(tmp_path, monkeypatch):
    """VGG-16 has 138 million parameters: 1.1 GB a rank with gradients, before anything else."""
    path = tmp_path / "cluster.toml"
    path.write_text(
        TWO_HOSTS.replace("shrink = 10", "shrink = 1") + '[accelerator]\nmodel = "vgg16"\ndevice = "V100"\n'
    )
    cluster = load_cluster(path)
    monkeypatch.setattr(machine_check, "RANK_BYTES", 0)
    monkeypatch.setattr(machine_check.psutil, "virtual_memory", lambda: SimpleNamespace(available=4 * 8 * 138_357_544))
    machine_check.check_memory(cluster, accelerated=False)
    with pytest.raises(BadInput, match="per rank for vgg16") as caught:
        machine_check.check_memory(cluster, accelerated=True)
    assert "up to 2 ranks fit; a larger shrink" in caught.value.hint


@pytest.mark.parametrize(("shrink", "expected"), [(1, "shrink = 25"), (20, "shrink = 25"), (25, None), (1000, None)])
def test_links_faster_than_the_machine_are_not_passed_over(tmp_path, monkeypatch, shrink, expected):
    """Two links of 50 Gbit/s on two cores, which carry 4 Gbit/s."""
    monkeypatch.setattr(machine_check.os, "sched_getaffinity", lambda _: {0, 1})
    path = tmp_path / "cluster.toml"
    path.write_text(f'[cluster]\nhosts = 2\nlink = "50 Gbit/s"\nshrink = {shrink}\n')
    said = machine_check.too_fast(load_cluster(path))
    assert (said is None) if expected is None else (expected in said)


def test_what_of_a_cluster_file_does_not_act_is_said_once(tmp_path):
    (tmp_path / "cluster.toml").write_text(TWO_HOSTS + SLOW_RANK)
    launcher = Rehearse(tmp_path / "cluster.toml")
    named = {}
    for module in ("allpull.train", "allpull.rehearse.ranks"):
        job = prospect(spec(4), kind="train", module=module, command=["x"], out=tmp_path / "runs")
        named[module] = launcher.plan(job).count("slow-rank")
    assert named == {"allpull.train": 1, "allpull.rehearse.ranks": 0}


@pytest.mark.parametrize(
    ("module", "zero"),
    [("allpull.probe.clock", "all ranks were started"), ("program", "every rank has made its first step")],
)
def test_changes_count_from_the_first_step_of_whatever_makes_steps(tmp_path, module, zero):
    (tmp_path / "cluster.toml").write_text(TWO_HOSTS)
    job = prospect(spec(4), kind="run", module=module, command=["x"], out=tmp_path / "runs")
    assert f"{THROTTLED_S:g} s after {zero}:" in Rehearse(tmp_path / "cluster.toml").plan(job)


def test_a_link_too_slow_to_shape_is_one_clear_error(tmp_path):
    with pytest.raises(BadInput, match="too slow to shape"):
        asked(tmp_path, '[cluster]\nhosts = 1\nlink = "1 kbit/s"\n', 1)
    assert not list(tmp_path.glob("runs/*/job/order.json"))


@pytest.mark.parametrize("tool", ["ip", "tc"])
def test_a_missing_tool_is_said_with_its_package(tmp_path, monkeypatch, tool):
    found = machine_check.shutil.which
    monkeypatch.setattr(machine_check.shutil, "which", lambda name: None if name == tool else found(name))
    with pytest.raises(MissingPart, match=f"needs `{tool}`") as caught:
        asked(tmp_path, TWO_HOSTS, 4)
    assert "apt install iproute2" in caught.value.hint
    assert "--unshaped" in caught.value.hint


def test_a_missing_faketime_is_said_where_a_clock_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_check.fake_clock, "library", lambda: None)
    with pytest.raises(MissingPart, match="libfaketime"):
        asked(tmp_path, TWO_HOSTS + LATE, 4)


@pytest.mark.root
def test_no_permission_for_namespaces_is_one_clear_error(tmp_path, monkeypatch):
    """The keeper is told that the kernel refused; nothing is left of the attempt."""
    refusing = tmp_path / "sitecustomize.py"
    refusing.write_text(
        "import allpull.rehearse.host.namespaces as namespaces\n"
        "def refuse(kinds): raise PermissionError(1, 'unshare: Operation not permitted')\n"
        "namespaces.unshare = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingPart, match="does not let us make namespaces") as caught:
        asked(tmp_path, TWO_HOSTS, 4)
    assert "--unshaped" in caught.value.hint
    (order,) = tmp_path.glob("runs/*/job/order.json")
    assert not Path(json.loads(order.read_text())["state_file"]).exists()


def test_the_plan_is_a_script_that_makes_nothing(tmp_path):
    (tmp_path / "cluster.toml").write_text(TWO_HOSTS)
    launcher = Rehearse(tmp_path / "cluster.toml")
    job = prospect(spec(4), kind="run", module="program", command=["x"], out=tmp_path / "runs")
    script = launcher.plan(job)
    assert script.startswith("#!/bin/sh\n")
    assert "tc -n node2 qdisc add dev eth0 root handle 1: tbf rate 50000000bit" in script
    assert f"# {THROTTLED_S:g} s after every rank has made its first step:\ntc -n node2 qdisc change" in script
    assert script.count("-m allpull.observe.rank") == 4
    assert not (tmp_path / "runs").exists()
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
