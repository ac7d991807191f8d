"""A thread pool that fills a ring of slots ahead of the consumer, in order.

Codecs release the GIL while they decode, so threads suffice, and pixels are written in place: no copies between
processes, no shared memory that outlives a crash. Memory is bounded by the ring and the images being decoded, however
slow the consumer is.

The threads also plan the work. The consumer, which is the training thread, only frees slots and waits: alternating work
between two threads costs the GIL and the caches of both.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from threading import Event, Lock
from typing import Any, Generic, TypeVar

import numpy as np

from allpull.data.loader.resize import Array
from allpull.kernel import Tree, allowed_cpus, cpu_quota

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class FilledSlot(Generic[Job, Outcome]):
    """A filled slot with its ``jobs`` and their outcomes."""

    slot: Array
    jobs: Sequence[Job]
    outcomes: list[Outcome]


class Ring:
    """A ring of slots of one shape for batches, used by one run after the other.

    A batch stays valid until ``held`` more have been requested; with 2, its copy to the device may run while the next
    batch is fetched. ``threads`` fill the other slots meanwhile.
    """

    def __init__(self, slots: Sequence[Array], *, held: int, threads: int) -> None:
        if threads < 1 or held < 1 or len(slots) <= held:
            raise ValueError(f"{len(slots)} slots, {held} held, {threads} threads: no slot could be filled")
        self._ahead, self._threads = len(slots) - held, threads
        self._turns = cycle(slots)  # continues over runs: the last batches of one stay valid in the next

    def run(
        self, batches: Iterable[Sequence[Job]], work: Callable[[Job, Array], Outcome]
    ) -> Generator[FilledSlot[Job, Outcome]]:
        """Each batch's jobs done on one slot by ``work(job, slot)``, in the order of ``batches``.

        One thread at a time iterates over ``batches``; an empty batch also gets a slot. Errors there or in a job are
        raised to the consumer when the batch is due; RuntimeError if a thread cannot be started. Closing the returned
        generator leaves no thread behind: running jobs finish (one per thread), others are dropped.
        """
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="allpull-load")
        run = _Run(iter(batches), work, self._turns, pool, self._threads)
        try:
            waiting = deque(run.make_room() for _ in range(self._ahead))
            while True:
                one = waiting.popleft()
                one.ready.wait()
                if one.error is not None:
                    raise one.error
                if one.slot is None:
                    return
                waiting.append(run.make_room())  # before yielding, so that threads work meanwhile
                yield FilledSlot(one.slot, one.jobs, one.outcomes)
        finally:
            run.stop()
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class _Due(Generic[Job, Outcome]):
    """A batch that the consumer will request; ``ready`` without a slot marks the end."""

    slot: Array | None = None
    jobs: Sequence[Job] = ()
    outcomes: list[Any] = field(default_factory=list)
    left: int = 0
    error: BaseException | None = None
    ready: Event = field(default_factory=Event)


class _Run(Generic[Job, Outcome]):
    """The state shared by the threads of one run. No thread waits for free slots, so a process can always exit."""

    def __init__(
        self,
        batches: Iterator[Sequence[Job]],
        work: Callable[[Job, Array], Outcome],
        turns: Iterator[Array],
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._batches, self._work, self._turns, self._pool = batches, work, turns, pool
        self._idle, self._stopped = threads, False
        self._room: deque[_Due[Job, Outcome]] = deque()
        self._todo: deque[tuple[_Due[Job, Outcome], int]] = deque()
        self._lock = Lock()  # guards all of the above

    def make_room(self) -> _Due[Job, Outcome]:
        """Allow one more batch to start."""
        due: _Due[Job, Outcome] = _Due()
        with self._lock:
            self._room.append(due)
            self._wake(1)
        return due

    def stop(self) -> None:
        """Start no further job."""
        with self._lock:
            self._stopped = True

    def _wake(self, threads: int) -> None:
        for _ in range(min(threads, self._idle)):
            self._idle -= 1
            self._pool.submit(self._fill)

    def _fill(self) -> None:
        while (job := self._next()) is not None:
            due, number = job
            assert due.slot is not None
            try:
                due.outcomes[number] = self._work(due.jobs[number], due.slot)
            except BaseException as error:  # noqa: BLE001  re-raised to the consumer
                due.error = error
            with self._lock:
                due.left -= 1
                done = due.left == 0
            if done:
                due.ready.set()

    def _next(self) -> tuple[_Due[Job, Outcome], int] | None:
        """The next job, of the earliest batch with jobs left."""
        with self._lock:
            while not self._todo and self._room and not self._stopped:
                self._plan(self._room.popleft())
            if self._todo and not self._stopped:
                return self._todo.popleft()
            self._idle += 1
            return None

    def _plan(self, due: _Due[Job, Outcome]) -> None:
        try:
            jobs = next(self._batches, None)
        except BaseException as error:  # noqa: BLE001
            jobs, due.error = None, error
        if jobs is not None:
            due.slot, due.jobs = next(self._turns), jobs
            due.outcomes, due.left = [None] * len(jobs), len(jobs)
            self._todo.extend((due, number) for number in range(len(jobs)))
            try:
                self._wake(len(jobs) - 1)
            except RuntimeError as error:  # no more threads: report to the consumer
                due.error = error
        if not jobs:
            due.ready.set()


def slots(count: int, shape: tuple[int, ...], dtype: str) -> list[Array]:
    """``count`` arrays of ``shape``; pinned if this process has a GPU, so that copies to it are asynchronous."""
    if not pins_memory():
        return [np.zeros(shape, dtype) for _ in range(count)]
    torch: Any = sys.modules["torch"]
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pinned = [torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy() for _ in range(count)]
    return [one.view(dtype).reshape(shape) for one in pinned]


def pins_memory() -> bool:
    """Whether ``slots`` are pinned here; never in a process without torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


MAX_THREADS = 16  # simplejpeg on 16 current cores decodes 10,000 photographs per second, more than a GPU needs


def default_threads(*, bound: bool = False, tree: Tree | None = None) -> int:
    """The default number of decoding threads of this rank: its share of the host's CPUs.

    ``bound``: the rank has its allowed CPUs to itself. A container's CPU quota (``kernel.cpu_quota``) applies to all
    ranks of the host together, even if each has its own CPUs. ``tree`` replaces the kernel's files in tests.
    """
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")  # set by torchrun and our launchers
    ranks = int(local_world_size) if local_world_size.isdecimal() else 1
    threads = threads_per_rank(allowed_cpus(), 1 if bound else ranks)
    quota = cpu_quota(tree or Tree())
    return threads if quota is None else min(threads, threads_per_rank(int(quota), ranks))


def threads_per_rank(cpus: int, ranks: int) -> int:
    """Threads per rank if ``ranks`` share ``cpus``: at least one, at most ``MAX_THREADS``.

    >>> threads_per_rank(96, 8), threads_per_rank(2, 4), threads_per_rank(256, 1)
    (12, 1, 16)
    """
    return max(1, min(MAX_THREADS, cpus // max(1, ranks)))
