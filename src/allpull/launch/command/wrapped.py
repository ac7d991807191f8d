"""Run a command unchanged, observed: as our child, on our streams and terminal, with a sidecar.

It may be anything: torchrun, srun, a shell script, one Python process. It starts its own ranks, so this launcher cannot
be chosen by name: ``allpull run`` without ``-n`` uses it. Only the hook's variables differ from running the command
without allpull, and allpull never ends it.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

from allpull.launch.command.hook_environment import hook_variables
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.signals import SignalRelay, ignored_now
from allpull.launch.host_endings import HostEnding, RankFailure, failure_of
from allpull.launch.job import Job
from allpull.launch.running import Running
from allpull.launch.shell_script import shell_script
from allpull.observe import clock_pings
from allpull.observe.host import describe_host
from allpull.observe.out_of_memory import OomKills
from allpull.observe.sidecar.start import await_end, start_detached
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.read.endings import ended_ns, has_ended
from allpull.rundir.read.headers import RankHeader, rank_headers
from allpull.rundir.write import whole_json

LAUNCHER = "command"
MOST_NAMED = 3  # ranks named in one sentence


class CannotStart(Exception):
    """The command does not exist or cannot be executed; ``exit_code`` is what a shell would return."""

    def __init__(self, command: str, error: OSError) -> None:
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        what = "command not found" if self.exit_code == 127 else error.strerror or str(error)
        super().__init__(f"{command}: {what}")


class Wrapped:
    """The launcher of a command that starts its own ranks. ``watch`` looks at its processes, once there are any."""

    def __init__(self) -> None:
        self._ignored = ignored_now()  # before ``execute`` installs handlers
        self.watch: ProcessWatch | None = None

    def plan(self, job: Job) -> str:
        """The command, and the variables it gets."""
        return shell_script(job, hook_variables(job, os.environ), job.program or ())

    def submit(self, job: Job) -> WrappedJob:
        """Start the command of ``job``.

        Raises:
            CannotStart: it cannot be started.
        """
        running = WrappedJob(job, self._ignored)
        self.watch = running.watch
        return running


class WrappedJob(Running):
    """A running command."""

    def __init__(self, job: Job, ignored: frozenset[int]) -> None:
        assert job.program is not None
        self._job = job
        self._relay = SignalRelay(ignored)
        self._out_of_memory = OomKills()
        host = socket.gethostname()
        try:
            self._command = subprocess.Popen(
                job.program,
                env={**os.environ, **hook_variables(job, os.environ)},
                close_fds=False,  # what the user opened for the command is its own; ours are not inherited
                preexec_fn=self._relay.in_command,  # noqa: PLW1509  we have no threads
            )
        except (OSError, ValueError) as error:
            self._relay.close()
            raise CannotStart(job.program[0], error if isinstance(error, OSError) else OSError(str(error))) from error
        self._sidecar = start_sidecar(job, host, self._command.pid)
        if self._sidecar is None:  # it would say what this host is
            with suppress(OSError):  # the disk is full, say; the command runs already
                whole_json(str(job.directory / layout.host_file(host)), describe_host(str(job.directory), host=host))
        self.watch = ProcessWatch(job.program, job.directory, pid=self._command.pid)

    def poll(self) -> list[HostEnding] | None:
        """How the command ended, or None while it runs; signals that came are passed on."""
        self._relay.pass_on(self._command.send_signal)
        code = self._command.poll()
        if code is None:
            with suppress(Exception):  # this is only diagnosis, and must not lose the command's exit code
                self.watch.look()
            return None
        self._relay.close()
        await_end(self._sidecar)
        shell_code = 128 - code if code < 0 else code
        failures = failures_of(self._job.directory, self._command.pid, code) if code else ()
        stopped = self._relay.ended_by is not None
        reason = None
        if code and not stopped:  # where no rank raised, its starter was faster to end the others
            directory = self._job.directory
            reason = lost_rank(directory, failures) if failures else silent_ranks(directory, set())
        why = self._out_of_memory.sentence(socket.gethostname()) if code and not stopped else None
        if reason is not None or stopped:
            failures = ()  # those that raised lost a peer, or raised because they were asked to end
        reason = "; ".join(filter(None, (reason, why))) or None
        return [
            HostEnding(host=socket.gethostname(), code=shell_code, failures=failures, reason=reason, stopped=stopped)
        ]

    def cancel(self, grace_s: float) -> None:  # noqa: ARG002  the command is not ours to end
        """Wait until the command has ended by itself: we only get here if allpull itself failed."""
        self._relay.close()
        self._command.wait()
        await_end(self._sidecar)


def start_sidecar(job: Job, host: str, pid: int) -> subprocess.Popen[bytes] | None:
    """Start what samples this host's counters until ``pid`` ends; None if it is not requested or not possible."""
    try:
        return start_detached(JobFile.read(str(job.file), job.secrets), host, watch=pid, clock=clock_pings.ASK)
    except (OSError, ValueError):
        return None


