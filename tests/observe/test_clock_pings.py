"""Hosts that compare their clocks beside a job: what a ping says, who is heard, and that nobody waits long."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.launch.job import prepare
from allpull.observe import clock_pings
from allpull.observe.hook_install import install_hook
from allpull.observe.sidecar import __main__ as sidecar
from allpull.observe.sidecar.start import start as start_sidecar
from allpull.rundir import layout
from allpull.rundir.job_file import SECRETS_VARIABLE, JobFile
from allpull.rundir.read import gaps
from allpull.rundir.read.counters import read_counters
from allpull.schema.counters import CounterSample, CountersHeader
from allpull.schema.gap import texts
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

NONCE = "0123456789abcdef" * 2
HERE = "127.0.0.1"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A host that answers on the loopback interface of this machine, and what others know of it."""
    (tmp_path / "job").mkdir()
    listener = clock_pings.listen(HERE)
    clock_pings.publish_server(str(tmp_path), {"address": HERE, "port": listener.getsockname()[1], "host": "first"})
    server = clock_pings.Server(listener, NONCE)
    found = clock_pings.server_address(str(tmp_path))
    assert found is not None
    yield {**found, "server": server}
    server.finish(0)


def ask(place: dict[str, Any], *, nonce: str = NONCE, is_last: bool = False) -> list[list[int]]:
    return clock_pings.fastest(clock_pings.burst(place, nonce, host="second", is_last=is_last, limit_s=10))


class Wire:
    """A relay to ``port`` that keeps all that the caller sends."""

    def __init__(self, port: int) -> None:
        self.sent = b""
        self._port = port
        self._listener = socket.create_server((HERE, 0))
        self.place = {"address": HERE, "port": self._listener.getsockname()[1]}
        threading.Thread(target=self._relay, daemon=True).start()

    def _relay(self) -> None:
        caller, _ = self._listener.accept()
        with caller, socket.create_connection((HERE, self._port)) as server:
            answers = threading.Thread(target=self._copy, args=(server, caller), daemon=True)
            answers.start()
            while data := caller.recv(1 << 16):
                self.sent += data
                server.sendall(data)
        answers.join(20)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            return  # the burst is over


def test_the_moments_of_a_ping_follow_each_other_on_one_clock(place):
    rows = ask(place)
    assert len(rows) == clock_pings.FASTEST
    for row in rows:
        assert row[:4] == sorted(row[:4])  # both hosts are this machine, so one clock stamps all four
    assert rows == sorted(rows)
    for before, after in zip(rows, rows[1:], strict=False):
        assert before[3] <= after[0]


def test_the_fastest_of_a_burst_are_kept(place, monkeypatch):
    made = iter([[at, at, at, at + trip, 0, 0, 0, 0] for at, trip in enumerate(range(clock_pings.PINGS, 0, -1))])
    monkeypatch.setattr(clock_pings, "ping", lambda _: next(made))
    assert [clock_pings.round_trip_ns(row) for row in ask(place)] == list(range(clock_pings.FASTEST, 0, -1))


def test_the_time_that_the_other_host_takes_to_answer_is_no_round_trip():
    assert clock_pings.round_trip_ns([100, 5_000, 5_900, 1_010, 0, 0, 0, 0]) == 10


def test_who_does_not_know_the_nonce_is_not_answered(place):
    with pytest.raises(OSError, match=r"hung up|reset"):
        ask(place, nonce="f" * 32)
    assert ask(place)


def test_a_proof_fits_its_own_challenge_alone():
    proof = clock_pings.proof_of(NONCE, b"one challenge")
    assert NONCE.encode() not in proof
    assert proof != clock_pings.proof_of(NONCE, b"another")


def test_a_listener_on_the_wire_learns_no_nonce_and_cannot_replay_what_it_heard(place):
    wire = Wire(place["port"])
    assert ask(wire.place)
    heard = wire.sent
    assert len(heard) > clock_pings.HELLO.size
    assert NONCE.encode() not in heard
    assert bytes.fromhex(NONCE) not in heard
    with socket.create_connection((HERE, place["port"]), timeout=20) as replay:
        clock_pings.read(replay, clock_pings.CHALLENGE_BYTES)
        try:
            replay.sendall(heard)
            answer = replay.recv(1)
        except ConnectionError:  # it hung up with our bytes unread
            answer = b""
        assert answer == b""
    assert ask(place)  # and it still answers those who know


def test_no_nonce_is_refused():
    with pytest.raises(ValueError, match="no nonce"):
        clock_pings.Server(socket.socket(), "")


def test_whoever_is_silent_or_talks_nonsense_keeps_nobody_waiting(place):
    with socket.create_connection((HERE, place["port"])), socket.create_connection((HERE, place["port"])) as rude:
        rude.sendall(b"GET / HTTP/1.0\r\n" * 10)
        assert ask(place)


def test_it_listens_on_one_interface(place):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", place["port"]))


