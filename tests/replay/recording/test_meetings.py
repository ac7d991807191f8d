"""What `show` and `explain` say of one collective: the same seconds of waiting, for every operation (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.explain.explanation import explain
from allpull.rundir.read.run import RunData

MakeAny = Callable[..., Any]
STEPS = 16
ROOT = 0

CASES = {
    # op, (begin, end) of each rank in ms, and who waits for how long: rank 0 is the root
    "all-reduce": ("all_reduce", [(0, 120), (30, 118), (100, 119)], [100, 70, 0]),
    "root late, not last; nobody is held": ("broadcast", [(50, 52), (0, 60), (80, 81)], [0, 50, 0]),
    "root late, not last; one is busy until the last is there": (
        "broadcast",
        [(50, 52), (0, 95), (80, 100), (0, 75)],
        [0, 50, 0, 50],
    ),
    "root first; the library holds it until the last is there": (
        "broadcast",
        [(0, 101), (100, 102), (0, 1)],
        [100, 0, 0],
    ),
    "scatter from a late root": ("scatter", [(40, 45), (0, 45), (60, 65)], [0, 40, 0]),
    "root early; the others send and go on": ("reduce", [(0, 40), (10, 12), (30, 32)], [30, 0, 0]),
    "root early; one sends for long": ("gather", [(0, 80), (5, 20), (10, 75), (70, 72)], [70, 0, 0, 0]),
    "root late, not last": ("gather", [(50, 75), (0, 55), (70, 72)], [20, 0, 0]),
    "root early; all are held until the last is there": ("reduce", [(0, 40), (10, 36), (30, 35)], [30, 20, 0]),
}


@pytest.fixture
def called(
    make_records: MakeAny, make_data: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> Callable[[str, list[tuple[float, float]]], RunData]:
    """Steps of 200 ms with one call each, in which ranks are blocked from begin to end."""

    def make(op: str, moments: list[tuple[float, float]]) -> RunData:
        ranks = len(moments)
        blocked = [[end - begin for begin, end in moments]] * STEPS
        rows = [
            (rank, step, 0, step, 200 * step + begin, end - begin, 200 * step + end)
            for step in range(STEPS)
            for rank, (begin, end) in enumerate(moments)
        ]
        logs = {rank: make_log(rank, collective_kinds=(make_kind(op, ranks, root=ROOT),)) for rank in range(ranks)}
        steps = make_records([[200.0] * ranks] * STEPS, collective=blocked)
        return make_data(steps, ranks, kind="run", events=logs, collectives=make_calls(rows))

    return make


@pytest.mark.parametrize("case", CASES)
def test_show_and_explain_agree_on_one_collective(
    called: Callable[[str, list[tuple[float, float]]], RunData], case: str
) -> None:
    op, moments, waited_ms = CASES[case]
    run = called(op, moments)
    transfer_ms = [end - begin - waited for (begin, end), waited in zip(moments, waited_ms, strict=True)]
    shown = metrics(AlignedRun(run)).phases
    explained = explain(AlignedRun(run)).result.phases
    for name, expected in (("wait", waited_ms), ("transfer", transfer_ms)):
        assert 1000 * (shown[name] or 0) == pytest.approx(np.mean(expected)), f"show, {name}"
        assert [1000 * seconds for seconds in explained.per_rank[name] or []] == pytest.approx(expected), name
        assert 1000 * (explained.mean[name] or 0) == pytest.approx(np.mean(expected)), f"explain, {name}"
