"""Record what holds up a whole rank: Python's garbage collection, compilation, retries of CUDA's caching allocator.

A step without them costs nothing. Those of a step are summed, and written together with the steps of a fifth of a
second: a collection may begin while a line is being written.
"""

from __future__ import annotations

import gc
import os
import sys
from time import monotonic_ns
from types import ModuleType
from typing import Any, Dict, List, Sequence, Tuple

from ..recording.step_line import Step
from .inference.step_inference import StepInference
from .safety import give_up, safely

COLLECTION, COMPILATION, RETRIES = "garbage_collection", "compilation", "allocator_retries"
LEAST_NS = 1_000_000  # shorter ones delay no step by as much as it varies
MOST = 4096  # that are not written yet; further ones are not recorded
NUMBER, BEGIN, END = 0, 2, 4  # places in a ``Step``

Stall = Tuple[str, int, int, int]
"""Cause, number of the step, begin and duration in ns."""


class Stalls:
    """The stalls of this rank: noted as they end, and taken when steps are written."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._ended: List[Stall] = []
        self._collection_ns = self._compilation_ns = 0  # when the one that is under way began; 0: none is
        self._retries = 0  # of the allocator, so far

    def watch(self) -> None:
        """Record stalls once this process is a rank."""
        self.session.at_begin.append(self._begin)
        self.session.at_close.append(self._stop)

    def compiler_imported(self, callback: ModuleType) -> None:
        """``torch._dynamo.callback`` was imported: time each compilation, lazy ones of backward included."""
        handler = callback.callback_handler
        clear = type(handler).clear

        def cleared(self: Any) -> None:
            clear(self)
            register()

        def register() -> None:
            handler.register_start_callback(self._compiles)
            handler.register_end_callback(self._compiled)

        type(handler).clear = cleared  # torch._dynamo.reset() would remove ours too
        register()

    @safely("stalls", ())
    def take(self, steps: Sequence[Step]) -> Sequence[Dict[str, Any]]:
        """The events of stalls since the last call; ``steps`` are those that were recorded since."""
        ended, self._ended = self._ended, []
        events: Dict[Tuple[str, int], Dict[str, Any]] = {}
        for cause, step, begin_ns, duration_ns in ended:
            event = events.setdefault((cause, step), _event(cause, step, begin_ns, 0, 0))
            event["duration_ns"] += duration_ns
            event["count"] += 1
        retries = self._new_retries()
        if retries and steps:
            longest = max(steps, key=lambda step: step[END] - step[BEGIN])  # each retry waits for the device
            events[RETRIES, 0] = _event(RETRIES, longest[NUMBER], longest[BEGIN], None, retries)
        return tuple(events.values())

    def _begin(self) -> None:
        recorder = self.session.recorder
        if recorder is not None:
            recorder.at_flush.append(self.take)
            gc.callbacks.append(self._collects)
            os.register_at_fork(after_in_child=self._stop)

    def _stop(self) -> None:
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, _: Any) -> None:
        """A collection begins or ends, in any thread: all others wait for it."""
        try:
            if phase == "start":
                self._collection_ns = monotonic_ns()
            else:
                began_ns, self._collection_ns = self._collection_ns, 0
                self._note(COLLECTION, began_ns)
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            self._lose(error)

    def _compiles(self, *_: Any) -> None:
        self._compilation_ns = monotonic_ns()

    def _compiled(self, *_: Any) -> None:
        try:
            began_ns, self._compilation_ns = self._compilation_ns, 0
            self._note(COMPILATION, began_ns)
        except Exception as error:  # noqa: BLE001  as above
            self._lose(error)

    def _note(self, cause: str, began_ns: int) -> None:
        duration_ns = monotonic_ns() - began_ns
        recorder = self.session.recorder  # a collection may begin amid a note
        if not began_ns or duration_ns < LEAST_NS or len(self._ended) >= MOST:
            return
        if recorder is not None and not recorder.paused:
            self._ended.append((cause, self._inference.step_number, began_ns, duration_ns))

    def _lose(self, error: Exception) -> None:
        self._stop()
        give_up(self, "stalls", error, "_note")

    def _new_retries(self) -> int:
        """How often CUDA's allocator freed its cache and tried again since the last call."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return 0
        retries = int(cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))
        before, self._retries = self._retries, retries
        return max(0, retries - before)  # the program may reset them


def _event(cause: str, step: int, begin_ns: int, duration_ns: "int | None", count: int) -> Dict[str, Any]:
    return {
        "kind": "stall",
        "cause": cause,
        "step": step,
        "begin_ns": begin_ns,
        "duration_ns": duration_ns,
        "count": count,
    }
