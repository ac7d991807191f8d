"""Agents of several hosts agree on when ranks start, start again, and have ended."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import HashStore

from allpull import backend
from allpull.backend import STORE_FILE
from allpull.observe import scratch
from allpull.observe.agent import checkpoint_transfer, rendezvous
from allpull.observe.agent.rendezvous import FAILED, OVER, RESTART, FixedHosts, HostsDisconnected, JobHost
from allpull.observe.recording import attempts
from allpull.observe.store import listen
from allpull.rundir import layout

pytestmark = pytest.mark.torch
LOOPBACK = "127.0.0.1"


class Hosts:
    """Agents' rendezvous of one job, each in a thread of its own when they meet."""

    def __init__(self, *folders: Path, address: str = LOOPBACK) -> None:
        listener = listen(address, 0)
        port = listener.getsockname()[1]
        self.all = [
            FixedHosts(
                JobHost(index=index, hosts=len(folders), master=address, port=port, name=f"n{index}"),
                listener if index == 0 else None,
                "nonce",
                str(folder),
            )
            for index, folder in enumerate(folders)
        ]
        self.pool = ThreadPoolExecutor(len(folders))

    def meet(self) -> list[tuple[str, int]]:
        """The next round of all; where each host's ranks are to meet."""
        infos = list(self.pool.map(lambda host: host.next_rendezvous(), self.all))
        assert [(info.rank, info.world_size) for info in infos] == [(i, len(infos)) for i in range(len(infos))]
        where = [info.bootstrap_store_info for info in infos]
        infos[0].store.set("from", "host 0")
        assert all(info.store.get("from") == b"host 0" for info in infos)
        return [(one.master_addr, one.master_port) for one in where]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for last words."""
    monkeypatch.setattr(rendezvous, "LAST_WORDS_S", 0.0)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts that see one folder and have met once."""
    hosts = Hosts(tmp_path, tmp_path)
    assert len(set(hosts.meet())) == 1
    yield hosts
    hosts.pool.shutdown(wait=False)


def soon(ask: Callable[[], object]) -> object:
    """The first answer that is not None."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = ask()
        if answer is not None:
            return answer
        time.sleep(0.01)
    return None


def test_a_restart_that_one_host_calls_is_heard_by_the_other_and_has_a_store_of_its_own(two: Hosts) -> None:
    """In the store of the round before, Gloo would find the addresses of the dead."""
    ports = set()
    for _ in range(3):
        assert [host.outcome() for host in two.all] == [None, None]
        again = two.pool.submit(two.all[1].next_rendezvous)
        assert soon(two.all[0].outcome) == RESTART
        assert not again.done()  # it waits for host 0
        info = two.all[0].next_rendezvous().bootstrap_store_info
        assert again.result(60).bootstrap_store_info.master_port == info.master_port
        ports.add(info.master_port)
    assert len(ports) == 3


def test_a_round_is_over_when_all_hosts_have_finished_and_not_before(two: Hosts) -> None:
    two.all[1].finished()
    two.all[1].finished()  # said twice, it is still one host
    time.sleep(0.2)
    assert two.all[1].outcome() is None
    two.all[0].finished()
    assert [soon(host.outcome) for host in two.all] == [OVER, OVER]


def test_a_host_that_has_finished_comes_again_when_another_failed(two: Hosts) -> None:
    """So nobody waits for ever for a host whose ranks are done, and what it finished does not count any more."""
    two.all[0].finished()
    failed = two.pool.submit(two.all[1].next_rendezvous)
    assert soon(two.all[0].outcome) == RESTART
    two.all[0].next_rendezvous()
    failed.result(60)
    two.all[1].finished()
    time.sleep(0.2)
    assert two.all[1].outcome() is None
    two.all[0].finished()
    assert soon(two.all[1].outcome) == OVER


def test_the_last_failure_of_a_host_is_heard_by_the_others(two: Hosts) -> None:
    two.all[1].failed()
    assert soon(two.all[0].outcome) == FAILED


def test_a_host_that_does_not_come_again_is_named_in_time(two: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "patience", lambda: timedelta(seconds=0.5))
    with pytest.raises(HostsDisconnected, match=r"of 2 hosts, counted from 0, these did not join the restart: 0$"):
        two.all[1].next_rendezvous()


def test_patience_covers_the_time_that_ranks_are_given_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rendezvous.GRACE_VARIABLE, "3600")
    assert rendezvous.patience() > timedelta(seconds=3600)


def test_one_host_alone_needs_nobody(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    (first,) = hosts.meet()
    assert hosts.all[0].outcome() is None
    (second,) = hosts.meet()
    assert first != second
    hosts.all[0].finished()
    assert hosts.all[0].outcome() == OVER


def test_our_ranks_of_one_host_meet_in_a_private_file_and_nothing_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that listens takes orders from every user of the host: torch's has no key of its own."""
    monkeypatch.setenv(STORE_FILE, "")
    place = JobHost(index=0, hosts=1, master=LOOPBACK, port=0, name="n0")
    host = FixedHosts(place, None, "nonce", str(tmp_path), files=str(tmp_path))
    stores = []
    for _ in range(2):
        assert isinstance(host.next_rendezvous().store, HashStore)
        ranks = [backend.ranks_store() for _ in range(2)]
        assert ranks[0].add("counted", 1) + 1 == ranks[1].add("counted", 1) == 2  # a round begins empty
        stores.append(os.environ[STORE_FILE])
    assert stores == [str(tmp_path / "store-0"), str(tmp_path / "store-1")]
    assert rendezvous.STORE_FILE == backend.STORE_FILE


