"""Run a prepared job until it ends, and keep ``run.json`` up to date meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType

from allpull.errors import RunDirError
from allpull.launch.echo import Echo
from allpull.launch.host_endings import HostEnding
from allpull.launch.job import WARNED, Job
from allpull.launch.launcher import Launcher
from allpull.launch.outcome import outcome, versions_of
from allpull.launch.running import Running
from allpull.rundir import layout
from allpull.rundir.read.headers import USER_STARTED, rank_files, with_recorded_ranks
from allpull.rundir.run_record import write_record, write_script
from allpull.rundir.tidy import close_directory
from allpull.schema.run import Exit, RunRecord, Status

LOOK_EVERY_S = 0.2
CORRECT_EVERY_S, CORRECT_AGAIN_S = 1.0, 60.0  # between listings of a folder that may hold thousands of ranks
OWN_FAILURE = 125  # of allpull itself


class Stopped(BaseException):
    """The user stops the job, by Ctrl-C or a signal; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def execute(
    job: Job,
    launcher: Launcher,
    look: Callable[[], None],
    say: Callable[[str], None] = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
) -> RunRecord:
    """Start ``job`` with ``launcher``, call ``look`` regularly while it runs, and return its final record.

    ``say`` gets the state of a queued job each time that it changes. Of an array, all runs are waited for; the record
    is that of the first run that failed, or else of the first run. ``on_start`` is called once, as soon as
    a signal ends the whole job in order and not only this process.

    Ctrl-C, SIGTERM and SIGHUP end every process of the job; the record then says ``cancelled``. So does SIGUSR1, but
    if the launcher can pass it on, ranks write a checkpoint before they end.

    Raises:
        AllpullError: the job could not be started; the record says ``failed``.
    """
    runs = _Runs(job, say)
    with _signals_raise() as signals:
        running: Running | None = None
        try:
            on_start()
            script = launcher.plan(job)
            for run in runs.all:
                write_script(run.directory, script)
            running = launcher.submit(job)
            runs.begin(running.queue_numbers)
            _wait(runs, running, signals, look)
        except BaseException as error:
            try:
                _cancel(running, job.spec.launch.grace_s)
            finally:
                signals.ignore()  # nothing is left to stop, and the records must be closed
                runs.close_rest(error, running)
            if not isinstance(error, Stopped):
                raise
        return runs.record()


