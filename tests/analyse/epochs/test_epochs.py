"""Epochs whose parts are added up by hand, and those that do not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import PARTS, epochs_of
from allpull.analyse.epochs.times import epoch_time, rates, time_to_accuracy, time_to_solution_s
from allpull.analyse.run import metrics
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.schema.events import End, EpochMark, Metric, Restarted, Span

BASE_NS = 10**12
MakeRecords = Callable[..., pl.DataFrame]
MakeData = Callable[..., RunData]
MakeLog = Callable[..., EventLog]


def ns(ms: float) -> int:
    return BASE_NS + round(ms * 1e6)


def mark(epoch: int, step: int, ms: float, asked: float | None = None) -> EpochMark:
    return EpochMark(kind="epoch", epoch=epoch, step=step, t_ns=ns(ms), asked_ns=None if asked is None else ns(asked))


def span(name: str, step: int, begin: float, end: float) -> Span:
    return Span(kind="span", name=name, begin_ns=ns(begin), end_ns=ns(end), step=step, epoch=0)


def top1(value: float | None, ms: float, epoch: int) -> Metric:
    return Metric(kind="metric", name="test_top1", value=value, step=0, epoch=epoch, t_ns=ns(ms))


def end(ms: float) -> End:
    return End(kind="end", steps=0, t_ns=ns(ms))


@pytest.fixture
def make_run(make_records: MakeRecords, make_data: MakeData, make_log: MakeLog) -> Callable[..., AlignedRun]:
    """``make_run([[0, 100, 200], …], inputs, logs)``: for each rank the edges of its steps, in ms, and its events."""

    def make(
        edges: Sequence[Sequence[float]],
        inputs: Sequence[Sequence[float]],
        logs: Sequence[dict[str, Any]],
        forward: float = 0.0,
        **changes: Any,
    ) -> AlignedRun:
        by_step = list(zip(*edges, strict=True))
        wall = [
            [late - early for early, late in zip(*pair, strict=True)]
            for pair in zip(by_step, by_step[1:], strict=False)
        ]
        forwards = [[forward] * len(edges)] * len(wall)
        records = make_records(wall, begin=by_step[:-1], input=list(zip(*inputs, strict=True)), forward=forwards)
        events = {}
        for rank, kinds in enumerate(logs):
            log = make_log(rank, **{name: tuple(value) for name, value in kinds.items() if name != "end"})
            events[rank] = log if "end" not in kinds else EventLog(**{**_fields(log), "end": kinds["end"]})
        return AlignedRun(make_data(records.sort("rank", "step"), len(edges), events=events, **changes))

    return make


def _fields(log: EventLog) -> dict[str, Any]:
    return {name: getattr(log, name) for name in EventLog.__slots__}


@pytest.fixture
def two_ranks(make_run: Callable[..., AlignedRun]) -> AlignedRun:
    """Two epochs of two steps on two ranks; rank 0 evaluates and saves alone, and rank 1 begins the next meanwhile."""
    return make_run(
        [[0, 100, 200, 430, 530], [5, 100, 200, 430, 530]],
        [[10, 0, 10, 0], [20, 0, 20, 0]],
        [
            {
                "epochs": [mark(0, 0, 0), mark(1, 2, 330)],
                "spans": [
                    *(span("evaluation", 2, 200, 300), span("checkpoint", 2, 300, 320)),
                    *(span("evaluation", 4, 530, 640), span("checkpoint", 4, 641, 660)),
                ],
                "metrics": [top1(0.5, 300, 0), top1(0.8, 641, 1)],
                "end": end(700),
            },
            {"epochs": [mark(0, 0, 5), mark(1, 2, 201)], "end": end(690)},
        ],
    )


def test_the_parts_of_an_epoch_are_those_added_up_by_hand(two_ranks: AlignedRun) -> None:
    found = epoch_time(epochs_of(two_ranks))
    assert found is not None
    in_ms = [{part: round(1000 * getattr(one, part), 6) for part in ("total", *PARTS)} for one in found.each]
    # the last rank has its first batch at 5 + 20 ms, and has begun epoch 1 at 330 ms, when rank 0 is done
    assert in_ms[0] == {"total": 330, "training": 175, "evaluation": 100, "checkpoint": 20, "start": 25, "other": 10}
    assert in_ms[1] == {"total": 330, "training": 190, "evaluation": 110, "checkpoint": 19, "start": 10, "other": 1}
    assert (found.epochs, found.first, found.interval) == (1, found.each[0], None)
    assert found.total == pytest.approx(0.330)


def test_rates_are_over_training_and_over_everything(two_ranks: AlignedRun) -> None:
    training, overall = rates(epochs_of(two_ranks))
    assert training == pytest.approx(4 * 64 / 0.190)
    assert overall == pytest.approx(4 * 64 / 0.330)


def test_ranks_that_have_no_loader_of_their_own_count_with_what_they_train_on(two_ranks: AlignedRun) -> None:
    """As where rank 0 reads for all, and sends the others their batches: only it has passes over a loader."""
    events = {**two_ranks.data.events, 1: replace(two_ranks.data.events[1], epochs=())}
    found = epochs_of(AlignedRun(replace(two_ranks.data, events=events)))
    assert [one.samples for one in found.complete] == [4 * 64, 4 * 64]
    assert rates(found)[0] == pytest.approx(4 * 64 / 0.190)


def test_time_to_solution_is_from_the_first_begin_to_the_last_end(two_ranks: AlignedRun) -> None:
    assert time_to_solution_s(epochs_of(two_ranks)) == pytest.approx(0.660)


@pytest.mark.parametrize(("wanted", "time_s", "epoch"), [(0.4, 0.3, 0), (0.8, 0.641, 1), (0.81, None, None)])
def test_time_to_an_accuracy(two_ranks: AlignedRun, wanted: float, time_s: float | None, epoch: int | None) -> None:
    found = time_to_accuracy(two_ranks, epochs_of(two_ranks), wanted)
    assert found is not None
    assert found.time_s == (None if time_s is None else pytest.approx(time_s))
    assert (found.epoch, found.best) == (epoch, 0.8)


def test_metrics_hold_them_all(two_ranks: AlignedRun) -> None:
    found = metrics(two_ranks, 0.8)
    assert found.epoch_s is not None
    assert found.epoch_s.evaluation == pytest.approx(0.110)
    assert found.time_to_accuracy is not None
    assert found.time_to_accuracy.time_s == pytest.approx(0.641)
    assert found.epoch_notes == []


def test_parts_add_up_to_the_nanosecond(make_run: Callable[..., AlignedRun]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        ranks, steps = int(rng.integers(1, 4)), 6
        edges = np.cumsum(rng.integers(1, 10**6, (ranks, steps + 1)), axis=1) / 1e3
        logs = []
        for own in edges:
            pauses = [
                span(str(rng.choice(["evaluation", "checkpoint"])), 0, begin, begin + rng.uniform(0, 500))
                for begin in rng.uniform(0, own[-1], 4)
            ]
            logs.append({"epochs": [mark(n, 2 * n, own[2 * n]) for n in range(3)], "spans": pauses, "end": end(10**6)})
        inputs = rng.uniform(0, 300, (ranks, steps)).tolist()
        kind = str(rng.choice(["run", "train"]))
        found = epochs_of(make_run(edges.tolist(), inputs, logs, kind=kind, command=["allpull", "run", "--", "a.py"]))
        assert len(found.complete) == 3
        for one in found.complete:
            assert sum(one.parts_ns.values()) == one.total_ns
            assert min(one.parts_ns.values()) >= 0
        assert sum(one.total_ns for one in found.complete) == found.complete[-1].end_ns - (found.begin_ns or 0)


def lone(epochs: Sequence[EpochMark], **kinds: Any) -> list[dict[str, Any]]:
    return [{"epochs": epochs, **kinds}]


def test_an_epoch_in_which_the_run_ended_is_left_out(make_run: Callable[..., AlignedRun]) -> None:
    run = make_run([[0, 100, 200, 300]], [[5, 0, 5]], lone([mark(0, 0, 0), mark(1, 2, 200)]))
    found = epochs_of(run)
    assert [one.number for one in found.complete] == [0]
    assert time_to_solution_s(found) is None
    assert any("epoch 1 is left out" in note for note in found.notes)
    assert any("no time to solution" in note for note in found.notes)


@pytest.mark.parametrize(("kept", "last_is_known"), [([0, 9, 11], True), ([0, 5, 9], False), ([4, 5], False)])
def test_epochs_are_as_long_as_marks_say_where_steps_were_not_kept(
    make_run: Callable[..., AlignedRun], kept: list[int], last_is_known: bool
) -> None:
    """Of four epochs of three steps some have no record; a budget thinned them, or a part of the run was observed."""
    edges = [100.0 * step for step in range(13)]
    marks = [mark(epoch, 3 * epoch, 300 * epoch) for epoch in range(4)]
    whole = make_run([edges], [[0.0] * 12], [{"epochs": marks, "end": End(kind="end", steps=12, t_ns=ns(1300))}])
    run = AlignedRun(replace(whole.data, steps=whole.data.steps.filter(pl.col("step").is_in(kept))))
    found = epochs_of(run)
    assert [one.number for one in found.complete] == list(range(4 if last_is_known else 3))
    assert [one.total_ns for one in found.complete] == [300_000_000] * len(found.complete)
    assert {(one.steps, one.samples) for one in found.complete} == {(3, None)}
    assert all(one.parts_ns["other"] == 0 for one in found.complete)
    assert found.ends_training is last_is_known
    assert ("epoch 3 is left out: its last steps were not recorded" in found.notes) is not last_is_known


def test_steps_before_the_first_epoch_that_were_not_recorded_are_of_none(make_run: Callable[..., AlignedRun]) -> None:
    edges = [100.0 * step for step in range(13)]
    marks = [mark(epoch, 4 + 4 * epoch, 400 + 400 * epoch) for epoch in range(2)]
    whole = make_run([edges], [[0.0] * 12], [{"epochs": marks, "end": End(kind="end", steps=12, t_ns=ns(1300))}])
    run = AlignedRun(replace(whole.data, steps=whole.data.steps.filter(pl.col("step") > 4)))
    assert [(one.number, one.steps) for one in epochs_of(run).complete] == [(0, 4), (1, 4)]


def test_a_last_epoch_with_fewer_steps_than_stated_is_left_out(make_run: Callable[..., AlignedRun]) -> None:
    stated = Metric(kind="metric", name="steps_per_epoch", value=2.0, step=0, epoch=0, t_ns=ns(0))
    run = make_run(
        [[0, 100, 200, 300]],
        [[5, 0, 5]],
        lone([mark(0, 0, 0), mark(1, 2, 200)], metrics=[stated], end=end(310)),
    )
    assert [one.number for one in epochs_of(run).complete] == [0]


def test_an_epoch_whose_last_batch_waits_for_the_next_epoch_is_complete(make_run: Callable[..., AlignedRun]) -> None:
    """Five batches of three epochs, accumulated by two: steps of 2, 3 and 2."""
    epochs = [mark(0, 0, 0), mark(1, 2, 200), mark(2, 5, 500)]
    run = make_run([[*range(0, 701, 100)]], [7 * [5]], lone(epochs, end=end(710)))
    assert [one.number for one in epochs_of(run).complete] == [0, 1]
    steps = run.data.steps.with_columns(pl.lit(2, pl.Int64()).alias("backward_passes"))
    accumulated = AlignedRun(replace(run.data, steps=steps))
    assert [one.number for one in epochs_of(accumulated).complete] == [0, 1, 2]


def test_a_run_resumed_within_an_epoch_has_no_time_to_solution(
    make_records: MakeRecords, make_data: MakeData, make_log: MakeLog
) -> None:
    records = make_records([[100.0]] * 3).with_columns(pl.col("step") + 5)
    stated = Metric(kind="metric", name="steps_per_epoch", value=2.0, step=0, epoch=0, t_ns=ns(0))
    log = make_log(epochs=(mark(2, 5, 0), mark(3, 6, 100)), metrics=(stated, top1(0.9, 300, 3)))
    data = make_data(records, 1, events={0: EventLog(**{**_fields(log), "end": end(300)})})
    run = AlignedRun(data)
    found = epochs_of(run)
    assert [(one.number, one.steps) for one in found.complete] == [(3, 2)]
    assert not found.has_first
    assert time_to_solution_s(found) is None
    reached = time_to_accuracy(run, found, 0.9)
    assert reached is not None
    assert (reached.epoch, reached.time_s) == (3, None)


def test_a_run_that_started_again_has_no_time_to_solution(make_run: Callable[..., AlignedRun]) -> None:
    again = Restarted(kind="restarted", attempt=1, steps_before=1, t_ns=ns(0))
    run = make_run([[0, 100, 200]], [[5, 0]], lone([mark(0, 0, 0)], restarted=[again], end=end(200)))
    assert time_to_solution_s(epochs_of(run)) is None


def test_one_epoch_is_its_own_mean_and_the_first(make_run: Callable[..., AlignedRun]) -> None:
    run = make_run([[0, 100, 200]], [[5, 0]], lone([mark(0, 0, 0)], end=end(200)))
    found = epoch_time(epochs_of(run))
    assert found is not None
    assert (found.epochs, found.total, found.interval) == (1, pytest.approx(0.2), None)
    assert found.first is not None


def test_an_evaluation_before_the_first_epoch_is_in_none(make_run: Callable[..., AlignedRun]) -> None:
    log = lone([mark(0, 0, 60)], spans=[span("evaluation", 0, 0, 50)], end=end(200))
    found = epochs_of(make_run([[0, 100, 200]], [[5, 0]], log))
    assert found.complete[0].parts_ns["evaluation"] == 0
    assert found.complete[0].total_ns == 140_000_000
    assert any("50 ms" in note for note in found.notes)


def test_epochs_of_unequal_length_have_a_mean_and_a_spread_without_the_first(
    make_run: Callable[..., AlignedRun],
) -> None:
    edges = [0, 300, 400, 520, 600]  # one step an epoch: 300, 100, 120 and 80 ms
    marks = [mark(number, number, edges[number]) for number in range(4)]
    found = epoch_time(epochs_of(make_run([edges], [[0] * 4], lone(marks, end=end(600)))))
    assert found is not None
    assert (found.total, found.shortest, found.longest) == pytest.approx((0.1, 0.08, 0.12))
    assert found.first is not None
    assert found.first.total == pytest.approx(0.3)
    # s = 20 ms, t(0.975, 2) = 4.3027 (any table), √3
    assert found.interval is not None
    assert found.interval.high == pytest.approx(0.1 + 4.3027 * 0.02 / 3**0.5, rel=1e-4)


def test_an_observed_epoch_begins_with_its_loader_and_not_with_its_mark(make_run: Callable[..., AlignedRun]) -> None:
    log = lone(
        [mark(0, 0, 40), mark(1, 1, 195)],
        spans=[span("evaluation", 1, 110, 150)],
        end=end(300),
    )
    command = ["allpull", "run", "--", "a.py"]
    found = epochs_of(make_run([[0, 100, 300]], [[30, 25]], log, kind="run", command=command))
    assert found.complete[0].total_ns == 150_000_000
    assert found.complete[1].begin_ns == ns(150)
    in_ms = {part: value / 1e6 for part, value in found.complete[1].parts_ns.items()}
    assert in_ms == {"training": 125, "evaluation": 0, "checkpoint": 0, "start": 25, "other": 0}


def test_what_a_program_prepares_before_the_first_batch_of_an_epoch_is_its_start(
    make_run: Callable[..., AlignedRun],
) -> None:
    """60 ms of preparation, 5 ms for the batch, 10 for its copy, forward 20; the mark is made in the backward pass."""
    log = lone([mark(0, 0, 35), mark(1, 2, 295)], end=end(460))
    command, edges = ["allpull", "run", "--", "a.py"], [0, 100, 200, 360, 460]
    found = epochs_of(make_run([edges], [[5] * 4], log, forward=20.0, kind="run", command=command))
    assert found.complete[0].parts_ns["start"] == 5_000_000  # the copy is part of each step
    in_ms = {part: value / 1e6 for part, value in found.complete[1].parts_ns.items()}
    assert in_ms == {"training": 195, "evaluation": 0, "checkpoint": 0, "start": 65, "other": 0}


@pytest.mark.parametrize(("spans", "evaluation"), [([], 0), ([span("evaluation", 2, 220, 230)], 10)])
def test_what_a_program_does_before_it_asks_its_loader_ends_the_epoch_before(
    make_run: Callable[..., AlignedRun], spans: list[Span], evaluation: float
) -> None:
    """60 ms of plots, maybe an evaluation among them, 40 ms for the loader to begin, and forward 20."""
    log = lone([mark(0, 0, 35), mark(1, 2, 325, asked=260 + evaluation)], end=end(600), spans=spans)
    command, edges = ["allpull", "run", "--", "a.py"], [0, 100, 200, 395 + evaluation, 495 + evaluation]
    inputs = [[5, 5, 40, 5]]
    found = epochs_of(make_run([edges], inputs, log, forward=20.0, kind="run", command=command))
    before, after = ({part: value / 1e6 for part, value in one.parts_ns.items()} for one in found.complete)
    assert before == {"training": 195, "evaluation": evaluation, "checkpoint": 0, "start": 5, "other": 60}
    assert after == {"training": 195, "evaluation": 0, "checkpoint": 0, "start": 40, "other": 0}


@pytest.mark.parametrize(("plots", "averaged"), [(60, 2), (0, 3)])
def test_the_last_epoch_is_in_no_mean_where_the_others_go_on_after_their_last_step(
    make_run: Callable[..., AlignedRun], plots: float, averaged: int
) -> None:
    edges, marks = [0.0], []
    for epoch in range(4):
        marks.append(
            mark(epoch, 2 * epoch, edges[-1] + plots * bool(epoch) + 50, asked=edges[-1] + plots * bool(epoch))
        )
        edges += [edges[-1] + plots * bool(epoch) + 100, edges[-1] + plots * bool(epoch) + 200]
    log = lone(marks, end=end(9000))
    command = ["allpull", "run", "--", "a.py"]
    found = epochs_of(make_run([edges], [[5] * 8], log, forward=20.0, kind="run", command=command))
    assert len(found.complete) == 4
    assert len(found.averaged) == averaged
    assert {one.total_ns for one in found.averaged} == {round((200 + plots) * 1e6)}


def test_a_program_without_epochs_says_so(make_run: Callable[..., AlignedRun]) -> None:
    found = metrics(make_run([[0, 100, 200]], [[5, 0]], [{}], kind="run", command=["allpull", "run", "--", "a.py"]))
    assert found.epoch_s is None
    assert found.time_to_solution_s is None
    assert len(found.epoch_notes) == 1