def test_the_private_folder_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(scratch.path_of("/run", "n0"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/file").touch()
    path.symlink_to(tmp_path / "home")  # as a stranger would, who can compute the name too
    made = Path(scratch.make("/run", "n0"))
    assert made != path
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    scratch.remove(str(path))
    assert os.listdir(tmp_path / "home") == ["file"]
    path.unlink()
    assert scratch.make("/run", "n0") == str(path)
    (path / "left").touch()
    assert os.listdir(scratch.make("/run", "n0")) == []  # of an agent that was killed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has all of 127/8 on its loopback")
def test_every_store_is_on_the_one_interface(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, tmp_path, address="127.0.0.2")
    for _ in range(2):
        (address, port), _ = hosts.meet()
        assert address == "127.0.0.2"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port), timeout=5)


HOST_0 = """
import sys, time
from allpull.observe.store import listen
from allpull.observe.agent.rendezvous import FixedHosts, JobHost
listener = listen("127.0.0.1", 0)
place = JobHost(index=0, hosts=2, master="127.0.0.1", port=listener.getsockname()[1], name="n0")
host = FixedHosts(place, listener, "nonce", sys.argv[1])
host.next_rendezvous()
print(place.port, flush=True)
time.sleep(600)
"""
HOST_1 = """
import signal, sys, time
from allpull.observe.agent import rendezvous
from allpull.observe.agent.rendezvous import HostsDisconnected, FixedHosts, JobHost
rendezvous.LAST_WORDS_S = 0
host = FixedHosts(JobHost(index=1, hosts=2, master="127.0.0.1", port=int(sys.argv[1]), name="n1"), None, "nonce",
                  sys.argv[2])
host.next_rendezvous()
print("met", flush=True)
def stop(number, _):
    print("heard", number, flush=True)
    raise SystemExit
signal.signal(signal.SIGHUP, stop)
sys.stdin.readline()
{then}
print("never", flush=True)
"""


