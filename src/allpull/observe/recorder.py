"""Turn what a training loop says into step records and events: the one writer of them.

The cost of a step in the rank is the point of this file: no allocation per phase, one formatted line per step,
no lock, no thread. Measured by ``benchmarks/recording_cost.py``.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

from allpull.observe.binding import bound_to
from allpull.rundir import layout, redact
from allpull.rundir.write import Appender

VERSION = "1.0"  # of the records; schema.base.VERSION must be the same, which a test checks
KNOWN = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
OPAQUE = (5, 6)  # what happens inside evaluation and checkpoint belongs to them, forward passes included
BACKWARD = 3
CLOCK_EVERY_NS = 60_000_000_000  # often enough to see a clock step; drift of 20 ppm is 1.2 ms in that time
CALIBRATION_MARKS = 200


class Identity:
    """Who this rank is: numbers from torchrun, host and start."""

    def __init__(self, *, rank: int, local_rank: int, ranks: int, host: str) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.ranks = ranks
        self.host = host


class Recorder:
    """Listens to ``allpull.marks`` in one rank and writes its steps and events.

    ``boundary`` and ``sources`` tell readers how steps and times are known. ``arrival`` (set by whoever finds a
    reducing backward) returns when the last gradient of the step was ready, in ns of ``clock_ns``, or None.
    """

    def __init__(
        self,
        directory: str,
        who: Identity,
        *,
        budget: int,
        warmup_steps: int,
        boundary: str = "marks.step",
        sources: Sequence[str] = ("marks",),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._realtime_ns = realtime_ns
        self._pid = os.getpid()
        self._warmup_left = warmup_steps
        self.arrival: Optional[Callable[[], Optional[int]]] = None
        self._totals: List[Optional[int]] = [None] * len(KNOWN)
        self._stack: List[int] = []
        self._names: List[str] = list(KNOWN)
        self._spans: Dict[str, _Span] = {name: _Span(self, place) for place, name in enumerate(KNOWN)}
        self._last_ns = 0
        self._begin_ns = 0
        self._backward_end_ns = 0
        self._opaque_begin_ns = 0
        self._step = 0
        self._steps_here = 0
        self._epoch = 0
        self._tags: List[str] = []
        self._marks = 0
        self._recording_ns: Optional[int] = None
        self._next_clock_ns = 0
        self._events = Appender(
            os.path.join(directory, layout.events_file(who.rank)),
            budget,
            on_trouble=self._warn,
            on_thin=lambda keep: self._thinned("events", keep),
            clock_ns=clock_ns,
        )
        self._steps = Appender(
            os.path.join(directory, layout.steps_file(who.rank)),
            budget,
            on_trouble=self._switched_off,
            on_thin=lambda keep: self._thinned("steps", keep),
            clock_ns=clock_ns,
        )
        self._mark_cost_ns = self._calibrate()
        self._headers(who, budget, warmup_steps, boundary, sources)

    def phase(self, name: str) -> ContextManager[None]:
        """The span of phase ``name``; spans nest, and each moment belongs to the innermost."""
        span = self._spans.get(name)
        if span is None:
            self._names.append(name)
            self._totals.append(None)
            span = self._spans[name] = _Span(self, len(self._names) - 1)
        return span

    def enter(self, place: int) -> None:
        """Phase number ``place`` begins."""
        now = self._clock_ns()
        self._marks += 1
        stack = self._stack
        if stack:
            top = stack[-1]
            self._totals[top] = (self._totals[top] or 0) + now - self._last_ns
            if top in OPAQUE:
                place = top
        elif place in OPAQUE:
            self._opaque_begin_ns = now
        if not self._begin_ns:
            self._begin_ns = now
        self._last_ns = now
        stack.append(place)

    def leave(self) -> None:
        """The innermost phase ends."""
        now = self._clock_ns()
        place = self._stack.pop()
        self._totals[place] = (self._totals[place] or 0) + now - self._last_ns
        self._last_ns = now
        if place == BACKWARD:
            self._backward_end_ns = now
        elif place in OPAQUE and not self._stack:
            self._opaque_ended(place, now)

    def step(self, samples: Optional[int]) -> None:
        """A step has ended: write its record and begin the next one."""
        now = self._clock_ns()
        if not self._begin_ns:
            self._begin_ns = now
        totals = self._totals
        if self._stack:  # step() inside a phase: the part so far belongs to this step
            top = self._stack[-1]
            totals[top] = (totals[top] or 0) + now - self._last_ns
            self._last_ns = now
        if self._warmup_left > 0:
            self._warmup_left -= 1
            self._tags.append("warmup")
        arrival, done = self._collective()
        null = "null"
        values = [null if value is None else value for value in totals]
        line = (
            f'{{"step":{self._step},"epoch":{self._epoch},"begin_ns":{self._begin_ns},"end_ns":{now},'
            f'"samples":{null if samples is None else samples},"input_ns":{values[0]},"copy_ns":{values[1]},'
            f'"forward_ns":{values[2]},"backward_ns":{values[3]},"optimizer_ns":{values[4]},'
            f'"evaluation_ns":{values[5]},"checkpoint_ns":{values[6]},"arrival_ns":{arrival},"done_ns":{done},'
            f'"recording_ns":{null if self._recording_ns is None else self._recording_ns}'
        )
        if self._tags:
            line += ',"tags":["' + '","'.join(self._tags) + '"]'
            self._tags = []
        if len(totals) > len(KNOWN):
            line += ',"named":' + json.dumps(self._take_named())
        self._steps.add(line + "}", now)
        for place, value in enumerate(totals):
            if value:
                totals[place] = 0
        self._begin_ns = now
        self._step += 1
        self._steps_here += 1
        if now >= self._next_clock_ns:
            self._clock_pair(now)
        self._recording_ns = self._clock_ns() - now + self._marks * self._mark_cost_ns
        self._marks = 0

    def epoch(self, number: int, step: Optional[int] = None) -> None:
        """Epoch ``number`` begins; ``step`` gives the number of its next step where training was resumed."""
        now = self._clock_ns()
        if step is not None and step != self._step:
            self._step = step
            self._tags.append("resumed")
        self._epoch = number
        self._tags.append("first_batch")
        if not self._begin_ns:
            self._begin_ns = now
        self._event({"kind": "epoch", "epoch": number, "step": self._step, "t_ns": now}, now)

    def metric(self, name: str, value: Optional[float], step: Optional[int] = None) -> None:
        """A quantity of the training as of ``step``; what is not finite is written as null."""
        now = self._clock_ns()
        finite = value is not None and math.isfinite(value)
        event = {"kind": "metric", "name": name, "value": value if finite else None}
        at = self._step if step is None else step
        often = name.startswith("train_")  # told many times an epoch; what is told once must not be thinned out
        self._event({**event, "step": at, "epoch": self._epoch, "t_ns": now}, now, keep=not often)

    def restarted(self, attempt: int, steps_before: int) -> None:
        """This rank goes on after an earlier attempt, which had recorded ``steps_before`` steps."""
        now = self._clock_ns()
        self._event({"kind": "restarted", "attempt": attempt, "steps_before": steps_before, "t_ns": now}, now)

    def raised(self, error: BaseException) -> None:
        """The exception that ends this rank."""
        now = self._clock_ns()
        message, _ = redact.text(str(error)[:4000])
        event = {"kind": "exception", "type": type(error).__name__, "message": message, "t_ns": now}
        self._event(event, now)

    def close(self, *, ended_well: bool) -> None:
        """Write what is buffered; ``ended_well``: with the mark that the rank ended by itself."""
        if os.getpid() != self._pid:
            return  # a forked child has the parent's buffers, which are not its to write
        now = self._clock_ns()
        self._clock_pair(now)
        self._steps.close()
        if ended_well:
            left_out = self._steps.left_out + self._events.left_out
            self._event({"kind": "end", "steps": self._steps_here, "left_out": left_out, "t_ns": now}, now)
        self._events.close()

    def disown(self) -> None:
        """Stop writing, in a forked child."""
        self._steps = self._events = _NOWHERE

    def _collective(self) -> Tuple[str, str]:
        arrival = self.arrival() if self.arrival is not None else None
        if arrival is None or arrival < self._begin_ns or self._backward_end_ns < arrival:
            return "null", "null"
        return str(arrival), str(self._backward_end_ns)

    def _take_named(self) -> Dict[str, int]:
        places = range(len(KNOWN), len(self._names))
        return {self._names[place]: self._totals[place] or 0 for place in places}

    def _opaque_ended(self, place: int, now: int) -> None:
        name = self._names[place]
        if name not in self._tags:
            self._tags.append(name)
        span = {"kind": "span", "name": name, "begin_ns": self._opaque_begin_ns, "end_ns": now}
        self._event({**span, "step": self._step, "epoch": self._epoch}, now, keep=False)

    def _event(self, event: Dict[str, Any], now: int, *, keep: bool = True) -> None:
        self._events.add(json.dumps(event), now, keep=keep)

    def _clock_pair(self, now: int) -> None:
        self._next_clock_ns = now + CLOCK_EVERY_NS
        self._event({"kind": "clock", **clock_pair(self._clock_ns, self._realtime_ns)}, now)

    def _thinned(self, file: str, keep_one_in: int) -> None:
        now = self._clock_ns()
        self._event({"kind": "thinned", "file": file, "keep_one_in": keep_one_in, "t_ns": now}, now)

    def _switched_off(self, reason: str) -> None:
        self._warn(reason)
        now = self._clock_ns()
        self._event({"kind": "switched_off", "reason": reason, "t_ns": now}, now)

    def _warn(self, reason: str) -> None:
        os.write(2, f"allpull: recording stopped, training goes on: {reason}\n".encode())

    def _calibrate(self) -> int:
        """What entering and leaving a phase costs here, in ns; run before anything is recorded."""
        span = self._spans[KNOWN[0]]
        start = self._clock_ns()
        for _ in range(CALIBRATION_MARKS):
            with span:
                pass
        cost = (self._clock_ns() - start) // CALIBRATION_MARKS
        self._totals[0] = None
        self._begin_ns = 0
        self._marks = 0
        return cost

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


class _Span:
    """One phase as a context manager; holds no state of its own, so one object serves every step."""

    __slots__ = ("_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._recorder = recorder
        self._place = place

    def __enter__(self) -> None:
        self._recorder.enter(self._place)

    def __exit__(self, *_: object) -> None:
        self._recorder.leave()


class _Nowhere(Appender):
    """An appender without a file, for forked children."""

    def __init__(self) -> None:
        self.left_out = 0
        self._descriptor = None

    def flush(self, now_ns: Optional[int] = None) -> None:
        """Nothing to hand over."""


_NOWHERE = _Nowhere()


def clock_pair(clock_ns: Callable[[], int], realtime_ns: Callable[[], int]) -> Dict[str, int]:
    """One moment on both clocks: the real time between two looks at the monotonic one."""
    before = clock_ns()
    real = realtime_ns()
    return {"monotonic_ns": (before + clock_ns()) // 2, "realtime_ns": real}


def boot_id() -> Optional[str]:
    """The kernel's name for this boot: ranks with equal ones share the monotonic clock. None: not Linux."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
