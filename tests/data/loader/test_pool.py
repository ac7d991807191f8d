"""The ring keeps order and memory bounded, and no thread outlives it, however it ends."""

from __future__ import annotations

import threading
import time
from itertools import count

import numpy as np
import pytest

from allpull.data.loader.pool import Ring, slots


def ring(threads: int = 3, ahead: int = 2, held: int = 2) -> Ring:
    return Ring(slots(ahead + held, (4, 1), "|u1"), held=held, threads=threads)


def loaders() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("allpull-load")]


def write(job: tuple[int, int], slot: np.ndarray) -> int:
    number, row = job
    time.sleep(0.001 * ((number * 7 + row * 3) % 4))  # so that threads overtake each other
    slot[row] = number
    return number


@pytest.mark.parametrize("threads", [1, 4])
def test_batches_come_in_order_and_stay_while_they_are_held(threads):
    batches = ([(number, row) for row in range(4)] for number in range(20))
    before = None
    for number, one in enumerate(ring(threads).run(batches, write)):
        assert one.outcomes == [number] * 4
        assert one.slot.tolist() == [[number]] * 4
        if before is not None:
            time.sleep(0.002)
            assert before.tolist() == [[number - 1]] * 4  # one more was asked for, and it is still what it was
        before = one.slot
    assert loaders() == []


def test_no_more_is_begun_than_the_ring_holds():
    asked = []

    def endless():
        for number in count():
            asked.append(number)
            yield [(number, 0)]

    running = ring(ahead=2).run(endless(), write)
    next(running)
    until = time.monotonic() + 10
    while len(asked) < 3 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.02)
    assert len(asked) == 3  # the one taken and two ahead
    running.close()
    assert loaders() == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_a_job_raises_comes_when_its_batch_is_due(kind):
    def work(job, slot):
        if job == 3:
            raise kind("it broke")
        return job

    running = ring().run(([number] for number in range(10)), work)
    assert [next(running).outcomes for _ in range(3)] == [[0], [1], [2]]
    with pytest.raises(kind, match="it broke"):
        next(running)
    assert loaders() == []


def test_what_goes_wrong_in_asking_for_batches_comes_after_those_that_were_there():
    def two():
        yield [(0, 0)]
        yield [(1, 0)]
        raise ValueError("no more of them")

    running = ring().run(two(), write)
    assert [next(running).outcomes for _ in range(2)] == [[0], [1]]
    with pytest.raises(ValueError, match="no more of them"):
        next(running)
    assert loaders() == []


def test_the_thread_that_takes_is_not_the_one_that_finds_out_what_to_do():
    asked = set()

    def batches():
        for number in range(5):
            asked.add(threading.current_thread().name)
            yield [(number, 0)]

    assert [one.outcomes for one in ring().run(batches(), write)] == [[number] for number in range(5)]
    assert threading.current_thread().name not in asked


def test_the_batches_that_are_held_at_the_end_of_a_run_stay_in_the_next():
    turns = ring(threads=2)
    *_, last = (one.slot for one in turns.run(([(number, 0)] for number in range(3)), write))
    running = turns.run(([(number, 0)] for number in range(10, 20)), write)
    next(running)
    time.sleep(0.02)  # two more are made ahead meanwhile
    assert last[0] == 2
    running.close()


def test_an_error_of_the_taker_leaves_no_thread():
    def take():
        for one in ring().run(([(number, 0)] for number in count()), write):
            if one.outcomes == [2]:
                raise OSError("the taker broke")

    with pytest.raises(OSError, match="the taker broke"):
        take()
    assert loaders() == []


def test_an_empty_batch_does_not_end_a_run():
    batches = [[(1, 0)], [], [], [(2, 0)], []]
    assert [one.outcomes for one in ring().run(iter(batches), write)] == [[1], [], [], [2], []]
    assert loaders() == []


@pytest.mark.parametrize(("ahead", "jobs"), [(2, 1), (1, 4)], ids=["of the taker's", "of a thread's"])
def test_a_thread_that_cannot_be_started_is_the_takers_error_and_leaves_no_other(monkeypatch, ahead, jobs):
    start, started, refused = threading.Thread.start, [], threading.Event()

    def one_at_most(thread):
        if started:
            refused.set()
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def work(job, slot):
        refused.wait(20)  # the first thread is at work when the next is wanted

    monkeypatch.setattr(threading.Thread, "start", one_at_most)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(ring(ahead=ahead).run(([number] * jobs for number in count()), work))
    assert len(started) == 1
    assert loaders() == []


def test_a_ring_that_could_not_move_is_refused():
    with pytest.raises(ValueError, match="no slot could be filled"):
        Ring(slots(2, (1,), "|u1"), held=2, threads=1)
