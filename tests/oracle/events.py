"""An event queue: processes that sleep, wait for moments, and hand things to each other in order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from itertools import count
from typing import Any

Process = Generator["float | Moment", None, None]
"""Yields how many seconds it sleeps, or the moment for which it waits."""


class World:
    """What is due next, and the time that has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process | Moment]] = []
        self._order = count()  # who came first goes first

    def start(self, due: Process | Moment, after: float = 0.0) -> None:
        heapq.heappush(self._due, (self.now + after, next(self._order), due))

    def run(self) -> None:
        """Until nothing is due."""
        while self._due:
            self.now, _, due = heapq.heappop(self._due)
            if isinstance(due, Moment):
                due.at = self.now
                for process in due.waiting:
                    self._resume(process)
                due.waiting.clear()
            else:
                self._resume(due)

    def _resume(self, process: Process) -> None:
        for awaited in process:
            if not isinstance(awaited, Moment):
                self.start(process, awaited)
                return
            if awaited.at is None:
                awaited.waiting.append(process)
                return


class Moment:
    """Happens once; those who wait for it go on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at: float | None = None
        self.waiting: list[Process] = []

    def happen(self, after: float = 0.0) -> None:
        self.world.start(self, after)


class Queue:
    """First in, first out; whoever takes from an empty one waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._items: deque[Any] = deque()
        self._filled = Moment(world)

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._filled.waiting:
            self._filled.happen()

    def take(self) -> Generator[Moment, None, Any]:
        while not self._items:
            self._filled = Moment(self.world)
            yield self._filled
        return self._items.popleft()
