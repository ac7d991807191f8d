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
from allpull.launch.command.command_line import as_rank, closed
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import LAUNCHER, CannotStart, Wrapped, lost_rank
from allpull.launch.echo import Echo, Log
from allpull.launch.host_endings import RankFailure
from allpull.launch.job import prepare
from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

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
    return subprocess.run(command(out, *words), capture_output=True, timeout=120, check=False, **options)  # type: ignore[call-overload]


def record_of(out: Path) -> dict[str, object]:
    (directory,) = out.iterdir()
    return json.loads((directory / "run.json").read_text())


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_exit_code_is_the_commands_own(tmp_path, script, code):
    done = run(tmp_path, "sh", "-c", script)
    assert done.returncode == code
    record = record_of(tmp_path)
    assert record["exit"]["code"] == code
    assert record["status"] == ("failed" if code else "completed")
    assert done.stderr.decode().splitlines()[-1].startswith("run directory: ")


@pytest.mark.parametrize(("name", "code", "why"), [("nosuch", 127, "command not found"), ("./x", 126, "denied")])
def test_what_cannot_be_started_ends_as_in_a_shell_and_leaves_nothing(tmp_path, name, code, why):
    (tmp_path / "x").write_text("echo\n")
    done = run(tmp_path / "runs", name, cwd=tmp_path)
    assert done.returncode == code
    assert why in done.stderr.decode()
    assert not (tmp_path / "runs").exists()


def test_streams_are_the_users_byte_for_byte(tmp_path):
    given = bytes(range(256)) * 1000
    done = run(tmp_path, "sh", "-c", "cat; printf 'said\\377' >&2", input=given)
    assert done.stdout == given
    assert done.stderr.startswith(b"said\xff")


def test_files_that_are_open_for_the_command_stay_open(tmp_path):
    words = ["sh", "-c", '"$@" 3>three', "sh", *command(tmp_path / "runs", "sh", "-c", "echo for three >&3")]
    subprocess.run(words, cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "three").read_text() == "for three\n"


def test_the_environment_differs_by_the_hooks_variables_only(tmp_path):
    done = run(tmp_path, "env", "-0", env={**os.environ, "PYTHONPATH": "/theirs", "OMP_NUM_THREADS": "5"})
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    before = {**os.environ, "PYTHONPATH": "/theirs", "OMP_NUM_THREADS": "5"}
    changed = {name for name in seen.keys() | before.keys() if seen.get(name) != before.get(name)}
    assert {name for name in changed if not name.startswith(CARRIERS)} <= HOOKS | {"_"}
    assert seen["PYTHONPATH"].endswith(":/theirs")
    assert record_of(tmp_path)["environment"]["OMP_NUM_THREADS"] == "5"


def started(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(tmp_path, sys.executable, "-c", COUNTS_SIGNALS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_us_reaches_the_command_once_and_it_decides(tmp_path, number):
    process = started(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == f"came {int(number)}\n"
    assert process.returncode == 3, err
    assert record_of(tmp_path)["status"] == ("failed" if number == signal.SIGUSR1 else "cancelled")


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
    assert subprocess.run(nohup, capture_output=True, text=True, timeout=60, check=False).stdout == "True\n"


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
    assert (record["seed"], record["global_batch"], record["threads_per_rank"]) == (None, None, None)
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


PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["true"], "no Python process that imports torch was seen"),
        ([PYTHON, "-uI", "-c", "print(1)"], "Python was started with -I"),
        (["sh", "-c", f"{PYTHON} -S -c 'import time; time.sleep(2)'; true"], "Python was started with -S"),
        (["sh", "-c", f"PYTHONPATH=/x {PYTHON} -c 'import time; time.sleep(2)'; true"], "without our PYTHONPATH"),
        (["env", "-i", PYTHON, "-c", "import time; time.sleep(2)"], "without our PYTHONPATH"),
        (["env", PYTHON, "-E", "-c", ""], "Python was started with -E"),
    ],
)
def test_it_is_said_why_nothing_was_recorded(tmp_path, words, why):
    said = run(tmp_path, *words).stderr.decode()
    assert f"allpull: nothing was recorded: {why}" in said.replace("Python was started without", "without")
    assert "Traceback" not in said


@pytest.mark.torch
def test_a_process_that_imports_torch_and_does_not_train_is_named_as_such(tmp_path):
    said = run(tmp_path, PYTHON, "-c", "import torch").stderr.decode()
    assert "nothing was recorded: processes that imported torch: 1, of which none trained" in said


@pytest.mark.torch
def test_a_starter_that_imports_torch_does_not_hide_the_flag(tmp_path):
    """As torchrun does, whose ranks take no hook."""
    starts = f"import torch, subprocess; subprocess.run(['{PYTHON}', '-E', '-c', 'import time; time.sleep(5)'])"
    said = run(tmp_path, PYTHON, "-c", starts).stderr.decode()
    assert "nothing was recorded: Python was started with -E" in said
    assert "; processes that imported torch: 1" in said


PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6026"


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        ({0: PEER}, "rank 1 on n1, rank 2 on n1"),
        ({0: PEER, 2: PEER}, "rank 1 on n1"),
        ({0: PEER, 2: "ValueError: no"}, None),  # it is the one: rank 1 was ended by the starter
        ({0: PEER, 1: PEER, 2: PEER}, None),
        ({}, None),
    ],
)
def test_ranks_that_lost_a_neighbour_name_who_was_gone_without_a_word(tmp_path, raised, named):
    for rank in range(3):
        for folder in ("steps", "events"):
            (tmp_path / folder).mkdir(exist_ok=True)
        header = {"rank": rank, "ranks": 3, "host": "n1", "pid": 1}
        (tmp_path / layout.steps_file(rank)).write_text(json.dumps(header) + "\n")
        event = {"kind": "exception", "t_ns": 1} if rank in raised else {"kind": "epoch", "t_ns": 1}
        (tmp_path / layout.events_file(rank)).write_text(json.dumps(header) + "\n" + json.dumps(event) + "\n")
    failures = tuple(RankFailure(rank=rank, host="n1", exit_code=1, exception=text) for rank, text in raised.items())
    found = lost_rank(tmp_path, failures)
    assert found == (named and f"it lost its connection to another: {named} had ended without a word {OR_KILLED}")


OR_KILLED = "(killed, or out of memory?)"


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
    assert told == str(closed(words) is not None)


def test_a_command_in_our_own_python_runs_in_that_of_each_host():
    """On another host the same environment may stand elsewhere; another environment is left as it was named."""
    assert as_rank([PYTHON, "-u", "train.py"], check_files=False) == ("{python}", "-u", "train.py")
    assert as_rank(["train.py", "-I"], check_files=False) == ("{python}", "train.py", "-I")
    assert as_rank(["/other/python3", "train.py"], check_files=False) == ("/other/python3", "train.py")


def prepared(tmp_path: Path, *words: str):
    spec = RunSpec(name="x", launch=LaunchSpec(launcher=LAUNCHER), observe=ObserveSpec(counters=False))
    return prepare(spec, kind="run", program=words, command=["x"], out=tmp_path)


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
