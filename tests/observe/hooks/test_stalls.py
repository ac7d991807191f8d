"""What holds up a whole rank is recorded with its cause and duration, and nothing else is."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.observe.hooks.conftest import TRAINING, Watch

from allpull.observe.hooks.stalls import COLLECTION, COMPILATION, MOST, RETRIES, Stalls

GARBAGE = """
class Node:
    def __init__(self):
        self.itself = self

import gc, time
gc.disable()
took = []
for number in range(30):
    kept = [Node() for _ in range(200_000)] if number in (12, 23) else []
    for x, y in [next(iter(loader))]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        del kept
        if number in (12, 23):
            begin = time.monotonic_ns()
            gc.collect()
            took.append(time.monotonic_ns() - begin)
        optimizer.step()
print(*took)
"""

SHAPES = """
network = torch.compile(model, backend="eager", dynamic=False)
for rows in [4] * 10 + [5] + [4] * 6 + [6, 6]:
    optimizer.zero_grad()
    network(torch.randn(rows, 8)).sum().backward()
    optimizer.step()
    if rows == 5:
        torch._dynamo.reset()
"""


@pytest.fixture
def rank() -> Any:
    """What ``Stalls`` needs of a rank: whether it records, and the step that it is in."""
    session = SimpleNamespace(at_begin=[], at_close=[], recorder=None, lost=[])
    session.part_failed = lambda part, error: session.lost.append((part, error))
    recorder = SimpleNamespace(step_number=7, paused=False, at_flush=[])
    session.recorder = recorder
    return SimpleNamespace(session=session, failed=set(), step_number=7)


def test_collections_of_a_step_are_added_up(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10_000_000, 13_000_000, 20_000_000, 20_900_000, 30_000_000, 34_000_000, 50_000_000, 55_000_000])
    monkeypatch.setattr("allpull.observe.hooks.stalls.monotonic_ns", lambda: next(moments))
    stalls = Stalls(rank)
    for step in (7, 7, 7, 8):
        rank.step_number = step
        stalls._collects("start", {})
        stalls._collects("stop", {})
    common = {"kind": "stall", "cause": COLLECTION}
    assert list(stalls.take(())) == [
        {**common, "step": 7, "begin_ns": 10_000_000, "duration_ns": 7_000_000, "count": 2},  # one was too short
        {**common, "step": 8, "begin_ns": 50_000_000, "duration_ns": 5_000_000, "count": 1},
    ]
    assert not stalls.take(())


def test_a_rank_that_only_counts_its_steps_records_none(rank: Any) -> None:
    stalls = Stalls(rank)
    rank.session.recorder.paused = True
    stalls._note(COMPILATION, 1)
    rank.session.recorder.paused = False
    stalls._note(COMPILATION, 0)  # it began before we looked
    assert not stalls.take(())
    for _ in range(MOST + 5):
        stalls._note(COMPILATION, 1)
    assert [event["count"] for event in stalls.take(())] == [MOST]


def test_retries_belong_to_the_longest_step(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"num_alloc_retries": 0}
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_stats_as_nested_dict=lambda: counted)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    stalls = Stalls(rank)
    steps = [(number, 0, begin, 4, end) for number, begin, end in [(3, 0, 10), (4, 10, 90), (5, 90, 99)]]
    assert not stalls.take(steps)
    counted["num_alloc_retries"] = 2
    assert list(stalls.take(steps)) == [
        {"kind": "stall", "cause": RETRIES, "step": 4, "begin_ns": 10, "duration_ns": None, "count": 2}
    ]
    counted["num_alloc_retries"] = 0  # reset_accumulated_memory_stats()
    assert not stalls.take(steps)


def test_a_failure_ends_stalls_alone(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("no clock")

    stalls = Stalls(rank)
    stalls._begin()
    assert stalls._collects in gc.callbacks
    assert rank.session.recorder.at_flush == [stalls.take]
    monkeypatch.setattr("allpull.observe.hooks.stalls.monotonic_ns", broken)
    stalls._collects("start", {})
    assert stalls._collects not in gc.callbacks
    assert [part for part, _ in rank.session.lost] == ["stalls"]
    assert stalls.take(()) == ()


def test_a_rank_that_has_ended_listens_no_more(rank: Any) -> None:
    stalls = Stalls(rank)
    stalls.watch()
    assert stalls._collects not in gc.callbacks  # it is no rank yet
    for begin in rank.session.at_begin:
        begin()
    gc.collect()
    for end in rank.session.at_close:
        end()
    assert stalls._collects not in gc.callbacks


@pytest.mark.torch
@pytest.mark.slow
def test_a_program_that_collects_garbage(watched: Watch) -> None:
    run = watched(TRAINING + GARBAGE)
    assert (run.code, run.err) == (0, "")
    took = [int(ns) for ns in run.out.split()]
    stalls = [stall for stall in run.events("stall") if stall.cause == COLLECTION]
    assert [stall.step for stall in stalls] == [12, 23]
    for stall, collect_ns in zip(stalls, took, strict=True):
        assert 0.5 * collect_ns <= stall.duration_ns <= collect_ns
    for stall, step in zip(stalls, [run.steps()[12], run.steps()[23]], strict=True):
        assert step.begin_ns <= stall.begin_ns <= step.end_ns - (stall.duration_ns or 0)
    assert "stalls" in run.header().sources


@pytest.mark.torch
@pytest.mark.slow
def test_a_program_that_recompiles(watched: Watch) -> None:
    """A reset of dynamo, which drops all callbacks, is no end of it."""
    run = watched(TRAINING + SHAPES)
    assert (run.code, run.err) == (0, "")
    stalls = [stall for stall in run.events("stall") if stall.cause == COMPILATION]
    assert [stall.step for stall in stalls] == [0, 10, 11, 17]
    steps = run.steps()
    for stall in stalls:
        step = steps[stall.step]
        assert 0 < (stall.duration_ns or 0) <= step.end_ns - step.begin_ns