def test_the_server_stays_for_hosts_that_will_ask_again(place):
    server = place["server"]
    ask(place)
    waits = threading.Thread(target=server.finish, args=(60,))
    waits.start()
    waits.join(0.3)
    assert waits.is_alive()
    ask(place, is_last=True)
    waits.join(20)
    assert not waits.is_alive()
    with pytest.raises(OSError):
        ask(place)


def test_the_server_does_not_wait_for_ever_nor_for_nobody(place):
    server = place["server"]
    ask(place)
    server.finish(0.05)  # returns


PLACE = {"address": "10.0.0.1", "port": 80, "host": "a"}
WRONG = ({"address": 7}, {"port": 0}, {"port": 70000}, {"port": "80"}, {"host": None})


@pytest.mark.parametrize(
    "text", ["", "[]", json.dumps(PLACE)[:-9], '"' + "x" * 5000 + '"', *(json.dumps({**PLACE, **one}) for one in WRONG)]
)
def test_a_place_that_is_not_whole_is_none_yet(tmp_path, text):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/clock.json").write_text(text)
    assert clock_pings.server_address(str(tmp_path)) is None


def test_one_host_alone_claims_the_place(tmp_path):
    (tmp_path / "job").mkdir()
    won: list[int] = []

    def claim(host: int) -> None:
        if clock_pings.claim_server(str(tmp_path), {"address": HERE, "port": 1 + host, "host": f"node{host}"}):
            won.append(host)

    hosts = [threading.Thread(target=claim, args=(host,)) for host in range(16)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    assert len(won) == 1
    assert clock_pings.server_address(str(tmp_path)) == {"address": HERE, "port": 1 + won[0], "host": f"node{won[0]}"}


def test_an_asker_that_finds_nobody_ends_when_it_is_asked_to(tmp_path):
    asker = clock_pings.Asker(str(tmp_path), host="second", nonce=NONCE, every_s=60)
    asker.finish(20)
    assert not asker._thread.is_alive()
    assert asker.news() == {}


# Sidecars


def start(
    run: Path, host: str, *options: str, part: clock_pings.ClockRole = clock_pings.NONE, through: Sequence[str] = ()
):
    job = JobFile(directory=str(run), nonce=NONCE, counters=True, counter_interval_s=0.1, budget=1 << 20)
    clock = clock_pings.ClockRole(*part.options, *options, descriptor=part.descriptor)
    streams = {"stderr": subprocess.PIPE, "text": True}
    return start_sidecar(job, host, watch=os.getpid(), clock=clock, through=through, **streams)


def records(run: Path, host: str) -> tuple[CountersHeader, list[CounterSample]]:
    try:
        header, *lines = (run / f"counters/{host}.jsonl").read_text().splitlines()
    except (OSError, ValueError):
        return CountersHeader.model_construct(), []
    return CountersHeader.model_validate_json(header), [CounterSample.model_validate_json(line) for line in lines]


def pings(run: Path, host: str) -> list[list[int]]:
    return [ping for sample in records(run, host)[1] for ping in sample.pings]


def wait_for_pings(run: Path, host: str, count: int) -> None:
    deadline_s = time.monotonic() + 60
    while len(pings(run, host)) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The sidecar of the host that answers."""
    (tmp_path / "job").mkdir()
    process = start(tmp_path, "first", part=clock_pings.serving_role(str(tmp_path), host="first", address=HERE))
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_hosts_ping_at_the_start_every_minute_and_at_the_end(tmp_path, serving):
    asking = start(tmp_path, "second", "--clock-every-s", "0.5", part=clock_pings.ASK)
    assert NONCE not in " ".join(asking.args)  # anybody may see those
    wait_for_pings(tmp_path, "second", 2 * clock_pings.FASTEST)
    before = len(pings(tmp_path, "second"))
    for process in (serving, asking):
        process.send_signal(signal.SIGTERM)
    for process in (serving, asking):
        end(process)
    _, samples = records(tmp_path, "second")
    found = [sample for sample in samples if sample.pings]
    assert {sample.against for sample in found} == {"first"}
    assert len(pings(tmp_path, "second")) > before
    assert samples[-1].pings  # the last, though the server was told first
    assert all(sample.against is None for sample in samples if not sample.pings)
    assert records(tmp_path, "first")[1]
    assert pings(tmp_path, "first") == []


NO_PSUTIL = """
import runpy, sys
sys.modules["psutil"] = None
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_clocks_are_compared_without_psutil_too(tmp_path, serving, monkeypatch):
    (tmp_path / "without.py").write_text(NO_PSUTIL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asking = start(tmp_path, "second", part=clock_pings.ASK, through=["without"])
    wait_for_pings(tmp_path, "second", clock_pings.FASTEST)
    asking.terminate()
    end(asking)
    header, samples = records(tmp_path, "second")
    assert header.no_counters == sidecar.NO_PSUTIL
    files, _ = read_counters(tmp_path, ["counters/second.jsonl"], 1, skip_damaged=False)
    said = list(gaps.of_hosts(SimpleNamespace(hosts=[]), (), files))
    assert texts(said) == ["no counters of host second: psutil is not installed there"]
    assert all(not sample.ranks and not sample.nics for sample in samples)
    assert len(pings(tmp_path, "second")) >= clock_pings.FASTEST  # the last burst may not fit into the grace time
    serving.terminate()
    end(serving)


def test_it_runs_from_a_folder_of_its_own_beside_nothing_else(tmp_path):
    """Staged under a private name, in a Python that has neither allpull nor psutil: a note, and a good end."""
    command = ["-S", "-m", "_allpull.observe.sidecar", "--run", str(tmp_path), "--host", "node", "--watch", "1"]
    environ = {**os.environ, "PYTHONPATH": install_hook(str(tmp_path))}
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = (tmp_path / "counters/node.jsonl").read_text().splitlines()
    assert json.loads(line)["no_counters"] == sidecar.NO_PSUTIL


FROM_A_RANK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from _allpull.observe import clock_pings
from _allpull.observe.sidecar import start
from _allpull.rundir.job_file import JobFile
job = JobFile(directory=sys.argv[2], counters=True, budget=100000)
sys.exit(start.start(job, "node", watch=1 << 30, clock=clock_pings.AUTO).wait())
"""


@pytest.mark.slow
def test_a_rank_under_the_hook_can_start_it(tmp_path):
    """The hook takes its own folder from the path of every Python that starts, and so of the sidecar's."""
    hook = install_hook(str(tmp_path))
    environ = {**os.environ, "PYTHONPATH": hook}
    command = [sys.executable, "-c", FROM_A_RANK, hook, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert records(tmp_path, "node")[1]


def options(run: Path, host: str) -> argparse.Namespace:
    return sidecar._options(["--run", str(run), "--host", host, "--watch", "1", "--clock", "auto"])


@pytest.fixture
def on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory of hosts that would meet on this machine's loopback interface, as if it led elsewhere."""
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(sidecar, "LOOPBACK", ("no such",))
    monkeypatch.setenv("MASTER_ADDR", HERE)
    return tmp_path


def test_of_hosts_that_decide_by_themselves_the_first_answers(on_the_way):
    first = sidecar._start_clock(options(on_the_way, "first"), NONCE)
    second = sidecar._start_clock(options(on_the_way, "second"), NONCE)
    assert isinstance(first, clock_pings.Server)
    assert isinstance(second, clock_pings.Asker)
    second.finish(20)
    assert second.news()["against"] == "first"
    first.finish(5)
    clock_pings.withdraw_server(str(on_the_way))
    assert clock_pings.server_address(str(on_the_way)) is None
    clock_pings.withdraw_server(str(on_the_way))


def test_what_an_earlier_attempt_left_behind_does_not_silence_a_host(on_the_way):
    clock_pings.publish_server(str(on_the_way), {"address": HERE, "port": 1, "host": "first"})
    first = sidecar._start_clock(options(on_the_way, "first"), NONCE)
    assert isinstance(first, clock_pings.Server)
    assert ask(clock_pings.server_address(str(on_the_way)))
    first.finish(0)


def test_ranks_of_one_host_have_nothing_to_compare(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", HERE)
    assert sidecar._start_clock(options(tmp_path, "first"), NONCE) is None
    assert not (tmp_path / "job").exists()


def test_without_a_nonce_nothing_listens(on_the_way):
    assert sidecar._start_clock(options(on_the_way, "first"), "") is None
    assert clock_pings.server_address(str(on_the_way)) is None


# Agents

PROGRAM = """
import torch.distributed as dist
from allpull import marks
from allpull.schema.gap import texts
dist.init_process_group("gloo")
dist.barrier()
marks.step(1)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_hosts_that_share_no_folder_compare_their_clocks_too(tmp_path, monkeypatch):
    """Each agent has a run directory of its own, as over ssh; whom to ask is said in the store where they meet."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = RunSpec(name="program", launch=LaunchSpec(ranks=2), observe=ObserveSpec(counter_interval_s=0.2))
    job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path)
    shutil.copytree(job.directory, tmp_path / "other")
    asked = json.loads(job.file.read_text())
    (tmp_path / "other" / layout.SPEC).write_text(json.dumps({**asked, "directory": str(tmp_path / "other")}))
    with socket.create_server((HERE, 0)) as free:
        port = str(free.getsockname()[1])
    monkeypatch.setenv(SECRETS_VARIABLE, job.secrets)
    common = ["--hosts", "2", "--master", HERE, "--port", port]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "allpull.observe.agent", str(directory / layout.SPEC), *common,
             "--host-index", str(index), "--name", f"node{index}"]
        )
        for index, directory in enumerate((job.directory, tmp_path / "other"))
    ]  # fmt: skip
    assert [agent.wait(timeout=120) for agent in agents] == [0, 0]
    assert pings(tmp_path / "other", "node1")
    assert {sample.against for sample in records(tmp_path / "other", "node1")[1] if sample.pings} == {"node0"}
    assert pings(job.directory, "node0") == []