class _Runs:
    """The runs of a job, and the final records of those that have ended.

    If the job is a command of the user's, a full disk does not end it.
    """

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self.all = job.tasks or (job,)
        self.is_array = bool(job.tasks)
        self.say = say
        self._final: dict[int, RunRecord] = {}
        self._files, self._missing, self._correct_at = 0, True, 0.0

    def begin(self, numbers: Sequence[str]) -> None:
        """All runs are submitted; ``numbers`` are theirs in a queue, if there is one."""
        if numbers:
            runs = zip(self.all, numbers, strict=True)
            self.all = tuple(replace(run, record=_changed(run, job=number)) for run, number in runs)
        for run in self.all:
            self._write(run, _changed(run, status="running"))

    def correct(self) -> None:
        """Record the ranks of a command that starts its own ranks, as their files appear."""
        run, now = self.all[0], time.monotonic()
        if run.record.launcher not in USER_STARTED or now < self._correct_at:
            return
        files = rank_files(run.directory)
        if files != self._files:
            self._files, changed = files, _changed(run, status="running")
            self._missing = changed.ranks > files
            self._write(run, changed)
        self._correct_at = now + (CORRECT_EVERY_S if self._missing else CORRECT_AGAIN_S)

    def close(self, place: int, ended: list[HostEnding]) -> None:
        """The run at ``place`` has ended on every host; closing it twice changes nothing."""
        if place in self._final:
            return
        run = self.all[place]
        status, exit_ = outcome(ended, run.directory, trains=run.program is None)
        self._close(place, status, exit_, ended)
        if len(self.all) > 1:
            self.say(f"{run.directory}: {status}" + (f", {exit_.describe()}" if exit_.code else ""))
        elif exit_.code == WARNED and run.program is None:
            self.say(exit_.describe())
        elif exit_.code == 0 and exit_.reason:
            self.say(f"allpull: {exit_.reason}")

    def close_rest(self, error: BaseException, running: Running | None) -> None:
        """Close every run that is still open: ``error`` ended the job, and nothing of it is ``running`` any more."""
        status: Status = "failed"
        exit_ = Exit(code=getattr(error, "exit_code", OWN_FAILURE), reason=str(error) or None)
        if isinstance(error, Stopped):
            missing = running.missing_records() if running is not None else ()
            for sentence in missing:
                self.say(f"allpull: {sentence}")
            status, exit_ = "cancelled", Exit(code=128 + error.number, reason="; ".join(missing) or None)
        for place in range(len(self.all)):
            if place not in self._final:
                self._close(place, status, exit_, [])

    def record(self) -> RunRecord:
        """The record of the first run that failed, else of the first."""
        records = [self._final[place] for place in range(len(self.all))]
        return next((record for record in records if record.exit and record.exit.code), records[0])

    def _close(self, place: int, status: Status, exit_: Exit, ended: list[HostEnding]) -> None:
        run, now = self.all[place], f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        ending = {"hosts": [host.host for host in ended], "versions": versions_of(run.record, ended)}
        self._final[place] = _changed(run, status=status, exit=exit_, ended_utc=now, **ending)
        try:
            close_directory(run.directory, self._final[place])
        except (OSError, RunDirError) as error:
            if run.program is None and exit_.code == 0:
                raise
            self._not_written(run, error)  # what ended the job comes first: often it is the same disk

    def _write(self, run: Job, record: RunRecord) -> None:
        try:
            write_record(run.directory, record)
        except OSError as error:
            if run.program is None:
                raise
            self._not_written(run, error)

    def _not_written(self, run: Job, error: OSError | RunDirError) -> None:
        reason = getattr(error, "strerror", None) or error
        self.say(f"allpull: {run.directory / layout.RUN_JSON} is not up to date: {reason}")


def _cancel(running: Running | None, grace_s: float) -> None:
    """End every process of the job; at once if the user requests it again meanwhile."""
    if running is None:
        return
    try:
        running.cancel(grace_s)
    except Stopped:
        with suppress(Stopped):
            running.cancel(0)


def _wait(runs: _Runs, running: Running, signals: _Signals, look: Callable[[], None]) -> None:
    """Wait for all runs, pass a warning on, and close the record of each run that has ended."""
    shown = ""
    echo = Echo(running.output)
    while True:
        ended = running.poll()
        echo.copy()
        runs.correct()
        if (state := running.state()) != shown:
            runs.say(state)
            shown = state
        look()
        finished = running.ended_runs() if runs.is_array else {} if ended is None else {0: ended}
        for place, hosts in finished.items():
            runs.close(place, hosts)
        if ended is not None:
            echo.finish()
            return
        if signals.take_warning() and not running.warn():
            raise Stopped(signal.SIGUSR1)
        time.sleep(LOOK_EVERY_S)


def _changed(run: Job, **changes: object) -> RunRecord:
    return with_recorded_ranks(run.record.model_copy(update=changes), run.directory)


class _Signals:
    """Handler that raises ``Stopped`` for the signals that end a program, until ``ignore``; SIGUSR1 is kept."""

    _ignored = False
    _warned = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._warned = True
        elif not self._ignored:
            raise Stopped(number)

    def ignore(self) -> None:
        """Raise no more."""
        self._ignored = True

    def take_warning(self) -> bool:
        """Whether SIGUSR1 has arrived since the last call."""
        warned, self._warned = self._warned, False
        return warned


@contextmanager
def _signals_raise() -> Iterator[_Signals]:
    """Turn the signals that end a program into ``Stopped`` while a job runs."""
    signals = _Signals()
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)  # nohup
    before = {number: signal.signal(number, signals) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
