"""How long workers of loaders take to make batches, which their waits alone do not tell while nobody waits for them.

A worker that is forked from the rank times each of its batches, and adds it up in memory that it shares with the rank.
The training thread pays nothing for it: every few seconds, as steps are written, the sums become events. Workers that
are started in another way (``spawn``, ``forkserver``) are not timed: they get only what is pickled for them, and an
object of ours among that would end a worker, and the program with it, where our package cannot be imported.
"""

from __future__ import annotations

import functools
import mmap
import os
from time import monotonic_ns
from typing import Any, Dict, List, Optional, Sequence
from weakref import ref

from ...recording.step_line import Step
from ..inference.step_inference import StepInference
from ..safety import safely

EVERY_NS = 5_000_000_000  # an event of each loader, which the end of a killed rank may lose
WORDS = 2  # of each worker: batches, and ns
BYTES = 8  # of a word
NUMBER = 0  # place in a ``Step``


class LoaderWorkers:
    """The workers of this rank's loaders, and what they have made."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._made: Optional[memoryview] = None  # by the workers that started last; its own ones, in a worker
        self._loaders: List[Loader] = []
        self._numbered = 0
        self._due_ns = 0

    def watch(self) -> None:
        """Time batches in workers from now on, and record them once this process is a rank."""
        from torch.utils.data._utils import worker  # noqa: PLC0415  this runs after torch was imported

        run = worker._worker_loop

        @functools.wraps(run)  # by that name it is found again where workers are spawned, as torch's own
        def observed_run(*args: Any, **kwargs: Any) -> Any:
            made = self._made
            if made is not None:
                _time_batches(made)
            return run(*args, **kwargs)

        worker._worker_loop = observed_run
        self.session.at_begin.append(self._begin)
        self.session.at_close.append(self._finish)

    @safely("loader workers")
    def starts(self, loader: Any, iterator: Any) -> None:
        """``iterator`` of ``loader`` is being made, and will start its workers."""
        workers = getattr(loader, "num_workers", 0)
        self._made = None
        if type(workers) is int and workers > 0:
            self._made = memoryview(mmap.mmap(-1, workers * WORDS * BYTES)).cast("q")
            self._numbered += 1
            ahead = getattr(loader, "prefetch_factor", None)
            self._loaders.append(Loader(self._numbered, iterator, self._made, ahead, self._inference))

    def _begin(self) -> None:
        recorder = self.session.recorder
        if recorder is not None:
            recorder.at_flush.append(self.take)
            os.register_at_fork(after_in_child=self._loaders.clear)

    def _finish(self) -> None:
        self._due_ns = 0

    @safely("loader workers", ())
    def take(self, steps: Sequence[Step]) -> Sequence[Dict[str, Any]]:
        """The events of loaders whose time has come; ``steps`` are those that were recorded since the last call."""
        batches = self._inference.batches
        for loader in self._loaders:
            loader.is_learned_from |= loader.is_alive and batches.is_learned_from(loader.iterator)
        now = monotonic_ns()
        step = steps[-1][NUMBER] + 1 if steps else self._inference.step_number
        gone = [loader for loader in self._loaders if not loader.is_alive]
        reported = self._loaders if now >= self._due_ns else gone
        events = [event for loader in reported for event in loader.events(step, now)]
        if now >= self._due_ns:
            self._due_ns = now + EVERY_NS
        self._loaders = [loader for loader in self._loaders if loader not in gone]
        return events


class Loader:
    """One iterator with workers, which have ``made`` batches; reported are those since the last event."""

    __slots__ = (
        "_ahead",
        "_end",
        "_inference",
        "_iterator",
        "_made",
        "_number",
        "_reported",
        "_step",
        "is_learned_from",
        "iterator",
    )

    def __init__(self, number: int, iterator: Any, made: memoryview, ahead: Any, inference: StepInference) -> None:
        self.iterator = id(iterator)
        self.is_learned_from = False
        self._inference = inference
        self._iterator = ref(iterator, self._ends)
        self._number, self._made, self._step = number, made, inference.step_number
        self._end: Optional[int] = None
        self._ahead = ahead if type(ahead) is int else None
        self._reported = made.tolist()

    @property
    def is_alive(self) -> bool:
        """Whether the program still has it."""
        return self._iterator() is not None

    def _ends(self, _: Any) -> None:
        self._end = self._inference.step_number  # its last event may be written many steps later

    def events(self, step: int, now: int) -> List[Dict[str, Any]]:
        """What its workers made since the last event, before ``step``, if the program trains on it."""
        made = self._made.tolist()
        if not self.is_learned_from or made == self._reported:
            return []
        step = step if self._end is None else max(self._step, min(step, self._end))
        new = [after - before for after, before in zip(made, self._reported)]  # noqa: B905  Python 3.9 has no strict
        event = {"kind": "loader", "loader": self._number, "first_step": self._step, "step": step, "ahead": self._ahead}
        self._reported, self._step = made, step
        return [{**event, "batches": new[::WORDS], "making_ns": new[1::WORDS], "t_ns": now}]


def _time_batches(made: memoryview) -> None:
    """In a worker: add each batch, and how long it took, to ``made``."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415  torch is there
    from torch.utils.data._utils import fetch  # noqa: PLC0415  as above

    def timed(make: Any) -> Any:
        @functools.wraps(make)
        def timed_make(self: Any, possibly_batched_index: Any) -> Any:
            begin = monotonic_ns()
            batch = make(self, possibly_batched_index)
            info = get_worker_info()
            if info is not None:
                place = WORDS * info.id
                made[place] += 1
                made[place + 1] += monotonic_ns() - begin
            return batch

        return timed_make

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = timed(kind.fetch)  # type: ignore[method-assign]  # wrapping is the point