def failures_of(directory: Path, pid: int, code: int) -> tuple[RankFailure, ...]:
    """The ranks of a command that ended with ``code`` (negative: by a signal) that raised, or were the command.

    Their exit code is the command's: only what started the ranks knows the code of each.
    """
    failed = []
    for rank in rank_headers(directory):
        failure = failure_of(directory, rank.rank, rank.host, exit_code=128 - code if code < 0 else code)
        if failure.exception is None and rank.pid == pid and rank.host == socket.gethostname() and code < 0:
            failure = RankFailure(rank=rank.rank, host=rank.host, exit_code=code)
        if failure.exception is not None or failure.exit_code < 0:
            failed.append(failure)
    return tuple(failed)


def lost_rank(directory: Path, failures: Sequence[RankFailure]) -> str | None:
    """A sentence that names ranks that were gone first, if every rank that raised lost its connection to one.

    They died silently or, if none did, left without an exception, as by ``sys.exit``. None: a rank raised something
    else, or there are none.

    Ranks that the command itself ended are silent too: they are named only if all ``failures`` are lost connections,
    one of which must have been to them.
    """
    raised = [failure for failure in failures if failure.exception is not None]
    if not raised or not all(failure.lost_peer for failure in raised):
        return None
    first = raised[0]
    gone = silent_ranks(directory, {failure.rank for failure in failures}) or _left_ranks(directory, raised)
    if gone is None:
        return None
    return f"{gone}; rank {first.rank} on {first.host} then lost its connection: {first.exception}"


def silent_ranks(directory: Path, raised: Set[int]) -> str | None:
    """A sentence that names the ranks, other than ``raised``, that ended without recording it; None: there are none."""
    silent = [one for one in rank_headers(directory) if one.rank not in raised and not has_ended(directory, one.rank)]
    return f"{_named(silent)} ended without a Python exception (killed, or out of memory?)" if silent else None


def _left_ranks(directory: Path, raised: Sequence[RankFailure]) -> str | None:
    """The same of those that ended as a program does, which does not tell with which code; None: there are none.

    On hosts of which ranks ``raised`` they have to have done so before: clocks of others do not compare.
    """
    lost = sorted(((one.raised_ns, one.host) for one in raised if one.raised_ns is not None), reverse=True)
    moments = {host: raised_ns for raised_ns, host in lost}  # the earliest of each host
    left = []
    for one in rank_headers(directory):
        end_ns = ended_ns(directory, one.rank)
        if end_ns is not None and end_ns <= moments.get(one.host, end_ns):
            left.append(one)
    return f"{_named(left)} ended first, without an exception (sys.exit, or fewer batches?)" if left else None


def _named(ranks: Sequence[RankHeader]) -> str:
    names = ", ".join(f"rank {rank.rank} on {rank.host}" for rank in ranks[:MOST_NAMED])
    more = f" and {len(ranks) - MOST_NAMED:,} more" if len(ranks) > MOST_NAMED else ""
    return f"{names}{more}"
