"""Threads that fill a ring of slots ahead of the one who takes them, in the order that was asked for.

Codecs let go of the interpreter's lock while they decode, so threads are enough, and pixels are written where they are
needed: no copy between processes, no shared memory that outlives a crash. Memory is the ring and what the threads are
decoding, however slow the taker is.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from threading import Event
from typing import Any, Generic, TypeVar

import numpy as np

from allpull.load.resize import Array

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Filled(Generic[Job, Outcome]):
    """A slot whose ``jobs`` are all done, each with its outcome."""

    slot: Array
    jobs: Sequence[Job]
    outcomes: list[Outcome]


class Ring:
    """Slots of one shape that batches take turns in, for one run after the other.

    A batch that was taken stays as it is until ``held`` more have been asked for; with 2, a copy to the device may go
    on while the next batch is taken. ``threads`` fill the other slots meanwhile.
    """

    def __init__(self, slots: Sequence[Array], *, held: int, threads: int) -> None:
        if threads < 1 or held < 1 or len(slots) <= held:
            raise ValueError(f"{len(slots)} slots, {held} held, {threads} threads: nothing could move")
        self._ahead, self._threads = len(slots) - held, threads
        self._turns = cycle(slots)  # goes on from run to run: the last batches of one are held in the next

    def run(
        self, batches: Iterable[Sequence[Job]], work: Callable[[Job, Array], Outcome]
    ) -> Generator[Filled[Job, Outcome]]:
        """Each batch's jobs done on one slot by ``work(job, slot)``, in the order of ``batches``.

        What a job raises, the taker gets when its batch is due. However the taker ends, closing what this returned
        leaves no thread behind: what has begun is finished (one job a thread), what has not is dropped.
        """
        stopped = Event()
        waiting: deque[tuple[Array, Sequence[Job], list[Future[Outcome]]]] = deque()
        upcoming = iter(batches)
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="allpull-load")

        def do(job: Job, slot: Array) -> Outcome:
            if stopped.is_set():
                raise RuntimeError("the loader was stopped")
            return work(job, slot)

        def refill() -> None:
            for jobs in islice(upcoming, self._ahead - len(waiting)):
                slot = next(self._turns)
                waiting.append((slot, jobs, [pool.submit(do, job, slot) for job in jobs]))

        try:
            refill()
            while waiting:
                slot, jobs, futures = waiting.popleft()
                outcomes = [future.result() for future in futures]
                refill()  # before the taker goes away with this one, so that threads work while it computes
                yield Filled(slot, jobs, outcomes)
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


def slots(count: int, shape: tuple[int, ...], dtype: str) -> list[Array]:
    """``count`` arrays of ``shape``; page-locked where this process has a GPU, so that copies to it need no stop."""
    if not page_locks():
        return [np.zeros(shape, dtype) for _ in range(count)]
    torch: Any = sys.modules["torch"]
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    locked = [torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy() for _ in range(count)]
    return [one.view(dtype).reshape(shape) for one in locked]


def page_locks() -> bool:
    """Whether ``slots`` are page-locked here; a process that has not imported torch has no use for that."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
