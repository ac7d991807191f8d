"""What reads our output may leave (``allpull show … | head``), or never was there (``>&-``): that is no error."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from allpull.launch.echo import Echo, Log
from allpull.patient_stream import PatientStream


@pytest.mark.parametrize("command", [("show",), ("show", "--json"), ("watch", "--once"), ("watch", "--json")])
def test_output_that_nobody_reads_is_no_error(command):
    run = Path(__file__).parents[1] / "runs/v1.0"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "allpull", command[0], str(run), *command[1:]],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("closed", "is_heard"), [(">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)])
@pytest.mark.parametrize("command", ["show RUN", "show RUN --json", "watch --once RUN", "--help"])
def test_a_closed_stream_leads_nowhere(command, closed, is_heard):
    run = Path(__file__).parents[1] / "runs/v1.0"
    line = f"exec {sys.executable} -m allpull {command.replace('RUN', str(run))} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == is_heard


PRINTS = """
import os, subprocess, sys, tempfile
from allpull.__main__ import _open_streams
_open_streams()
file = tempfile.TemporaryFile()
subprocess.run(["sh", "-c", "echo out; echo err >&2; cat"], check=True)
os._exit(os.fstat(file.fileno()).st_size)
"""


def test_what_a_program_prints_to_a_closed_stream_reaches_no_file_of_ours():
    line = f"exec {sys.executable} -c '{PRINTS}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0


@pytest.mark.parametrize("command", ["show RUN", "show RUN --json", "--help"])
def test_a_full_disk_below_stdout_is_named(command):
    run = Path(__file__).parents[1] / "runs/v1.0"
    line = f"exec {sys.executable} -m allpull {command.replace('RUN', str(run))} > /dev/full"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "allpull: No space left on device: standard output\n")


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing before it is read; its capacity is one page."""
    read, write = os.pipe()
    os.write(write, b"x" * fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, select.PIPE_BUF))
    return read, write


def drained(read: int, stream: PatientStream | Echo) -> bytes:
    """What a reader gets who begins to read as ``stream`` waits for him."""
    waiting = threading.Thread(target=stream.finish)
    waiting.start()
    said = b""
    while waiting.is_alive() or select.select([read], [], [], 0)[0]:
        if select.select([read], [], [], 0.1)[0]:
            said += os.read(read, 1 << 16)
    return said


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_full_pipe_is_not_waited_for_and_gets_every_byte_in_the_end(is_shared):
    read, write = full_pipe()
    os.set_blocking(write, not is_shared)
    stream = PatientStream(write)
    said = [b"%d\n" % number for number in range(20_000)]
    for line in said:
        stream.write(line)
    assert stream.is_behind
    assert drained(read, stream) == b"x" * select.PIPE_BUF + b"".join(said)
    assert not stream.is_behind


def test_a_log_is_echoed_into_a_full_pipe_without_waiting(tmp_path):
    read, write = full_pipe()
    echo = Echo([Log(path=tmp_path / "log", stream=write)])
    (tmp_path / "log").write_bytes(content := os.urandom(300_000))
    echo.copy()
    echo.copy()
    assert drained(read, echo) == b"x" * select.PIPE_BUF + content


def test_a_stream_whose_reader_is_gone_keeps_nothing():
    read, write = full_pipe()
    stream = PatientStream(write)
    stream.write(b"late")
    os.close(read)
    with pytest.raises(BrokenPipeError):
        stream.write(b"")
    assert not stream.is_behind
    os.close(write)


TRAIN = ("train", "digits", "-n", "1", "--set", "train.epochs=2", "--set", "data.limit=200")


def trained(out: Path, stderr: int) -> subprocess.Popen[bytes]:
    """A short training that says what it does on ``stderr``."""
    command = [sys.executable, "-m", "allpull", *TRAIN, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)


def recorded(out: Path) -> tuple[str, dict]:
    """The status and the exit of the one run in ``out``, once it has been closed."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in out.glob("*/run.json"):
            record = json.loads(path.read_text())
            if record["exit"] is not None:
                return record["status"], record["exit"]
        time.sleep(0.2)
    raise AssertionError("the run has not ended")


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_training_does_not_wait_for_the_reader_of_its_progress(is_terminal, tmp_path):
    if is_terminal:
        read, write = pty.openpty()
        termios.tcflow(write, termios.TCOOFF)  # as Ctrl-S
    else:
        read, write = full_pipe()
    training = trained(tmp_path, write)
    assert recorded(tmp_path)[0] == "completed"
    assert training.poll() is None
    if is_terminal:
        termios.tcflow(write, termios.TCOON)
    os.close(write)
    said = b""
    with suppress(OSError):  # how a terminal without programs ends
        while data := os.read(read, 1 << 16):
            said += data
    assert training.wait() == 0
    assert b"epoch 2/2" in said
    assert b"run directory: " in said


@pytest.mark.ranks
@pytest.mark.slow
def test_a_training_goes_on_whose_reader_is_gone(tmp_path):
    read, write = os.pipe()
    os.close(read)
    training = trained(tmp_path, write)
    os.close(write)
    status, exit_ = recorded(tmp_path)
    assert (status, exit_["code"], exit_["reason"]) == ("completed", 0, None)
    assert training.wait() == 0
