"""Run a prepared job to its end, whatever that is, and keep ``run.json`` true all along."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType

from allpull.launch.job import Job, seal, write_record
from allpull.launch.launcher import Launcher, Queued, Running
from allpull.launch.outcome import exit_of
from allpull.rundir import layout, redact
from allpull.rundir.write import whole_file
from allpull.schema.run import Exit, RunRecord, Status

LOOK_EVERY_S = 0.2
OWN_FAILURE = 125  # of allpull itself


class Stopped(BaseException):
    """The user asked to stop, by Ctrl-C or a signal; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def execute(
    job: Job, launcher: Launcher, look: Callable[[], None], say: Callable[[str], None] = lambda _: None
) -> RunRecord:
    """Start ``job`` with ``launcher``, call ``look`` now and then while it runs, and return its final record.

    ``say`` is told where a job is that may wait in a queue, each time that this changes.

    Ctrl-C, SIGTERM and SIGHUP end every process of the job; the record then says ``cancelled``.

    Raises:
        AllpullError: the job could not be started; the record says ``failed``.
    """
    with _signals_raise() as signals:
        running: Running | None = None
        try:
            whole_file(str(job.directory / layout.SCRIPT), redact.text(launcher.plan(job))[0])
            running = launcher.submit(job)
            _update(job, status="running")
            return _wait(job, running, look, say)
        except Stopped as stopped:
            _end(running, job.spec.launch.grace_s)
            signals.ignore()  # nothing is left to stop, and the record must be closed
            return _close(job, "cancelled", Exit(code=128 + stopped.number))
        except BaseException as error:
            _end(running, job.spec.launch.grace_s)
            signals.ignore()
            _close(job, "failed", Exit(code=getattr(error, "exit_code", OWN_FAILURE), reason=str(error) or None))
            raise


def _end(running: Running | None, grace_s: float) -> None:
    """End every process of the job; asked again meanwhile, at once."""
    if running is None:
        return
    try:
        running.cancel(grace_s)
    except Stopped:
        with suppress(Stopped):
            running.cancel(0)


def _wait(job: Job, running: Running, look: Callable[[], None], say: Callable[[str], None]) -> RunRecord:
    said = ""
    while True:
        ended = running.poll()
        if isinstance(running, Queued) and (state := running.state()) != said:
            say(state)
            said = state
        look()
        if ended is not None:
            exit_ = exit_of(ended)
            hosts = [host.host for host in ended]
            return _close(job, "completed" if exit_.code == 0 else "failed", exit_, hosts)
        time.sleep(LOOK_EVERY_S)


def _close(job: Job, status: Status, exit_: Exit, hosts: list[str] | None = None) -> RunRecord:
    seal(job)
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return _update(job, status=status, exit=exit_, ended_utc=now, hosts=hosts or [])


def _update(job: Job, **changes: object) -> RunRecord:
    record = job.record.model_copy(update=changes)
    write_record(job.directory, record)
    return record


class _Signals:
    """The signals that end a program, raised as ``Stopped`` until they are to be ignored."""

    ignored = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self.ignored:
            raise Stopped(number)

    def ignore(self) -> None:
        """Raise no more."""
        self.ignored = True


@contextmanager
def _signals_raise() -> Iterator[_Signals]:
    """Turn the signals that end a program into ``Stopped`` while a job runs."""
    signals = _Signals()
    before = {number: signal.signal(number, signals) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
