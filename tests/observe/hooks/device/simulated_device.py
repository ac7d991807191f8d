"""A host with an accelerator, without either: streams that run what they are given in order, and two clocks.

Stands in for ``torch.cuda`` and for ``time``. All times are true ns of the host's clock; the device stamps events on
its own, which is elsewhere and drifts, to half a microsecond and as 32-bit milliseconds, as CUDA does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

US = 1_000
MS = 1_000_000
LAUNCH_NS = 5 * US  # from a call to the begin of what it asked for, on a stream that is dry
CALL_NS = 1 * US  # what any call costs the host


@dataclass
class Stream:
    """One stream; ``worked`` are the true times in which it had something to do."""

    stream_id: int
    device_index: int = 0
    free_ns: int = 0
    worked: list[tuple[int, int]] = field(default_factory=list)

    def do(self, asked_ns: int, length_ns: int) -> int:
        """Put work at the end of the queue; when it is done."""
        begin = max(self.free_ns, asked_ns + LAUNCH_NS)
        self.free_ns = begin + length_ns
        if length_ns:
            self.worked.append((begin, self.free_ns))
        return self.free_ns


class Machine:
    """Host and device; ``cuda`` is its ``torch.cuda``, ``time`` its ``time``."""

    def __init__(self, *, offset_ns: int = 0, drift_ppm: float = 0.0, initialized: bool = True) -> None:
        self.now_ns = self._start_ns = 10**12
        self._offset_ns = offset_ns
        self._drift = drift_ppm / 1e6
        self.main = Stream(0)
        self.current = self.main
        self.capturing = False
        self.initialized = initialized
        self.fault: Exception | None = None
        self.events: list[Event] = []
        self.queries = 0
        self.passes: list[int] = []  # when the device passed what was recorded, in the order of recording
        self.cuda: Any = SimpleNamespace(
            current_stream=lambda: self.current,
            is_current_stream_capturing=lambda: self.capturing,
            is_initialized=lambda: self.initialized,
            Stream=lambda device: Stream(100, device),
            Event=lambda *, enable_timing: Event(self, enable_timing=enable_timing),
        )
        self.time: Any = SimpleNamespace(monotonic_ns=lambda: self.now_ns)

    def sleep(self, length_ns: int) -> None:
        """The host is busy with something of its own."""
        self.now_ns += length_ns

    def launch(self, length_ns: int, count: int = 1, every_ns: int = CALL_NS) -> None:
        """The host issues ``count`` kernels of so long, one in ``every_ns`` of its time."""
        for _ in range(count):
            self.current.do(self.now_ns, length_ns)
            self.now_ns += every_ns

    def synchronize(self) -> None:
        """The host waits for the current stream, as for ``loss.item()``."""
        self.now_ns = max(self.now_ns, self.current.free_ns) + CALL_NS

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Issue to ``stream``."""
        self.current, before = stream, self.current
        yield
        self.current = before

    def on_device(self, true_ns: int) -> float:
        """What the device's clock says at a true moment."""
        return self._offset_ns + (true_ns - self._start_ns) * (1 + self._drift)


class Event:
    """A ``torch.cuda.Event``."""

    def __init__(self, machine: Machine, *, enable_timing: bool) -> None:
        assert enable_timing
        self._machine = machine
        self.passed_ns: int | None = None
        self._device: int | None = None
        machine.events.append(self)

    def record(self, stream: Stream) -> None:
        self._call()
        assert self._device in (None, stream.device_index), "only streams on the same device may record an event"
        self._device = stream.device_index
        self.passed_ns = stream.do(self._machine.now_ns - CALL_NS, 0)
        self._machine.passes.append(self.passed_ns)

    def query(self) -> bool:
        self._machine.queries += 1
        self._call()
        return self._is_passed()

    def elapsed_time(self, end: Event) -> float:
        self._call()
        if not (self._is_passed() and end._is_passed()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        assert self._device == end._device
        assert self.passed_ns is not None
        assert end.passed_ns is not None
        ns = self._machine.on_device(end.passed_ns) - self._machine.on_device(self.passed_ns)
        return float(struct.unpack("f", struct.pack("f", round(ns / 500) * 500 / MS))[0])

    def _is_passed(self) -> bool:
        return self.passed_ns is not None and self.passed_ns <= self._machine.now_ns

    def _call(self) -> None:
        assert not self._machine.capturing, "operation not permitted when stream is capturing"
        if self._machine.fault is not None:
            raise self._machine.fault
        self._machine.now_ns += CALL_NS
