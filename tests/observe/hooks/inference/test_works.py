"""Asynchronous collectives: each call is recorded once, however its work ends."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from tests.observe.hooks.conftest import Watch, torchrun
from tests.observe.hooks.torch.test_collectives import PARALLEL

from allpull.observe.hooks.inference import works as module
from allpull.observe.hooks.inference.works import Works

BEGIN_NS = 100


class Work:
    pass


@pytest.fixture
def recorded() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def works(recorded: list[tuple[Any, ...]]) -> Works:
    deferred = SimpleNamespace(collective=lambda *call: recorded.append(call))
    inference: Any = SimpleNamespace(session=None, failed=set(), deferred=deferred)
    return Works(inference)


@pytest.mark.parametrize("in_backward", [True, False])
def test_works_that_are_freed_at_once_are_recorded_although_they_share_an_id(
    works: Works, recorded: list[tuple[Any, ...]], in_backward: bool
) -> None:
    for number in range(5):
        works.starts(Work(), 0, number, (BEGIN_NS + number, BEGIN_NS + number), in_backward=in_backward)
    assert recorded == [(0, number, BEGIN_NS + number, None, None) for number in range(5)]


def test_a_work_that_is_waited_for_has_an_end_and_is_recorded_once(
    works: Works, recorded: list[tuple[Any, ...]]
) -> None:
    work = Work()
    works.starts(work, 1, 7, (BEGIN_NS, BEGIN_NS + 5), in_backward=True)
    assert works.is_pending(work)
    works.waited(work, BEGIN_NS + 50, BEGIN_NS + 70)
    assert not works.is_pending(work)
    works.optimizer_stepped()
    del work
    gc.collect()
    assert recorded == [(1, 7, BEGIN_NS, 20, BEGIN_NS + 70)]


def test_a_call_that_is_waited_for_at_once_has_blocked_the_program(
    works: Works, recorded: list[tuple[Any, ...]]
) -> None:
    work = Work()
    works.starts(work, 1, 7, (BEGIN_NS, BEGIN_NS + 30), in_backward=False)
    works.waited(work, BEGIN_NS + 40, BEGIN_NS + 60)
    assert recorded == [(1, 7, BEGIN_NS, 50, BEGIN_NS + 60)]


def test_what_nobody_waited_for_is_recorded_when_the_optimizer_has_used_it_or_the_program_ends(
    works: Works, recorded: list[tuple[Any, ...]]
) -> None:
    kept = [Work(), Work(), Work()]
    for number, work in enumerate(kept):
        works.starts(work, 0, number, (BEGIN_NS, BEGIN_NS), in_backward=number != 1)
    works.optimizer_stepped()
    assert [number for _, number, *_ in recorded] == [0, 2]
    works.forget()
    kept.clear()
    assert [number for _, number, *_ in recorded] == [0, 2, 1]


def test_more_works_than_are_remembered_lose_no_call(
    works: Works, recorded: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 2)
    kept = [Work() for _ in range(5)]
    for number, work in enumerate(kept):
        works.starts(work, 0, number, (BEGIN_NS, BEGIN_NS), in_backward=False)
    works.forget()
    assert [number for _, number, *_ in recorded] == [0, 1, 2, 3, 4]


def test_what_has_no_weak_references_is_recorded_without_an_end(works: Works, recorded: list[tuple[Any, ...]]) -> None:
    works.starts((), 0, 3, (BEGIN_NS, BEGIN_NS), in_backward=False)
    assert recorded == [(0, 3, BEGIN_NS, None, None)]


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
def test_every_call_of_a_comm_hook_is_recorded(watched: Watch) -> None:
    run = watched(
        PARALLEL.replace("DistributedDataParallel(net)", "DistributedDataParallel(net, bucket_cap_mb=0.0001)")
        + """
def hook(_, bucket):
    buffer = bucket.buffer() / 2
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])

model.register_comm_hook(None, hook)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        start=torchrun(2),
    )
    assert run.code == 0, run.err
    for rank in range(2):
        kinds = {kind.id: kind for kind in run.events("collective_kind", rank)}
        steps = run.steps(rank)
        calls = [call for step in steps for call in step.collectives or () if kinds[call[0]].op == "all_reduce"]
        numbers = [number for _, number, *_ in calls]
        assert len(numbers) > len(steps) == 30  # several buckets
        assert all(blocked is None and end is None for _, _, _, blocked, end in calls)
        everything = sorted(number for step in steps for _, number, *_ in step.collectives or () if number is not None)
        assert everything == list(range(everything[0], everything[-1] + 1))  # no number is missing
