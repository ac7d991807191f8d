"""Threads that fill a ring of slots ahead of the one who takes them, in the order that was asked for.

Codecs let go of the interpreter's lock while they decode, so threads are enough, and pixels are written where they are
needed: no copy between processes, no shared memory that outlives a crash. Memory is the ring and what the threads are
decoding, however slow the taker is.

The threads also work out what is to be done. The taker, which is the thread that trains, does nothing but make room
and wait: each thing that two threads do in turns costs the interpreter's lock and the caches of both.
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

        ``batches`` are asked for by one of the threads at a time; an empty one comes as it is, with a slot. What that
        or a job raises, the taker gets when the batch is due; RuntimeError, where a thread cannot be started. However
        the taker ends, closing what this returned leaves no thread behind: what has begun is finished (one job a
        thread), what has not is dropped.
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
                waiting.append(run.make_room())  # before the taker goes away with this one: threads work meanwhile
                yield Filled(one.slot, one.jobs, one.outcomes)
        finally:
            run.stop()
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class _Due(Generic[Job, Outcome]):
    """A batch that the taker will ask for; ``ready`` and without a slot, there is none."""

    slot: Array | None = None
    jobs: Sequence[Job] = ()
    outcomes: list[Any] = field(default_factory=list)
    left: int = 0
    error: BaseException | None = None
    ready: Event = field(default_factory=Event)


class _Run(Generic[Job, Outcome]):
    """What the threads of one run share. None of them ever waits for room, so that a process can always end."""

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
        self._lock = Lock()  # of all of the above

    def make_room(self) -> _Due[Job, Outcome]:
        """Let one batch more be begun."""
        due: _Due[Job, Outcome] = _Due()
        with self._lock:
            self._room.append(due)
            self._wake(1)
        return due

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._stopped = True

    def _wake(self, threads: int) -> None:
        for _ in range(min(threads, self._idle)):
            self._idle -= 1
            self._pool.submit(self._fill)

    def _fill(self) -> None:
        while (mine := self._next()) is not None:
            due, number = mine
            assert due.slot is not None
            try:
                due.outcomes[number] = self._work(due.jobs[number], due.slot)
            except BaseException as error:  # noqa: BLE001  the taker's, whatever it is
                due.error = error
            with self._lock:
                due.left -= 1
                done = due.left == 0
            if done:
                due.ready.set()

    def _next(self) -> tuple[_Due[Job, Outcome], int] | None:
        """The next job, of the earliest batch that has one left."""
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
            except RuntimeError as error:  # no thread more can be started: the taker is told, not this thread
                due.error = error
        if not jobs:
            due.ready.set()


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


MOST = 16  # of simplejpeg on one current core, 16 give 10,000 photographs a second: more than any GPU trains on


def usual_threads(*, bound: bool = False, tree: Tree | None = None) -> int:
    """Those of this rank; ``bound``: the processors it may run on are its own, and no other rank's.

    A quota is one for all ranks of the host, also where each has processors of its own. ``tree`` stands for what the
    kernel says.
    """
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")  # by torchrun, and by our launchers
    ranks = int(told) if told.isdecimal() else 1
    threads = shared_out(allowed_cpus(), 1 if bound else ranks)
    quota = cpu_quota(tree or Tree())
    return threads if quota is None else min(threads, shared_out(int(quota), ranks))


def shared_out(cpus: int, ranks: int) -> int:
    """Threads of each of ``ranks`` that share ``cpus``: at least one, at most ``MOST``.

    >>> shared_out(96, 8), shared_out(2, 4), shared_out(256, 1)
    (12, 1, 16)
    """
    return max(1, min(MOST, cpus // max(1, ranks)))
