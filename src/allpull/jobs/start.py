"""Start a job in a process of its own, and follow what it answers."""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from allpull.errors import AllpullError, from_plain
from allpull.observe.process import end_with_parent
from allpull.rundir.write import no_follow
from allpull.units import show_time

START_S = 120.0  # the first import of torch and its dependencies from a cold network disk
END_S = 10.0  # for a process that has started nothing
CANCEL_AGAIN_S = 60.0  # several times the grace that ranks have by default


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job for a process of its own: its ``kind`` (train, run, rehearse), and the options of that kind.

    ``out`` is the folder for the run directory, ``origin`` the command line that would start the same job.
    ``environment`` are variables added to ours. ``tied``: the job is cancelled when this process ends, however it ends
    (on Linux), and it keeps the file descriptors ``held`` open until it has ended itself. ``log``: where its output
    goes; None: to ours.
    """

    kind: str
    options: Mapping[str, Any]
    out: Path
    origin: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    held: Sequence[int] = ()
    log: Path | None = None


class StartedJob:
    """The process of a job that has its run directory, ``directory``, absolute."""

    def __init__(self, process: subprocess.Popen[bytes], answers: _Answers, directory: Path) -> None:
        self._process = process
        self._answers = answers
        self.started_s = time.monotonic()
        self.directory = directory

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def notes(self) -> list[str]:
        """The launcher's messages so far, a sentence each."""
        return list(self._answers.notes)

    def wait(self, at_most_s: float) -> int | None:
        """Wait until the job has ended, at most so long; its exit code, or None."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(at_most_s)
        return self._process.returncode

    def cancel(self) -> None:
        """End every process of the job, and wait for that; its run is then ``cancelled``."""
        while self.exit_code is None:
            self.ask_to_end()
            self.wait(CANCEL_AGAIN_S)

    def ask_to_end(self) -> None:
        """Ask the job to end all its processes in order; returns at once."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the job's process and all that it started here, at once."""
        with suppress(psutil.Error):
            tree = psutil.Process(self._process.pid).children(recursive=True)
            for child in tree:
                with suppress(psutil.Error):
                    child.kill()
        self._process.kill()
        self._process.wait()


class _Answers:
    """Messages of a job's process on its channel, read by a thread so that the channel never fills."""

    def __init__(self, descriptor: int) -> None:
        self.notes: list[str] = []
        self.first: queue.Queue[dict[str, Any]] = queue.Queue()
        self._file = os.fdopen(descriptor, encoding="utf-8")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._file:
            for line in self._file:
                fields = json.loads(line)
                if "note" in fields:
                    self.notes.append(fields["note"])
                else:
                    self.first.put(fields)
        self.first.put({})  # the process has ended


def start(job: JobRequest) -> StartedJob:
    """Start the process of a job, and wait until it has made its run directory.

    Raises:
        AllpullError: it cannot be started, or takes longer than ``START_S``.
    """
    reading, writing = os.pipe()
    with nullcontext() if job.log is None else open(job.log, "ab", opener=no_follow) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "allpull.jobs"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writing, *job.held),
            env={**os.environ, **job.environment},
            start_new_session=True,  # Ctrl-C is for us, and `wait` passes it on
            preexec_fn=functools.partial(end_with_parent, signal.SIGTERM) if job.tied else None,  # noqa: PLW1509  one system call
        )
    os.close(writing)
    answers = _Answers(reading)
    request = {
        "kind": job.kind,
        "options": dict(job.options),
        "out": str(job.out),
        "origin": list(job.origin),
        "answers": writing,
        "held": list(job.held),
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:  # where it has ended, its exit code says more
        stdin.write(json.dumps(request).encode() + b"\n")
    try:
        first = answers.first.get(timeout=START_S)
    except queue.Empty:
        _end(process)
        raise AllpullError(
            "; ".join([f"the job did not start within {show_time(START_S)}", *answers.notes]),
            hint="a first import from a network disk may take minutes: try again",
        ) from None
    except BaseException:  # Ctrl-C
        _end(process)
        raise
    if "directory" in first:
        return StartedJob(process, answers, Path(first["directory"]))
    process.wait()
    if "error" in first:
        raise from_plain(first["error"])
    reason = "; ".join(answers.notes) or f"exit code {process.returncode}"
    raise AllpullError(f"the job could not be started: {reason}", hint="its messages are on standard error")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a job that has not started, in order where it can."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
