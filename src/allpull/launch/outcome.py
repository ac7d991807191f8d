"""How a job ended: which rank failed first, where, why, and with which exit code.

When one rank dies, the others fail in their next collective, and the agent ends the remaining ranks. The first failure
is therefore chosen in this order: a rank killed by a signal that was not ours; the rank with the earliest exception,
other than a lost connection to a peer; one that exited without any, as by ``os._exit``; the earliest lost connection;
any other.
"""

from __future__ import annotations

import fnmatch
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from allpull.launch.host_endings import HostEnding, RankFailure
from allpull.launch.job import WARNED
from allpull.rundir import layout
from allpull.rundir.read.lenient import file_names
from allpull.schema.gap import named_ranks
from allpull.schema.run import Exit, RunRecord, Status


def outcome(ended: Sequence[HostEnding], directory: Path, *, trains: bool) -> tuple[Status, Exit]:
    """How the run in ``directory`` ended on all its hosts; ``trains``: its ranks run a program of ours."""
    exit_ = exit_of(ended)
    if exit_.code == WARNED and trains:
        exit_ = Exit(code=WARNED, reason=_warned(directory))
    was_requested = exit_.code == WARNED or any(host.stopped for host in ended)
    return "completed" if exit_.code == 0 else "cancelled" if was_requested else "failed", exit_


def versions_of(record: RunRecord, ended: Sequence[HostEnding]) -> dict[str, str | None]:
    """The versions of ``record``, corrected by the first host that reports its own: a container's, or another Python's.

    A version in neither is unknown, such as torch's in a container whose agent was killed.
    """
    return {**record.versions, **next((host.versions for host in ended if host.versions), {})}


def _warned(directory: Path) -> str:
    """The reason of a run that a warning ended."""
    names = file_names(directory, layout.CHECKPOINTS, "")
    saved = max(fnmatch.filter(names, layout.CHECKPOINT_NAMES), default=None)
    resumable = f"; --resume {directory} continues from {saved}" if saved else ", with no checkpoint yet"
    return f"stopped at a warning (SIGUSR1){resumable}"


def first_failure(failures: Iterable[RankFailure]) -> RankFailure | None:
    """The failure that caused the others, or None.

    Times of one host or boot are compared on its monotonic clock; a rank whose disk took no header has no boot. Times
    of several boots are compared on wall clocks, the best that is available when a job has just died: a peer notices a
    lost connection within milliseconds, and synchronised clocks agree to about one.
    """
    every = list(failures)
    one_clock = len({failure.host for failure in every}) == 1 or len({failure.boot_id for failure in every}) == 1
    return min(every, key=lambda failure: _rank_of_suspicion(failure, one_clock=one_clock), default=None)


def _rank_of_suspicion(failure: RankFailure, *, one_clock: bool) -> tuple[int, int, int]:
    if failure.by_signal:
        return (0, 0, failure.rank)
    if failure.raised_ns is not None:
        raised_ns = failure.raised_ns + (0 if one_clock else failure.realtime_ahead_ns)
        return (3 if failure.lost_peer else 1, raised_ns, failure.rank)
    return (2 if failure.exit_code > 0 else 4, 0, failure.rank)


def exit_of(ended: Sequence[HostEnding]) -> Exit:
    """The exit of the whole job; its code is that of the first failure, 128 + n for signal n."""
    first = first_failure(failure for host in ended for failure in host.failures)
    reason = next((host.reason for host in ended if host.reason), None)
    if first is None:
        code = next((host.code for host in ended if host.code), 0)
        tail = next((host.log_tail for host in ended if host.log_tail), ())
        return Exit(code=code, reason=reason, log_tail=list(tail) if code else [])
    finished = sorted(rank for host in ended for rank in host.finished)
    if first.lost_peer and finished and reason is None:
        reason = f"{named_ranks(finished)} had ended with exit code 0 by then: by fewer batches, or os._exit?"
    number = -first.exit_code if first.exit_code < 0 else None
    code = first.exit_code if number is None else 128 + number
    if number is not None and first.exception is not None and not first.by_signal:
        # it raised an exception and was still exiting when the agent ended the others: the signal was ours
        number, code = None, next((host.code for host in ended if 0 < host.code < 128), 1)
    return Exit(
        code=code,
        rank=first.rank,
        host=first.host,
        signal=_signal_name(number) if number else None,
        exception=first.exception,
        hint=first.hint,
        reason=reason,
        log_tail=list(first.log_tail),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
