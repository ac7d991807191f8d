"""A command that is run as it is: nothing differs from running it without us, and what is said of it is true."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.errors import RunDirError
from allpull.launch import execute as executing
from allpull.launch.command.command_line import as_rank, hook_blocking_flag
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import LAUNCHER, CannotStart, Wrapped, lost_rank
from allpull.launch.echo import Echo, Log
from allpull.launch.host_endings import RankFailure
from allpull.launch.job import prepare
from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

PYTHON = sys.executable
PATIENCE_S = 120  # two cores that others use too
RUN = [sys.executable, "-m", "allpull", "run", "--set", "observe.counters=false"]
HOOKS = {"PYTHONPATH", "ALLPULL_JOB", "ALLPULL_SIDECAR", "OMPI_MCA_mca_base_env_list"}
HOOKS |= {"APPTAINER_BIND", "SINGULARITY_BIND"}
CARRIERS = ("APPTAINERENV_", "SINGULARITYENV_")

COUNTS_SIGNALS = """
import os, signal, sys, time
came = []
for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, _: came.append(number))
print("ready", os.getpid(), flush=True)
until = time.monotonic() + 60
while not came and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(1.0)  # for one that comes twice
print("came", *map(int, came), flush=True)
sys.exit(3)
"""


def command(out: Path, *words: str) -> list[str]:
    return [*RUN, "--out", str(out), "--", *words]


def run(out: Path, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(out, *words), capture_output=True, timeout=PATIENCE_S, check=False, **options)  # type: ignore[call-overload]


def prepared(tmp_path: Path, *words: str):
    spec = RunSpec(name="x", launch=LaunchSpec(launcher=LAUNCHER), observe=ObserveSpec(counters=False))
    return prepare(spec, kind="run", program=words, command=["x"], out=tmp_path)


def record_of(out: Path) -> dict[str, object]:
    (directory,) = out.iterdir()
    return json.loads((directory / "run.json").read_text())


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_exit_code_is_the_commands_own(tmp_path, script, code):
    record = executing.execute(prepared(tmp_path, "sh", "-c", script), Wrapped(), lambda: None)
    assert record.exit is not None
    assert (record.exit.code, record.status) == (code, "failed" if code else "completed")


@pytest.mark.parametrize(("name", "code", "why"), [("nosuch", 127, "command not found"), ("./x", 126, "denied")])
def test_what_cannot_be_started_ends_as_in_a_shell_and_leaves_nothing(tmp_path, name, code, why):
    (tmp_path / "x").write_text("echo\n")
    done = run(tmp_path / "runs", name, cwd=tmp_path)
    assert done.returncode == code
    assert why in done.stderr.decode()
    assert not (tmp_path / "runs").exists()


def test_a_command_has_its_streams_files_and_environment_and_its_exit_code_is_ours(tmp_path):
    """Byte for byte, one more open file included; the environment differs by the hook's variables only."""
    given = bytes(range(256)) * 1000
    script = "env -0 > seen; cat; printf 'said\\377' >&2; echo for three >&3; exit 7"
    words = ["sh", "-c", '"$@" 3>three', "sh", *command(tmp_path / "runs", "sh", "-c", script)]
    before = {**os.environ, "PYTHONPATH": "/theirs", "OMP_NUM_THREADS": "5", "PWD": str(tmp_path)}
    done = subprocess.run(
        words, cwd=tmp_path, env=before, input=given, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == given
    assert done.stderr.startswith(b"said\xff")
    assert done.stderr.decode(errors="replace").splitlines()[-1].startswith("run directory: ")
    assert done.returncode == 7
    assert (tmp_path / "three").read_text() == "for three\n"
    seen = dict(entry.split("=", 1) for entry in (tmp_path / "seen").read_text().split("\0") if entry)
    changed = {name for name in seen.keys() | before.keys() if seen.get(name) != before.get(name)}
    assert {name for name in changed if not name.startswith(CARRIERS)} <= HOOKS | {"_"}
    assert seen["PYTHONPATH"].endswith(":/theirs")
    record = record_of(tmp_path / "runs")
    assert record["environment"]["OMP_NUM_THREADS"] == "5"
    assert (record["exit"]["code"], record["status"]) == (7, "failed")


def started(tmp_path: Path) -> subprocess.Popen[str]:
    words = command(tmp_path, sys.executable, "-c", COUNTS_SIGNALS)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_signal_to_us_reaches_the_command_once_and_it_decides(tmp_path):
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    processes = [started(tmp_path / number.name) for number in numbers]
    for process, number in zip(processes, numbers, strict=True):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        process.send_signal(number)
    for process, number in zip(processes, numbers, strict=True):
        out, err = process.communicate(timeout=PATIENCE_S)
        assert out == f"came {int(number)}\n"
        assert process.returncode == 3, err
        assert record_of(tmp_path / number.name)["status"] == ("failed" if number == signal.SIGUSR1 else "cancelled")


def test_control_c_reaches_the_command_once(tmp_path):
    """Pressed at a terminal it goes to us and to the command, and must not be passed on."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command(tmp_path, sys.executable, "-c", COUNTS_SIGNALS))
    said = b""
    pressed = False
    while b"run directory" not in said:
        try:
            said += os.read(terminal, 4096)
        except OSError:
            break  # Linux says so when the other end is closed
        if b"ready" in said and not pressed:
            os.write(terminal, b"\x03")
            pressed = True
    _, status = os.waitpid(pid, 0)
    assert b"came 2\r\n" in said, said
    assert os.waitstatus_to_exitcode(status) == 3


def test_what_nohup_ignores_stays_ignored(tmp_path):
    script = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(tmp_path, sys.executable, "-c", script)]
    assert subprocess.run(nohup, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout == "True\n"


def test_the_command_lives_on_when_we_are_killed(tmp_path):
    process = subprocess.Popen(
        command(tmp_path / "runs", sys.executable, "-c", COUNTS_SIGNALS), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    process.kill()
    process.wait()
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    assert process.stdout.read() == "came 15\n"
    assert record_of(tmp_path / "runs")["status"] == "running"


RANKS = """
import json, os, pathlib, sys, time
run = pathlib.Path(os.environ["ALLPULL_JOB"]).parent.parent
for rank, host in enumerate(["a", "b"]):
    clock = {"monotonic_ns": 1, "realtime_ns": 1}
    header = {"schema": "allpull.steps/1.1", "rank": rank, "local_rank": 0, "ranks": 2, "host": host, "pid": 1,
              "clock": clock, "boundary": "x", "budget": 10000}
    (run / f"steps/rank-0000{rank}.jsonl").write_text(json.dumps(header) + "\\n")
    (run / "job/processes").mkdir(exist_ok=True)
    told = {"pid": rank, "host": host, "rank": rank, "argv": [], "python": "3.9.1", "torch": "2.4.0", "reason": None}
    (run / f"job/processes/{host}-{rank}.json").write_text(json.dumps(told))
raised = {"kind": "exception", "type": "ValueError", "message": "no such label", "t_ns": 5}
head = {**header, "schema": "allpull.events/1.1"}
(run / "events/rank-00001.jsonl").write_text(json.dumps(head) + "\\n" + json.dumps(raised) + "\\n")
until = time.monotonic() + 60
while json.loads((run / "run.json").read_text())["ranks"] != 2 and time.monotonic() < until:
    time.sleep(0.05)
sys.exit(9 if time.monotonic() < until else 1)
"""


def test_ranks_that_show_themselves_are_put_down_at_once_and_the_first_failure_is_named(tmp_path):
    done = run(tmp_path, sys.executable, "-c", RANKS)
    assert done.returncode == 9
    record = record_of(tmp_path)
    assert (record["ranks"], record["hosts"]) == (2, ["a", "b"])
    assert (record["versions"]["python"], record["versions"]["torch"]) == ("3.9.1", "2.4.0")
    assert (record["seed"], record["global_batch"]) == (None, None)
    assert "allpull: rank 1 on b failed: ValueError: no such label" in done.stderr.decode()
    assert "nothing was recorded" not in done.stderr.decode()
    (directory,) = tmp_path.iterdir()
    (own,) = (directory / "hosts").iterdir()
    described = json.loads(own.read_text())
    for host in ("a", "b", "c"):  # ours started the command and has no rank, so two ranks may have three hosts
        if host != "c":
            assert read_run(directory).record.ranks == 2
        (directory / f"hosts/{host}.json").write_text(json.dumps({**described, "host": host}))
    with pytest.raises(RunDirError, match="4 hosts for 2 ranks"):
        read_run(directory)


WAITS = f"import os, time\nuntil = time.monotonic() + {PATIENCE_S}\n"
WAITS += "while not os.path.exists('seen') and time.monotonic() < until: time.sleep(0.05)"


def why_nothing_was_recorded(tmp_path: Path, *words: str) -> str:
    """What the watch says of a command that runs in ``tmp_path``; ``WAITS`` ends once the watch has seen its flags."""
    launcher = Wrapped()

    def look() -> None:
        if launcher.watch is not None and "Python was started" in (launcher.watch.why() or ""):
            Path("seen").touch()

    executing.execute(prepared(tmp_path / "runs", *words), launcher, look)
    assert launcher.watch is not None
    return launcher.watch.why() or ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["true"], "no Python process that imports torch was seen"),
        ([PYTHON, "-uI", "-c", "print(1)"], "Python was started with -I"),
        (["sh", "-c", f'{PYTHON} -S -c "{WAITS}"; true'], "Python was started with -S"),
        (["sh", "-c", f'PYTHONPATH=/x {PYTHON} -c "{WAITS}"; true'], "Python was started without our PYTHONPATH"),
        (["env", "-i", PYTHON, "-c", WAITS], "Python was started without our PYTHONPATH"),
    ],
)
def test_it_is_said_why_nothing_was_recorded(tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    assert why_nothing_was_recorded(tmp_path, *words).startswith(f"nothing was recorded: {why}")


def test_the_user_is_told_why_nothing_was_recorded(tmp_path):
    said = run(tmp_path, "env", PYTHON, "-E", "-c", "").stderr.decode()
    assert "allpull: nothing was recorded: Python was started with -E" in said
    assert "Traceback" not in said


def test_a_process_that_imports_torch_and_does_not_train_is_named_as_such(tmp_path):
    (tmp_path / "job/processes").mkdir(parents=True)
    process = {"pid": 1, "host": "a", "rank": None, "reason": None}
    (tmp_path / "job/processes/a-1.json").write_text(json.dumps(process))
    why = ProcessWatch(["python", "x.py"], tmp_path).why() or ""
    assert why.startswith("nothing was recorded: processes that imported torch: 1, of which none trained")


@pytest.mark.slow
@pytest.mark.torch
def test_a_starter_that_imports_torch_does_not_hide_the_flag(tmp_path, monkeypatch):
    """As torchrun does, whose ranks take no hook."""
    monkeypatch.chdir(tmp_path)
    starts = f"import torch, subprocess; subprocess.run([{PYTHON!r}, '-E', '-c', {WAITS!r}])"
    why = why_nothing_was_recorded(tmp_path, PYTHON, "-c", starts)
    assert why.startswith("nothing was recorded: Python was started with -E")
    assert "; processes that imported torch: 1, of which none trained" in why


PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6026"


@pytest.mark.parametrize(
    ("raised", "left", "named"),
    [
        ({0: PEER}, (), "rank 1 on n1, rank 2 on n1 ended without"),
        ({0: PEER, 2: PEER}, (), "rank 1 on n1 ended without"),
        ({0: PEER, 2: PEER}, (1,), "rank 1 on n1 ended first, without an exception (sys.exit, "),
        ({0: PEER}, (1,), "rank 2 on n1 ended without"),
        ({0: PEER, 2: "ValueError: no"}, (), None),  # it is the one: rank 1 was ended by the starter
        ({0: PEER, 1: PEER, 2: PEER}, (), None),
        ({}, (1,), None),
    ],
)
def test_ranks_that_lost_a_neighbour_name_who_was_gone(tmp_path, raised, left, named):
    for rank in range(3):
        for folder in ("steps", "events"):
            (tmp_path / folder).mkdir(exist_ok=True)
        header = {"rank": rank, "ranks": 3, "host": "n1", "pid": 1}
        (tmp_path / layout.steps_file(rank)).write_text(json.dumps(header) + "\n")
        event = {"kind": "exception" if rank in raised else "end" if rank in left else "epoch", "t_ns": 1}
        (tmp_path / layout.events_file(rank)).write_text(json.dumps(header) + "\n" + json.dumps(event) + "\n")
    failures = tuple(RankFailure(rank=rank, host="n1", exit_code=1, exception=text) for rank, text in raised.items())
    found = lost_rank(tmp_path, failures)
    assert (found is None) == (named is None)
    if found is not None:
        assert found.startswith(named)
        assert PEER in found


@pytest.mark.parametrize(("ended_ns", "host", "is_named"), [(4, "n1", True), (6, "n1", False), (6, "n2", True)])
def test_a_rank_that_ended_after_others_had_failed_did_not_leave_them(tmp_path, ended_ns, host, is_named):
    """Rank 0 lost a server of its own; of another host nobody knows which was first."""
    for folder in ("steps", "events"):
        (tmp_path / folder).mkdir()
    for rank, event, own in ((0, {"kind": "exception", "t_ns": 5}, "n1"), (1, {"kind": "end", "t_ns": ended_ns}, host)):
        header = {"rank": rank, "ranks": 2, "host": own, "pid": 1}
        (tmp_path / layout.steps_file(rank)).write_text(json.dumps(header) + "\n")
        (tmp_path / layout.events_file(rank)).write_text(json.dumps(header) + "\n" + json.dumps(event) + "\n")
    failures = [
        RankFailure(rank=0, host="n1", exit_code=1, exception=PEER, raised_ns=raised_ns) for raised_ns in (9, 5)
    ]
    assert (lost_rank(tmp_path, failures) is not None) is is_named


def test_a_rank_that_came_twice_is_said(tmp_path):
    (tmp_path / "job/processes").mkdir(parents=True)
    told = {"pid": 1, "host": "a", "rank": None, "reason": "any words", "refused_rank": 0}
    (tmp_path / "job/processes/a-1.json").write_text(json.dumps(told))
    assert "1 process had the number of a rank" in (ProcessWatch((), tmp_path).twice() or "")


@pytest.mark.parametrize(
    "flags",
    [
        *(["-I"], ["-uI"], ["-S"], ["-Es"], ["-X", "dev", "-S"], ["-W", "ignore", "-I"], ["-bS"]),
        *(["-Xdev"], ["-Wignore::I"], ["-u"], ["-s"], ["-OO"]),
    ],
)
def test_flags_are_read_as_python_reads_them(flags):
    """The oracle is Python: what it says of itself when it is started with these flags."""
    ask = "import sys; f = sys.flags; print(bool(f.isolated or f.no_site or f.ignore_environment))"
    words = [PYTHON, *flags, "-c", ask]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert told == str(hook_blocking_flag(words) is not None)


def test_a_command_in_our_own_python_runs_in_that_of_each_host():
    """On another host the same environment may stand elsewhere; another environment is left as it was named."""
    assert as_rank([PYTHON, "-u", "train.py"], check_files=False) == ("{python}", "-u", "train.py")
    assert as_rank(["train.py", "-I"], check_files=False) == ("{python}", "train.py", "-I")
    assert as_rank(["/other/python3", "train.py"], check_files=False) == ("/other/python3", "train.py")


def test_a_full_disk_does_not_end_the_command_nor_change_its_code(tmp_path, monkeypatch):
    job = prepared(tmp_path, "sh", "-c", "sleep 0.3; exit 5")
    said: list[str] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(executing, "write_record", full)
    record = executing.execute(job, Wrapped(), lambda: None, said.append)
    assert record.exit is not None
    assert record.exit.code == 5
    assert any("No space left" in line for line in said)


def test_signals_are_handled_as_before_when_a_command_cannot_be_started(tmp_path):
    job = prepared(tmp_path, "/nosuch")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(CannotStart):
        executing.execute(job, Wrapped(), lambda: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert json.loads((job.directory / "run.json").read_text())["exit"]["code"] == 127


def test_an_echo_copies_each_byte_once(tmp_path, capfdbinary: Callable[..., object]):
    log = tmp_path / "log"
    echo = Echo([Log(path=log, stream=1, is_terminal=True)])
    echo.copy()
    for part in (b"one\r\n", b"two\xff"):
        with log.open("ab") as file:
            file.write(part)
        echo.copy()
        echo.copy()
    assert capfdbinary.readouterr().out == b"one\ntwo\xff"  # type: ignore[attr-defined]
