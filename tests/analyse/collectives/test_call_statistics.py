"""What collectives cost and at which rate they run; what others waited in while one evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.call_statistics import MOST_USES, busbw_factor, call_statistics
from allpull.analyse.collectives.matching import match
from allpull.analyse.coverage import observed
from allpull.analyse.run import metrics
from allpull.rundir.read.run import RunData
from allpull.schema.events import EpochMark, Span, SwitchedOff
from allpull.schema.results import RunMetrics

MakeAny = Callable[..., Any]
MS = 10**6


def metrics_of(run: RunData) -> RunMetrics:
    return metrics(AlignedRun(run))


def span(name: str, begin: float, end: float, base_ns: int = 10**12) -> Span:
    times = {"begin_ns": base_ns + round(begin * MS), "end_ns": base_ns + round(end * MS)}
    return Span.model_validate({"kind": "span", "name": name, "step": 0, "epoch": 0, **times})


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [  # doc/PERFORMANCE.md of nccl-tests
        ("all_reduce", 8, 14 / 8),
        ("all_gather_into_tensor", 8, 7 / 8),
        ("reduce_scatter_tensor", 8, 7 / 8),
        ("all_to_all_single", 8, 7 / 8),
        ("broadcast", 8, 1),
        ("reduce", 8, 1),
        ("barrier", 8, None),
        ("all_reduce", 1, None),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, ranks: int, factor: float | None) -> None:
    assert busbw_factor(op, ranks) == (factor if factor is None else pytest.approx(factor))


def test_rates_come_from_the_last_arrival_on(make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny) -> None:
    """8 MB among 4 ranks, 3 times a step; the last comes 30 ms late, and 10 ms later all have it: 800 MB/s."""
    rows = []
    for step in range(10):
        for place in range(3):
            at = 1000 * step + 100 * place
            rows += [(rank, step, 0, 3 * step + place, at + 10 * rank, 40 - 10 * rank, at + 40) for rank in range(4)]
    events = {
        rank: make_log(rank, collective_kinds=(make_kind("all_reduce", 4, size_bytes=8 * 10**6),)) for rank in range(4)
    }
    matched = match(make_calls(rows), events, slack_ns=0)
    (use,) = call_statistics(matched, np.arange(2, 10), 4, slack_ns=0)
    assert (use.calls, use.unmatched, use.calls_per_step, use.steady) == (96, 0, 3, True)
    assert use.wait_s == pytest.approx(0.015)  # 30, 20, 10 and 0 ms
    assert use.transfer_s == pytest.approx(0.010)
    assert use.algbw_bytes_per_s == pytest.approx(800e6)
    assert use.busbw_bytes_per_s == pytest.approx(1200e6)
    assert use.blocked_s_per_step == pytest.approx(3 * 0.025)
    (vague,) = call_statistics(matched, np.arange(2, 10), 4, slack_ns=20 * MS)
    assert (vague.algbw_bytes_per_s, vague.busbw_bytes_per_s) == (None, None)  # 10 ms are below what clocks can tell


def test_what_is_called_outside_of_steady_steps_alone_counts_over_all(
    make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> None:
    rows = [(rank, step, 0, step, 100 * step, 5, 100 * step + 5) for step in range(4) for rank in range(2)]
    rows += [(rank, 3, 1, 10, 350, 20, 370) for rank in range(2)]
    kinds = (make_kind("all_reduce", 2), make_kind("barrier", 2, id=1, size_bytes=0, dtype=None))
    matched = match(make_calls(rows), {rank: make_log(rank, collective_kinds=kinds) for rank in range(2)}, slack_ns=0)
    barrier, reduce = sorted(
        call_statistics(matched, np.array([1, 2]), 2, slack_ns=0), key=lambda use: use.op, reverse=True
    )
    assert (barrier.op, barrier.steady, barrier.calls, barrier.calls_per_step) == ("barrier", False, 2, 0.25)
    assert (reduce.op, reduce.steady, reduce.calls, reduce.calls_per_step) == ("all_reduce", True, 4, 1)
    assert barrier.algbw_bytes_per_s is None


def test_a_thousand_kinds_are_the_fifty_that_cost_most(
    make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny
) -> None:
    kinds = tuple(make_kind("all_reduce", 1, id=place, size_bytes=place) for place in range(1000))
    rows = [(0, 0, place, place, place, place / 1000, place + place / 1000) for place in range(1000)]
    found = call_statistics(
        match(make_calls(rows), {0: make_log(0, collective_kinds=kinds)}, slack_ns=0), np.array([0]), 1, slack_ns=0
    )
    assert [use.size_bytes for use in found] == list(range(999, 999 - MOST_USES, -1))


def test_runs_without_any_record_of_calls_do_not_claim_there_were_none(
    make_records: MakeAny, make_data: MakeAny
) -> None:
    assert metrics_of(make_data(make_records([[10, 10]] * 3), 2)).collectives is None
    none = metrics_of(make_data(make_records([[10, 10]] * 3, collective=[[0, 0]] * 3), 2))
    assert none.collectives == []


def test_evaluation_on_one_rank_and_what_the_others_waited_in(
    make_records: MakeAny, make_calls: MakeAny, make_kind: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    """Rank 0 evaluates for 300 ms; ranks 1 and 2 are at a barrier after 10 ms, and then 20 ms in the next broadcast."""
    kinds = (
        make_kind("barrier", 3, size_bytes=0, dtype=None),
        make_kind("broadcast", 3, id=1, root=0, inside="forward"),
    )
    rows = [(rank, 1, 0, 0, 110, 190, 300) for rank in (1, 2)] + [(0, 1, 0, 0, 300, 0, 300)]
    rows += [(rank, 1, 1, 1, 380, 21, 401) for rank in (1, 2)] + [(0, 1, 1, 1, 400, 1, 401)]
    epochs = tuple(EpochMark(kind="epoch", epoch=number, step=number, t_ns=0) for number in (0, 1))
    logs = {
        0: make_log(
            0, collective_kinds=kinds, spans=(span("evaluation", 100, 300), span("checkpoint", 380, 400)), epochs=epochs
        ),
        1: make_log(1, collective_kinds=kinds),
        2: make_log(2, collective_kinds=kinds),
    }
    records = make_records([[100] * 3, [400] * 3], collective=[[0] * 3, [1, 211, 211]])
    evaluation, checkpoint = metrics_of(make_data(records, 3, events=logs, collectives=make_calls(rows))).pauses
    assert (evaluation.name, evaluation.ranks, evaluation.times) == ("evaluation", [0], 1)
    assert evaluation.seconds == pytest.approx(0.2)
    assert evaluation.s_per_epoch == pytest.approx(0.1)
    assert (evaluation.waited_s, evaluation.waited_in) == (pytest.approx(0.19), "barrier")
    assert (checkpoint.waited_s, checkpoint.waited_in) == (pytest.approx(0.02), "broadcast in forward")


def test_evaluations_that_ranks_do_not_all_do_are_counted_on_both(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    """Both evaluate for 50 ms; rank 0 does so once more, for 200 ms, by itself."""
    logs = {
        0: make_log(0, spans=(span("evaluation", 100, 300), span("evaluation", 300, 350))),
        1: make_log(1, spans=(span("evaluation", 300, 350),)),
    }
    (evaluation,) = metrics_of(make_data(make_records([[100] * 2, [400] * 2]), 2, events=logs)).pauses
    assert (evaluation.ranks, evaluation.fewest, evaluation.times) == ([], 1, 2)
    assert (evaluation.shortest_s, evaluation.seconds) == (pytest.approx(0.05), pytest.approx(0.25))


def test_waiting_for_an_evaluation_in_the_next_reduction_of_gradients(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    """Without a barrier the others go on, and wait where gradients meet."""
    records = make_records([[500, 500]], arrival=[[480, 100]], done=[[490, 490]], backward=[[20, 400]])
    logs = {0: make_log(0, spans=(span("evaluation", 0, 400),)), 1: make_log(1)}
    (pause,) = metrics_of(make_data(records, 2, events=logs)).pauses
    assert (pause.waited_s, pause.waited_in) == (pytest.approx(0.3), "reduction of gradients")


def test_an_evaluation_on_all_ranks_leaves_nobody_to_wait(
    make_records: MakeAny, make_log: MakeAny, make_data: MakeAny
) -> None:
    logs = {rank: make_log(rank, spans=(span("evaluation", 0, 10 + rank),)) for rank in (0, 1)}
    (pause,) = metrics_of(make_data(make_records([[50, 50]]), 2, events=logs)).pauses
    assert (pause.ranks, pause.waited_s, pause.waited_in) == ([], None, None)
    assert pause.seconds == pytest.approx(0.011)
    unknown = {0: logs[0], 1: make_log(1)}
    (alone,) = metrics_of(make_data(make_records([[50, 50]]), 2, events=unknown)).pauses
    assert (alone.ranks, alone.waited_s) == ([0], None)  # no waits were recorded at all: not known, and not 0


def test_what_was_observed_is_counted(make_records: MakeAny, make_log: MakeAny, make_data: MakeAny) -> None:
    records = make_records(
        [[10, 10]] * 4,
        samples=[[8, 8], [8, 8], [8, 8], [4, 3]],
        tags={(0, 0): ["warmup"], (1, 0): ["skipped"], (1, 1): ["skipped"]},
    ).with_columns(backward_passes=pl.lit(4, dtype=pl.Int64))
    marks = tuple(EpochMark(kind="epoch", epoch=number, step=2 * number, t_ns=0) for number in (0, 1))
    off = SwitchedOff(kind="switched_off", reason="no room", part="windows", t_ns=0)
    run = make_data(records, 2, events={0: make_log(epochs=marks, switched_off=(off,))})
    found = observed(run, np.array([2, 3]))
    assert (found.steps, found.epochs, found.samples, found.skipped_steps) == (4, 2, 55, 1)
    assert (found.backward_passes, found.stopped_parts, found.boundary) == (4.0, ["windows"], "marks")
    unsaid = observed(make_data(make_records([[10]] * 2, samples=[[8], [None]]), 1), np.array([0]))
    assert (unsaid.samples, unsaid.backward_passes, unsaid.epochs) == (None, None, 1)
