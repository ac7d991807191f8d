"""Ranks agree on the step to stop after, however their steps, signals and questions to the store interleave.

The ranks are threads of which one at a time runs, chosen by the test at every point where a real one could be held up:
so a deadlock shows, exactly, as nobody being able to run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull.train.preemption import SAVE_ON_TERM, StopAgreement, listen  # noqa: E402

pytestmark = pytest.mark.torch

STEPS = 40
TICK_S = 0.06  # between two turns: so a rank looks into the store every dozen turns or so


@dataclass
class World:
    """Ranks that train in step, where ``gpu`` with hosts that run ahead of their devices."""

    ranks: int
    gpu: bool
    turn: Callable[[int], int]
    """Chooses the next rank to run, as an index below its argument."""
    warnings: dict[int, int]
    """Rank → the turn after which it has its warning."""

    turns: int = 0
    store: dict[str, int | str] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    """The step whose all-reduce each rank has begun."""
    stopped: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun = [0] * self.ranks
        self.may_run: dict[int, Callable[[], bool]] = dict.fromkeys(range(self.ranks), lambda: True)
        self.go = [threading.Semaphore(0) for _ in range(self.ranks)]
        self.back = threading.Semaphore(0)

    def pause(self, rank: int, until: Callable[[], bool] = lambda: True) -> None:
        """Let the others run, and go on some time after ``until`` holds."""
        self.may_run[rank] = until
        self.back.release()
        self.go[rank].acquire()

    def live(self, rank: int) -> None:
        """One rank: all-reduce, optimizer, question, and again; it leaves where the answer is yes."""
        self.go[rank].acquire()
        stop = StopAgreement(Place(self, rank), lambda: self.turns >= self.warnings.get(rank, 1 << 30), self.clock)
        for step in range(1, STEPS + 1):
            self.begun[rank] = step
            self.pause(rank, until=(lambda: True) if self.gpu else (lambda: self.has_reduced(rank)))
            if stop.after(step):
                self.stopped[rank] = step
                break
        del self.may_run[rank]
        self.back.release()

    def clock(self) -> float:
        return self.turns * TICK_S

    def has_reduced(self, rank: int) -> bool:
        """Whether the all-reduce that ``rank`` is in has everybody in it."""
        return all(step >= self.begun[rank] for step in self.begun)

    def run(self) -> None:
        """Until all have ended; fails where none can go on."""
        threads = [threading.Thread(target=self.live, args=(rank,), daemon=True) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        while self.may_run:
            able = [rank for rank, able in self.may_run.items() if able()]
            assert able, f"deadlock: {self.begun} steps begun, {self.stopped} stopped, {self.store}"
            self.turns += 1
            self.go[able[self.turn(len(able))]].release()
            self.back.acquire()


@dataclass
class Place:
    """``train.parallel.ranks.Ranks`` and the store, as one rank sees them; each question may be held up."""

    world: World
    rank: int

    @property
    def ranks(self) -> int:
        return self.world.ranks

    def synchronize(self) -> None:
        self.world.pause(self.rank, until=lambda: self.world.has_reduced(self.rank))

    def store(self) -> Place:
        return self

    def set(self, key: str, value: str) -> None:
        self.world.pause(self.rank)
        self.world.store[key] = value

    def add(self, key: str, amount: int) -> int:
        self.world.pause(self.rank)
        self.world.store[key] = int(self.world.store.get(key, 0)) + amount
        return int(self.world.store[key])

    def check(self, keys: list[str]) -> bool:
        self.world.pause(self.rank)
        return all(key in self.world.store for key in keys)

    def get(self, key: str) -> str:
        self.world.pause(self.rank)
        return str(self.world.store[key])


@settings(max_examples=150)
@given(st.data(), st.integers(2, 4), st.booleans())
def test_all_stop_after_the_same_step_or_none_does(data: st.DataObject, ranks: int, gpu: bool) -> None:
    warned = data.draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(0, 12 * STEPS), min_size=1))
    chance = data.draw(st.randoms(use_true_random=False))
    favourite = data.draw(st.sampled_from([None, 0, ranks - 1]))  # a rank that always runs as far as it can

    def turn(able: int) -> int:
        return chance.randrange(able) if favourite is None else min(favourite, able - 1)

    world = World(ranks=ranks, gpu=gpu, turn=turn, warnings=warned)
    world.run()
    assert len(set(world.stopped.values())) <= 1
    assert len(world.stopped) in {0, ranks}
    if world.store.get("counted") == ranks and int(world.store["last"]) <= STEPS:
        assert world.stopped == dict.fromkeys(range(ranks), int(world.store["last"]))


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_warning_of_one_rank_stops_all_soon(ranks: int) -> None:
    chance = iter(range(10**9))
    world = World(ranks=ranks, gpu=False, turn=lambda able: next(chance) % able, warnings={ranks - 1: 30})
    world.run()
    assert len(world.stopped) == ranks
    assert next(iter(world.stopped.values())) < STEPS


def test_without_a_warning_a_step_asks_the_store_nothing_but_once_a_second() -> None:
    """The price: of 1000 steps of 10 ms, ten or so ask."""
    asked = []

    class Quiet:
        ranks = 2

        def store(self) -> Quiet:
            return self

        def check(self, keys: list[str]) -> bool:
            asked.append(keys)
            return False

    now = iter(step * 0.01 for step in range(10_000))
    stop = StopAgreement(Quiet(), lambda: False, lambda: next(now))
    assert not any(stop.after(step) for step in range(1, 1001))
    assert 9 <= len(asked) <= 10
    assert set(map(tuple, asked)) == {("warned",)}


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of both signals, put back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("environ", "number"),
    [({}, signal.SIGUSR1), ({SAVE_ON_TERM: "1"}, signal.SIGUSR1), ({SAVE_ON_TERM: "1"}, signal.SIGTERM)],
)
def test_what_is_a_warning(handlers: None, environ: dict[str, str], number: signal.Signals) -> None:
    warned = listen(environ)
    assert not warned()
    os.kill(os.getpid(), number)
    assert warned()


def test_sigterm_stays_as_it_was_where_no_batch_script_speaks_of_it(handlers: None) -> None:
    usual = signal.getsignal(signal.SIGTERM)
    listen({})
    assert signal.getsignal(signal.SIGTERM) is usual
