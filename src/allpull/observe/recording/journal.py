"""The two files of a rank: its steps and its events, with their headers, clock pairs and budget."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Sequence

from ...rundir import layout, redact
from ...rundir.write import Appender, whole_json
from ..affinity import bound_to
from ..identity import Identity
from ..scratch import RAISED

VERSION = "1.6"  # of the records; a test checks that schema.base.VERSION is the same
CLOCK_EVERY_NS = 60_000_000_000  # often enough to see a clock step; drift of 20 ppm is 1.2 ms in that time


class Journal:
    """Writes the records of one rank; if that fails it warns once, and the program continues.

    ``boundary`` and ``sources`` record how steps and times were measured.
    """

    def __init__(
        self,
        directory: str,
        who: Identity,
        *,
        budget: int,
        warmup_steps: int,
        boundary: str,
        sources: Sequence[str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._realtime_ns = realtime_ns
        self._pid = os.getpid()
        self._next_clock_ns = 0
        self._events = Appender(
            os.path.join(directory, layout.events_file(who.rank)),
            budget,
            on_trouble=_warn,
            on_thin=lambda keep: self._thinned("events", keep),
            clock_ns=clock_ns,
        )
        self._steps = Appender(
            os.path.join(directory, layout.steps_file(who.rank)),
            budget,
            on_trouble=self.switched_off,
            on_thin=lambda keep: self._thinned("steps", keep),
            clock_ns=clock_ns,
        )
        self._headers(who, budget, warmup_steps, boundary, sources)

    @property
    def is_open(self) -> bool:
        """Whether steps still reach the disk."""
        return self._steps.is_open

    def steps(self, lines: Sequence[str], now_ns: int) -> None:
        """Write the lines of steps to disk; about once per minute also a pair of clocks."""
        self._steps.add_all(lines)
        self._steps.flush(now_ns)
        self._events.flush(now_ns)  # a process that is killed, or ends by os._exit, flushes nothing
        if now_ns >= self._next_clock_ns:
            self._clock_pair(now_ns)

    def flush(self) -> None:
        """Write buffered events to disk; ``steps`` does so for steps."""
        self._events.flush()

    def event(self, event: Dict[str, Any], now_ns: int, *, keep: bool = True) -> None:
        """One line of the events; without ``keep`` the budget may thin it out."""
        self._events.add(json.dumps(event), now_ns, keep=keep)

    def remark(self, text: str) -> None:
        """A note for the readers of the run."""
        now = self._clock_ns()
        self.event({"kind": "remark", "text": _clean(text, 1000), "t_ns": now}, now)

    def restarted(self, attempt: int, steps_before: int) -> None:
        """This rank continues after an earlier attempt, which had recorded ``steps_before`` steps."""
        now = self._clock_ns()
        self.event({"kind": "restarted", "attempt": attempt, "steps_before": steps_before, "t_ns": now}, now)

    def raised(self, error: BaseException) -> None:
        """The exception that ends this rank; if the disk takes no more, perhaps its cause, torch's agent gets it."""
        now, message = self._clock_ns(), _clean(str(error), 4000)
        hint = vars(error).get("hint")  # of an ``AllpullError``; getattr might run code of the user's
        advice = {"hint": _clean(hint, 1000)} if isinstance(hint, str) and hint else {}
        event = {"kind": "exception", "type": type(error).__name__, "message": message, **advice, "t_ns": now}
        self.event(event, now)
        self._events.flush(now)
        if not self._events.is_open:
            _leave_to_agent(event)

    def switched_off(self, reason: str, part: Optional[str] = None) -> None:
        """Record and warn that recording, or one ``part`` of it, ended here."""
        _warn(reason, part)
        now = self._clock_ns()
        self.event({"kind": "switched_off", "reason": reason, "part": part, "t_ns": now}, now)

    def close(self, *, steps: int, ended_well: bool) -> None:
        """Write what is buffered; ``ended_well``: with the event that the rank ended normally after ``steps``."""
        if os.getpid() != self._pid:
            return  # a forked child must not write the buffers of its parent
        now = self._clock_ns()
        self._clock_pair(now)
        self._steps.close()
        if ended_well:
            left_out = self._steps.left_out + self._events.left_out
            self.event({"kind": "end", "steps": steps, "left_out": left_out, "cpus": bound_to(), "t_ns": now}, now)
        self._events.close()

    def disown(self) -> None:
        """Stop writing, in a forked child."""
        self._steps = self._events = _NOWHERE

    def _clock_pair(self, now_ns: int) -> None:
        self._next_clock_ns = now_ns + CLOCK_EVERY_NS
        self.event({"kind": "clock", **clock_pair(self._clock_ns, self._realtime_ns)}, now_ns)

    def _thinned(self, file: str, keep_one_in: int) -> None:
        now = self._clock_ns()
        self.event({"kind": "thinned", "file": file, "keep_one_in": keep_one_in, "t_ns": now}, now)

    def _headers(self, who: Identity, budget: int, warmup_steps: int, boundary: str, sources: Sequence[str]) -> None:
        now = self._clock_ns()
        common = {"rank": who.rank, "host": who.host, "budget": budget}
        header = {
            "schema": f"allpull.steps/{VERSION}",
            **common,
            "local_rank": who.local_rank,
            "ranks": who.ranks,
            "boot_id": boot_id(),
            "pid": self._pid,
            "clock": clock_pair(self._clock_ns, self._realtime_ns),
            "cpus": bound_to(),
            "boundary": boundary,
            "sources": list(sources),
            "warmup_steps": warmup_steps,
        }
        self._steps.add(json.dumps(header), now, keep=True)
        self._events.add(json.dumps({"schema": f"allpull.events/{VERSION}", **common}), now, keep=True)
        self._clock_pair(now)
        self._steps.flush()
        self._events.flush()


def clock_pair(clock_ns: Callable[[], int], realtime_ns: Callable[[], int]) -> Dict[str, int]:
    """One moment on both clocks: the real time between two readings of the monotonic one."""
    before = clock_ns()
    real = realtime_ns()
    return {"monotonic_ns": (before + clock_ns()) // 2, "realtime_ns": real}


def boot_id() -> Optional[str]:
    """The kernel's id of this boot: ranks with the same one share the monotonic clock. None: not Linux."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _clean(text: str, most: int) -> str:
    """At most so many characters of ``text``, secrets masked; also one that the cut goes through."""
    return redact.text(text[: 2 * most])[0][:most]


def _leave_to_agent(event: Dict[str, Any]) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):
        message = {"message": f"{event['type']}: {event['message']}", "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            whole_json(path, {"message": message, RAISED: event})


def _warn(reason: str, part: Optional[str] = None) -> None:
    event = "recording stopped" if part is None else f"{part}: no longer observed"
    with suppress(OSError):  # a log on the same full disk
        os.write(2, f"allpull: {event}, the program continues: {reason}\n".encode())


class _Nowhere(Appender):
    """An appender without a file, for forked children."""

    def __init__(self) -> None:
        self.left_out = 0
        self._descriptor = None
        self._lines: List[str] = []

    def flush(self, now_ns: Optional[int] = None) -> None:
        """Nothing to write."""


_NOWHERE = _Nowhere()