@pytest.fixture
def host_0(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Host 0 in a process that tests may stop or kill."""
    command = [sys.executable, "-c", HOST_0, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def host_1(host_0: subprocess.Popen[str], then: str) -> subprocess.Popen[str]:
    """Host 1 in a process of its own, which does ``then`` when it reads a line."""
    assert host_0.stdout is not None
    process = subprocess.Popen(
        [sys.executable, "-c", HOST_1.replace("{then}", then), host_0.stdout.readline().strip(), str(host_0.args[-1])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "met\n"
    return process


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process has stopped; a signal reaches them one by one."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are looked at in /proc")
@pytest.mark.parametrize(
    "then", ["host.next_rendezvous()", "host.finished()", "while host.outcome() is None: time.sleep(0.05)"]
)
def test_a_silent_host_0_does_not_make_us_deaf_to_signals(host_0: subprocess.Popen[str], then: str) -> None:
    """A host without power sends no word and closes no connection: the launcher hangs up on us, and we must hear it."""
    process = host_1(host_0, then)
    host_0.send_signal(signal.SIGSTOP)
    assert soon(lambda: is_stopped(host_0.pid) or None)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert process.stdout.readline() == "heard 1\n"
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("then", ["host.next_rendezvous()", "while host.outcome() is None: time.sleep(0.05)"])
def test_a_host_0_that_is_gone_is_noticed(host_0: subprocess.Popen[str], then: str) -> None:
    process = host_1(
        host_0, f"try:\n    {then}\nexcept HostsDisconnected:\n    print('apart', flush=True)\n    raise SystemExit"
    )
    host_0.kill()
    host_0.wait()
    out, _ = process.communicate("\n", timeout=60)
    assert out == "apart\n"


def test_hosts_that_see_no_checkpoints_are_given_the_newest(tmp_path: Path) -> None:
    """Three hosts: two share the folder that rank 0 writes to, one has its own, with what it was given before."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    newest = {f"step-{step:010d}.pt": os.urandom(step) for step in (20, 30)}
    fill(shared, {"step-0000000010.pt": b"older", **newest, "step-0000000040.tmp": b"unfinished"})
    hosts = Hosts(shared, shared, own)
    hosts.meet()
    assert not own.exists()  # the first start goes on from nothing
    hosts.meet()
    assert contents(own) == newest
    fill(shared, {"step-0000000050.pt": b"new"})
    hosts.meet()
    assert contents(own) == {"step-0000000030.pt": newest["step-0000000030.pt"], "step-0000000050.pt": b"new"}
    before = contents(shared)
    for host in hosts.all:
        host.shutdown()
    assert contents(own) == {}  # else they would be collected once more, and those that host 0 dropped as well
    assert contents(shared) == before


@given(content=st.binary(max_size=40), takers=st.integers(1, 3), part_bytes=st.integers(1, 7))
def test_what_is_taken_is_what_was_given_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, takers: int, part_bytes: int
) -> None:
    folders = [tmp_path_factory.mktemp("host") for _ in range(takers + 1)]
    fill(folders[0], {"step-1.pt": content})
    store = HashStore()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(takers) as pool:
        patch.setattr(checkpoint_transfer, "PART_BYTES", part_bytes)
        taken = [pool.submit(checkpoint_transfer.receive, store, str(folder)) for folder in folders[1:]]
        checkpoint_transfer.send(store, str(folders[0]), receivers=takers)
        assert [one.result(60) for one in taken] == [[f"{folder}/checkpoints/step-1.pt"] for folder in folders[1:]]
    assert all(contents(folder) == {"step-1.pt": content} for folder in folders)


@pytest.mark.parametrize("name", ["../run.json", "/etc/passwd", "..", ".bashrc", "a/b"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    store = PrefixStore("x", HashStore())
    store.set("files", f'{{"takers": 1, "files": [["{name}", 0]]}}')
    with pytest.raises(ValueError, match="not the name of a checkpoint"):
        checkpoint_transfer.receive(store, str(tmp_path / "run"))
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "checkpoints"]


def fill(directory: Path, files: dict[str, bytes]) -> None:
    (directory / layout.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / layout.CHECKPOINTS / name).write_bytes(content)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / layout.CHECKPOINTS).iterdir())}


@pytest.mark.parametrize("requeued", [0, 2])
@pytest.mark.parametrize(("restarts", "recorded"), [(1, 7), (2, 3), (3, 0), (1, None)])
def test_the_attempt_is_the_number_of_the_restart_whatever_a_rank_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int, recorded: int | None, requeued: int
) -> None:
    """A rank that was killed before it could write leaves no folder to count by on a host of its own.

    A queue that gave the job back has the count begin again, after so many attempts.
    """
    monkeypatch.setenv(attempts.RESTARTS, str(restarts))
    monkeypatch.setenv(attempts.BEFORE, str(requeued))
    monkeypatch.delenv(attempts.RESUME, raising=False)
    if recorded is not None:
        path = tmp_path / layout.steps_file(3)
        path.parent.mkdir()
        path.write_text("".join(['{"schema":"x"}\n', *(f'{{"step":{step}}}\n' for step in range(recorded))]))
    restarts += requeued
    assert attempts.begin(str(tmp_path), 3) == {"attempt": restarts, "steps_before": recorded or 0}
    assert os.environ[attempts.RESUME] == "1"
    assert (tmp_path / f"attempts/{restarts - 1}").exists() is (recorded is not None)


class Hangup(Exception):
    """A signal came."""


def test_a_signal_that_another_thread_was_given_ends_a_wait() -> None:
    """Where two signals come at once, Linux may hand both to a thread that sleeps, and nothing wakes the main one."""
    replied, ended = threading.Event(), threading.Event()

    def hang_up(*_: object) -> None:
        raise Hangup

    def unanswered() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        replied.set()
        ended.wait(30.0)
        replied.clear()

    before = signal.signal(signal.SIGUSR2, hang_up)
    try:
        with pytest.raises(Hangup):
            rendezvous.in_thread(unanswered)
        assert replied.is_set()
    finally:
        ended.set()
        signal.signal(signal.SIGUSR2, before)
