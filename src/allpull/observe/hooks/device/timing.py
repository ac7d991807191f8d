"""Time the steps of an accelerator, by events of our own on the stream that the program uses.

On CUDA (or HIP) the host's times are those of issuing work. So an event is recorded wherever a phase begins or ends,
and when a bucket of gradients is ready; it is queried at the ends of later steps, and the program never waits for
the device. Nothing here initialises CUDA: that would fix the choice of devices, and break programs that fork. Events
are neither recorded nor queried during graph capture, which either would break.

Twice a second, where a forward pass begins, an event is polled until it completes, which takes some 10 µs: this gives
the offset of the device's clock to that accuracy (``clock``). If the stream is idle, it is that of the phase; else one
on a stream of our own, which is idle even where the program's never is.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from ....rundir.live.activity import NOTHING
from ....rundir.write import FLUSH_NS
from ...recording.arrival import Arrival
from ...recording.recorder import Recorder
from ...recording.step_line import COLLECTIVE, FORWARD
from ..inference.step_inference import StepInference
from ..safety import safely
from ..torch.copies import watch_copies
from .events import CallMarks, Mark, Resolver, Where, has_passed
from .locality import locality
from .step import HOST_ONLY, ISSUING, Bucket

MOST_MARKS = 512  # of a step; one with more, which loops over collectives or micro-batches, has only the host's times
MOST_PENDING = 256  # steps that are not complete; a launch queue holds a thousand kernels, so the device is stuck
MOST_AT_ONCE = 8  # steps that are written together: 60 of them were a stall of 5 ms, for which other ranks would wait
POLL_EVERY_NS = 500_000_000  # drift adds 50 µs to the bound of the clocks in this time
POLL_FOR_NS = 50_000  # an event on an idle stream completes in 5 to 10 µs
MOST_LATE = 8  # events in a row on our own stream that did not: its queue is shared (CUDA_DEVICE_MAX_CONNECTIONS=1)


class Device:
    """Marks on the stream of this rank, and the steps that they form once they are complete.

    ``left_out`` counts steps without device times: they were captured, had too many marks, or used several streams.
    """

    def __init__(self, inference: StepInference) -> None:
        from torch import cuda  # noqa: PLC0415  this runs after torch was imported

        self.session = inference.session
        self.failed = inference.failed
        self.left_out = 0
        self._inference = inference
        self._cuda: Any = cuda
        self._recorder: Optional[Recorder] = None
        self._pools: Dict[int, List[Any]] = {}
        self._marks: List[Mark] = []
        self._autocast: Optional[str] = None
        self._calls: List[CallMarks] = []  # of collectives, by places in ``_marks``
        self._latest: Optional[Mark] = None
        self._is_located = False
        self._networks = 0  # that reduce their gradients in backward
        self._looked_ns = 0
        self._own_streams: Dict[int, Any] = {}  # by device: nothing but our events runs on them
        self._late = 0  # events in a row on our own stream that took too long
        self._cut = 0  # the number of marks that belong to the step that was cut
        self._spoilt = False  # marks are missing since the cut
        self._spoilt_at_cut = False
        self._pending: Deque[Tuple[int, List[Mark], List[CallMarks]]] = deque()
        self._passed: List[Tuple[int, List[Mark], List[CallMarks], int]] = []
        self._written_ns = 0
        self._resolver = Resolver()

    # Calls from the program

    def reduces(self, arrival: Arrival) -> None:
        """A network was made that reduces its gradients in backward; ``arrival`` times when they are ready."""
        arrival.on_device = functools.partial(self.ready, self._networks)
        self._networks += 1  # as ``recording.arrival`` counts them
        self._inference.reduces(arrival)

    @safely("device")
    def begin(self) -> None:
        """This process is a rank, and the program may have initialised CUDA."""
        recorder = self.session.recorder
        if recorder is None or not self._cuda.is_initialized():
            return
        self._recorder = recorder
        self._wrap_calls(recorder)
        os.register_at_fork(after_in_child=lambda: self.failed.add("device"))
        try:
            watch_copies(self._inference)
        except Exception as error:  # noqa: BLE001  copies are then not timed, the rest is
            self.session.part_failed("copies", error)

    def _wrap_calls(self, recorder: Recorder) -> None:
        """Wrap the recorder to see each phase begin and end; a recorder without a device is not slowed down."""
        enter, leave_until, cut, stack = recorder.enter, recorder.leave_until, recorder.cut, recorder.stack
        collective, retract = recorder.collective, recorder.retract

        def observed_enter(place: int) -> int:
            depth = enter(place)
            self._turns(stack[depth])
            return depth

        def observed_leave_until(depth: int) -> None:
            left = stack[depth:]
            leave_until(depth)
            for place in left:  # one, or several after an exception
                self._turns(place)

        def observed_retract(place: int) -> None:
            retracted = stack[0]
            retract(place)
            if self._marks and self._marks[-1].place == retracted:
                self._marks[-1] = self._marks[-1]._replace(place=NOTHING)  # no event shows what ran there

        def observed_cut() -> None:
            cut()
            self._cut = len(self._marks)
            self._spoilt_at_cut |= self._spoilt
            self._spoilt = False

        def observed_collective(kind: int, number: int, begin: int, blocked: Optional[int], end: Optional[int]) -> None:
            collective(kind, number, begin, blocked, end)
            if blocked is not None and end is not None:
                self._called(kind, number, begin, end - blocked)

        recorder.collective = observed_collective  # type: ignore[method-assign]  # wrapping is the point
        recorder.enter = observed_enter  # type: ignore[method-assign]  # wrapping is the point
        recorder.leave_until = observed_leave_until  # type: ignore[method-assign]
        recorder.retract = observed_retract  # type: ignore[method-assign]
        recorder.cut = observed_cut  # type: ignore[method-assign]

    @safely("device")
    def _turns(self, place: int) -> None:
        """Phase ``place`` has begun or ended."""
        stack = self._recorder.stack if self._recorder is not None else []
        innermost = stack[-1] if stack else NOTHING
        if place == innermost == FORWARD:
            self._autocast = _autocast()
        if place in ISSUING:
            self._mark(innermost, follows=place == COLLECTIVE)
        elif place in HOST_ONLY and not (self._marks and self._marks[-1].place == innermost):
            self._add(Mark(time.monotonic_ns(), innermost))

    @safely("device")
    def _called(self, kind: int, number: int, called_ns: int, begin_ns: int) -> None:
        """The host called a collective at ``called_ns``, waited for it since ``begin_ns``, and goes on now.

        In NCCL that wait is the stream's, between the last two marks: the current stream passes the second one when
        the stream of the collective has ended it. A call on another stream left no marks.
        """
        marks, end = self._marks, len(self._marks) - 1
        begin = end - 1
        if begin < 0 or self._spoilt or marks[begin].place != COLLECTIVE or marks[end].asked_ns < begin_ns:
            return
        if any(mark.event is None or not mark.is_phase for mark in marks[begin:]) or marks[end].place == COLLECTIVE:
            return
        called = begin
        while called and marks[called - 1].asked_ns >= called_ns:
            called -= 1
        if (
            marks[called].place == COLLECTIVE
            and marks[called].event is not None
            and marks[called].where == marks[end].where
        ):
            self._calls.append(CallMarks(kind, number, called, begin, end))

    @safely("device")
    def ready(self, network: int, place: int, buckets: int) -> None:
        """The last gradient of a bucket may be ready; called in autograd's thread, on the stream of the backward pass.

        At the bucket's next gradient, this one's event is used again: a step has one event per bucket.
        """
        recorder = self._recorder
        if recorder is not None and recorder.stack:
            bucket = Bucket(network, place, buckets)
            self._forget(bucket)
            self._mark(recorder.stack[-1], ready=bucket)

    def _mark(self, place: int, *, follows: bool = False, ready: Optional[Bucket] = None) -> None:
        """Record an event on the current stream; ``follows``: only if it is the stream of the last phase."""
        began_ns = time.monotonic_ns()
        self._enqueue(place, follows=follows, ready=ready)
        self._took(began_ns)

    def _took(self, began_ns: int) -> None:
        """Count what we did since then as recording."""
        if self._recorder is not None:
            self._recorder.hooks_ns += time.monotonic_ns() - began_ns

    def _enqueue(self, place: int, *, follows: bool, ready: Optional[Bucket]) -> None:
        cuda, latest = self._cuda, self._latest
        if cuda.is_current_stream_capturing():
            self._spoilt = True
            return
        stream = cuda.current_stream()
        where: Where = (stream.device_index, stream.stream_id)
        if follows and (latest is None or latest.where != where):
            return  # FSDP gathers on a stream of its own, in parallel with compute
        due = place == FORWARD and not follows and time.monotonic_ns() - self._looked_ns >= POLL_EVERY_NS
        is_dry = due and latest is not None and latest.where == where and latest.event.query()
        pool = self._pools.get(where[0])
        event = pool.pop() if pool else cuda.Event(enable_timing=True)
        asked_ns = time.monotonic_ns()
        event.record(stream)
        seen_ns = self._poll(event, asked_ns) if is_dry else None
        mark = Mark(asked_ns, place, event, where, ready is None, ready, seen_ns)
        self._add(mark)
        if ready is None:
            self._latest = mark
        if due and seen_ns is None and self._late < MOST_LATE:
            self._look_at_clock(place, where[0])

    @safely("device-clock")
    def _look_at_clock(self, place: int, device: int) -> None:
        """Have a stream of our own stamp an event at once: the program's may be busy for as long as it runs."""
        stream = self._own_streams.get(device)
        if stream is None:
            stream = self._own_streams[device] = self._cuda.Stream(device)
        pool = self._pools.setdefault(device, [])
        event = pool.pop() if pool else self._cuda.Event(enable_timing=True)
        asked_ns = time.monotonic_ns()
        event.record(stream)
        seen_ns = self._poll(event, asked_ns)
        self._late = self._late + 1 if seen_ns is None else 0
        if seen_ns is not None:
            self._add(Mark(asked_ns, place, event, (device, stream.stream_id), False, None, seen_ns))

    def _poll(self, event: Any, asked_ns: int) -> Optional[int]:
        """When the host observed ``event`` complete, by polling; None: not within ``POLL_FOR_NS``."""
        self._looked_ns = now = asked_ns
        while now - asked_ns < POLL_FOR_NS:
            passed = event.query()
            now = time.monotonic_ns()
            if passed:
                return now
        return None

    def _add(self, mark: Mark) -> None:
        if len(self._marks) < MOST_MARKS:
            self._marks.append(mark)
        else:
            self._spoilt = True

    def _forget(self, bucket: Bucket) -> None:
        """Discard the mark of ``bucket`` since the phase changed: a later gradient replaces it."""
        marks = self._marks
        for at in range(len(marks) - 1, -1, -1):
            ready = marks[at].ready
            if ready is None:
                return
            if ready[:2] == bucket[:2]:
                self._recycle([marks.pop(at)])
                return

    # Results of the device

    @safely("device")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins: the marks up to the cut belong to the step before."""
        if self._recorder is None:
            self.begin()
            return
        began_ns = time.monotonic_ns()
        self._set_aside(step - 1)
        self._look()
        passed = self._passed
        if passed and (len(passed) >= MOST_AT_ONCE or passed[-1][-1] - self._written_ns >= FLUSH_NS):
            self._write_passed()
        self._took(began_ns)

    @safely("device")
    def finish(self) -> None:
        """The program ends: write the steps that are complete; the others stay unknown."""
        if self._recorder is not None:
            self._look()
            self._write_passed()

    def _set_aside(self, step: int) -> None:
        cut = min(self._cut, len(self._marks))
        while cut and (self._marks[cut - 1].event is None or not self._marks[cut - 1].is_phase):
            cut -= 1  # its phase has no end on the device yet, and continues in the next step
        taken, self._marks = self._marks[:cut], self._marks[cut:]
        calls = [call for call in self._calls if call.end < cut]
        self._calls = [
            call._replace(called=call.called - cut, begin=call.begin - cut, end=call.end - cut)
            for call in self._calls
            if call.called >= cut
        ]
        spoilt, self._spoilt_at_cut, self._cut = self._spoilt_at_cut, False, 0
        if taken and not spoilt and _is_on_one_stream(taken):
            self._pending.append((step, taken, calls))
        else:
            self.left_out += spoilt or bool(taken)
            self._recycle(taken)
        if len(self._pending) > MOST_PENDING:
            _, oldest, _ = self._pending.popleft()
            self._recycle(oldest)
            self.left_out += 1

    def _look(self) -> None:
        """Collect the steps that the device has completed."""
        if self._pending and not self._cuda.is_current_stream_capturing():
            while self._pending and has_passed(self._pending[0][1]):
                self._passed.append((*self._pending.popleft(), time.monotonic_ns()))

    def _write_passed(self) -> None:
        """Write the times of completed steps."""
        passed, self._passed = self._passed, []
        if passed and not self._is_located:
            self._is_located = True
            self._locate(passed[0][1][-1].where)
        for step, marks, calls, seen_ns in passed:
            self._written_ns = seen_ns
            times, unused = self._resolver.resolve(step, marks, seen_ns, calls)
            self._recycle(unused)
            if self._recorder is not None:
                if self._autocast is not None:  # that of the latest step: programs do not change it
                    times["autocast"] = self._autocast
                event = {"kind": "device_step", "step": step, **times, "t_ns": seen_ns}
                self._recorder.journal.event(event, seen_ns, keep=False)

    def _locate(self, where: Optional[Where]) -> None:
        """Record how near this process is to the device whose stream is at ``where``."""
        try:
            near = None if where is None else locality(self._cuda.get_device_properties(where[0]))
        except Exception:  # noqa: BLE001  an advice is lost, and the times of the device are not
            return
        if near is not None and self._recorder is not None:
            now = time.monotonic_ns()
            self._recorder.journal.event({"kind": "locality", **near, "t_ns": now}, now)

    def _recycle(self, marks: List[Mark]) -> None:
        for mark in marks:
            if mark.where is not None:
                self._pools.setdefault(mark.where[0], []).append(mark.event)


def _autocast() -> Optional[str]:
    """The dtype of autocast on CUDA, such as bfloat16; None: it is off."""
    import torch  # noqa: PLC0415  this runs after torch was imported

    if not torch.is_autocast_enabled():
        return None
    by_device = getattr(torch, "get_autocast_dtype", None)  # since torch 2.4, where the older one warns
    dtype = torch.get_autocast_gpu_dtype() if by_device is None else by_device("cuda")
    return str(dtype).rpartition(".")[2]


def _is_on_one_stream(marks: List[Mark]) -> bool:
    """Whether all phases of the step are on the last one's stream, and its other marks on the same device."""
    where = marks[-1].where
    return where is not None and all(
        mark.where is None or mark.where == where or (not mark.is_phase and mark.where[0] == where[0]) for mark in marks
    )
