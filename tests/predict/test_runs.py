"""Forecasts from windows whose truth an event-driven simulation knows, and what must be refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest
from tests.replay.oracle import simulate
from tests.replay.windows import jitter, window

from allpull.analyse.aligned import AlignedRun
from allpull.errors import BadInput
from allpull.predict import runs
from allpull.predict.calibration import measured as measured_run
from allpull.predict.calibration.calibrated import Calibration, Probe, Stated
from allpull.predict.calibration.epochs import MeasuredEpochs
from allpull.predict.calibration.fit import calibrate
from allpull.predict.calibration.measured import CannotCalibrate, MeasuredRun, measured
from allpull.predict.calibration.step import step_terms
from allpull.predict.runs import Request
from allpull.replay.window import Window
from allpull.schema.base import tag
from allpull.schema.forecast import ForecastResult
from allpull.schema.probes import AllreduceAnswer, Repetitions

STEPS = 40
SIZES = (1_000_000, 25_000_000, 25_000_000, 8_000_000)
LEADS_S = (0.06, 0.04, 0.02, 0.0)
ALPHA_S, BYTES_PER_S = 200e-6, 1e9
FORWARD_S, BACKWARD_S = 0.03, 0.08


def all_reduce_s(ranks: int, size_bytes: float, rate: float = BYTES_PER_S) -> float:
    """A ring, message by message."""
    return sum(ALPHA_S + size_bytes / ranks / rate for _ in range(2 * (ranks - 1)))


def trained(ranks: int, *, rate: float = BYTES_PER_S, batch: float = 32.0, seed: int = 0, **more: object) -> Window:
    """A window of ``ranks`` hosts of one rank each."""
    noise = jitter(ranks, STEPS, sd_s=0.001, seed=seed + ranks)
    scale = batch / 32
    return window(
        ranks,
        STEPS,
        bucket_s=[all_reduce_s(ranks, size, rate) for size in SIZES] if ranks > 1 else [1e-9] * len(SIZES),
        lead_s=[one * scale for one in LEADS_S],
        sizes=SIZES,
        samples=batch,
        forward=FORWARD_S * scale + noise,
        backward=BACKWARD_S * scale,
        optimizer=0.002,
        **more,
    )


def run_of(one: Window, *, hosts: int | None = None, backend: str = "gloo") -> MeasuredRun:
    count = one.ranks if hosts is None else hosts
    host_of = np.arange(one.ranks) * count // one.ranks
    return measured(one, run=f"n{one.ranks}", backend=backend, host_of=host_of.astype(np.intp))


def forecast(calibration: Calibration, *ranks: int, **request: object) -> ForecastResult:
    return runs._result("program", calibration, (), Request(ranks=ranks, **request))


def truth_s(ranks: int) -> float:
    """The mean step of an independent simulation."""
    return float(simulate(trained(ranks, seed=100))[-1].max()) / STEPS


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate([run_of(trained(1)), run_of(trained(2))])


def probe() -> Probe:
    times = {size: [all_reduce_s(2, size)] * 20 for size in (1024, 65_536, 1 << 20, 1 << 24)}
    answer = AllreduceAnswer(
        schema=tag("allreduce"),
        ranks=2,
        backend="gloo",
        device="cpu",
        results=[Repetitions(size_bytes=size, times_s=some) for size, some in times.items()],
    )
    return Probe(run="probe", answer=answer, hosts=2)


@pytest.fixture(scope="module")
def probed() -> Calibration:
    return calibrate([run_of(trained(1)), run_of(trained(2))], [probe()])


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_larger_sizes_are_those_of_the_simulation(calibration: Calibration, probed: Calibration, ranks: int) -> None:
    size = forecast(probed, ranks).predictions[0]
    assert size.step_s.value == pytest.approx(truth_s(ranks), rel=0.03)
    assert size.step_s.includes(truth_s(ranks))
    assert forecast(calibration, ranks).predictions[0].step_s.includes(truth_s(ranks))
    assert sum(size.terms.values()) == pytest.approx(size.step_s.value)
    assert size.throughput.value == pytest.approx(32 * ranks / size.step_s.value, rel=1e-6)
    assert size.efficiency.value == pytest.approx(size.speedup.value / ranks)


def test_intervals_widen_with_distance_and_sizes_stay_in_order(calibration: Calibration) -> None:
    sizes = forecast(calibration, 4, 32, 512, 16_384).predictions
    widths = [(one.step_s.high - one.step_s.low) / one.step_s.value for one in sizes]
    assert widths == sorted(widths)
    assert [one.step_s.value for one in sizes] == sorted(one.step_s.value for one in sizes)
    assert sizes[-1].extrapolation == 8192


def test_links_are_found_and_a_probe_narrows_the_latency(calibration: Calibration, probed: Calibration) -> None:
    assert 1 / np.median(probed.parameters["network time per byte"]) == pytest.approx(BYTES_PER_S, rel=0.02)
    assert np.median(probed.parameters["network latency"]) == pytest.approx(ALPHA_S, rel=0.05)
    widths = [
        np.subtract(*np.quantile(one.parameters["network latency"], [0.95, 0.05])) for one in (calibration, probed)
    ]
    assert widths[1] < widths[0] / 5
    assert probed.parameters.by_name["network latency"].state == "measured"
    assert calibration.parameters.by_name["network latency"].state == "weakly identified"


def test_the_next_measurement_is_the_probe_of_the_latency(calibration: Calibration) -> None:
    measurement = forecast(calibration, 1024).next_measurement
    assert measurement is not None
    assert measurement.parameter == "network latency"
    assert measurement.command.startswith("allpull probe allreduce")


def test_a_stated_link_replaces_nothing_but_what_is_between_hosts() -> None:
    one = run_of(trained(1))
    alone = forecast(calibrate([one]), 4, ranks_per_host=1)
    assert alone.refused is not None
    one_host = run_of(trained(2), hosts=1)
    refused = forecast(calibrate([one_host]), 8, 2, ranks_per_host=2)
    assert [size.ranks for size in refused.refused_sizes] == [8]
    assert [size.ranks for size in refused.predictions] == [2]
    stated = forecast(
        calibrate([one_host], stated=Stated(link_bytes_per_s=BYTES_PER_S / 0.93, latency_s=ALPHA_S)),
        8,
        ranks_per_host=1,
    )
    step_s = stated.predictions[0].step_s
    assert step_s.includes(truth_s(8))
    assert any(one.source == "stated" and one.state == "assumed" for one in stated.parameters)


def test_a_stated_latency_leaves_the_step_that_was_measured(calibration: Calibration) -> None:
    stated = calibrate([run_of(trained(1)), run_of(trained(2))], stated=Stated(latency_s=8e-4))
    same = forecast(stated, 2).predictions[0].step_s.value
    assert same == pytest.approx(forecast(calibration, 2).predictions[0].step_s.value, rel=0.015)
    assert forecast(stated, 16).predictions[0].step_s.value > forecast(calibration, 16).predictions[0].step_s.value


def test_hops_that_were_not_measured_are_scaled_by_the_table_of_nccl() -> None:
    one_host = calibrate([run_of(trained(2), hosts=1, backend="nccl")], stated=Stated(link_bytes_per_s=BYTES_PER_S))
    between = one_host.parameters.by_name["network latency"]
    ratio = one_host.parameters["local latency"] / between.draws
    assert between.state == "assumed"
    assert "tuning.cc" in between.source
    assert 0.2 < np.median(ratio) < 0.65
    several = calibrate([run_of(trained(2), backend="nccl")])
    ratio = several.parameters["local latency"] / several.parameters["network latency"]
    assert 0.2 < ratio.min() < ratio.max() < 0.65


def test_ranks_that_share_a_host_compute_as_long_as_they_were_measured_to() -> None:
    roomy = run_of(trained(2), hosts=1)
    longer_s = 0.5 * roomy.work_s
    crowded = replace(roomy, work_s=roomy.work_s + longer_s, walls_s=roomy.walls_s + longer_s.max(axis=1))
    fit = calibrate([run_of(trained(1)), crowded])
    job = replace(fit.job, ranks=1, hosts=1)
    alone, together = (float(np.median(step_terms(one, fit)["compute"])) for one in (job, fit.job))
    assert together == pytest.approx(1.5 * alone, rel=0.02)
    assert alone == pytest.approx(FORWARD_S + BACKWARD_S + 0.002, rel=0.02)
    result = runs._result("program", fit, (), Request(ranks=(8,), ranks_per_host=8))
    assert any("8 ranks per host" in note for note in result.notes)


def test_algorithms_that_the_data_cannot_tell_apart_are_bracketed() -> None:
    calibration = calibrate([run_of(trained(2), backend="nccl")])
    assert set(calibration.algorithms) == {"ring", "tree", "two-level"}
    wide, narrow = (
        forecast(calibrate([run_of(trained(2), backend=name)]), 16).predictions[0].step_s for name in ("nccl", "gloo")
    )
    assert wide.high - wide.low > narrow.high - narrow.low
    both = calibrate([run_of(trained(2), backend="nccl"), run_of(trained(8), backend="nccl")])
    assert "tree" not in both.algorithms  # a tree's bytes would not have grown from 2 ranks to 8


def test_batches_are_a_line_or_refused() -> None:
    one = calibrate([run_of(trained(2, batch=32))])
    assert "how compute grows" in (forecast(one, 4, batch=64.0).refused or "")
    two = calibrate([run_of(trained(1, batch=16)), run_of(trained(1, batch=64)), run_of(trained(2, batch=32))])
    size = forecast(two, 4, batch=64.0).predictions[0]
    simulated = float(simulate(trained(4, batch=64, seed=100))[-1].max()) / STEPS
    assert size.step_s.value == pytest.approx(simulated, rel=0.03)
    strong = forecast(two, 2, 4, global_batch=128.0).predictions
    assert [one.batch for one in strong] == [64, 32]


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(CannotCalibrate, match="too few"):
        run_of(window(2, 10))
    uneven = np.tile([32.0, 16.0], (STEPS, 1))
    with pytest.raises(CannotCalibrate, match="16 to 32 samples"):
        run_of(window(2, STEPS, samples=uneven))
    with pytest.raises(CannotCalibrate, match="saw no reduction"):
        calibrate([run_of(window(2, STEPS, reduces=False))])
    slow = [run_of(trained(1, batch=16)), run_of(window(1, STEPS, samples=64.0, forward=0.001, backward=0.001))]
    with pytest.raises(CannotCalibrate, match="took less time"):
        calibrate(slow)


def test_the_smaller_batch_at_the_end_of_an_epoch_is_left_out() -> None:
    samples = np.full((STEPS, 2), 32.0)
    samples[9::10] = 7.0
    run = run_of(window(2, STEPS, samples=samples))
    assert (run.batch, run.steps) == (32.0, STEPS - STEPS // 10)


def test_compute_that_grew_with_the_ranks_of_a_host_may_grow_on() -> None:
    """A rank more on a host adds 6 ms; three show that, and nothing shows that it ends there, or goes on."""

    def on_one_host(ranks: int) -> Window:
        return trained(ranks, other=0.006 * (ranks - 1))

    fit = calibrate([run_of(on_one_host(ranks), hosts=1) for ranks in (1, 2, 3)])
    answer = forecast(fit, 6, hosts=(1,))
    size, (grown,) = answer.predictions[0], [one for one in answer.parameters if one.name == "growth of compute"]
    work_s = FORWARD_S + BACKWARD_S + 0.002
    assert grown.value.high == pytest.approx(0.95 * 0.006 / (work_s + 0.012), rel=0.05)
    assert size.step_s.includes(size.step_s.value + 0.8 * 0.5 * 3 * 0.006)
    assert size.step_s.includes(size.step_s.value - 0.8 * 0.5 * 3 * 0.006)
    assert answer.next_measurement is not None
    assert answer.next_measurement.command == "the same training with 6 ranks on a host"
    inside = forecast(fit, 3, hosts=(1,))
    assert "growth of compute" not in [one.name for one in inside.parameters]
    assert inside.predictions[0].terms["compute"] == pytest.approx(work_s + 0.012, rel=0.02)


def test_no_measurement_is_advised_of_a_link_that_the_forecast_does_not_use(calibration: Calibration) -> None:
    advised = forecast(calibration, 4, 64).next_measurement
    assert advised is None or not advised.parameter.startswith("local")


def test_requests_that_contradict_themselves_are_bad_input() -> None:
    for request in (
        Request(ranks=()),
        Request(ranks=(0,)),
        Request(ranks=(8,), hosts=(1, 2)),
        Request(ranks=(8,), hosts=(16,)),
        Request(ranks=(8,), hosts=(1,), ranks_per_host=2),
        Request(ranks=(8,), batch=1.0, global_batch=8.0),
        Request(ranks=(8,), batch=0.0),
        Request(ranks=(8,), calibrate=0),
    ):
        with pytest.raises(BadInput):
            runs._check(request)


def loaded(ranks: int, input_s: float) -> Window:
    """Ranks whose loader needs ``input_s`` for a batch, and works ahead meanwhile."""
    busy_s = float(np.diff(simulate(trained(ranks))[-2:].max(axis=1))[0])
    return trained(ranks, input=max(input_s - busy_s, 0.0))


def test_a_loader_that_limits_a_step_hides_behind_the_exchange_of_more_ranks() -> None:
    input_s = 0.4
    calibration = calibrate([replace(run_of(loaded(2, input_s)), workers=1)])
    for ranks in (2, 4, 16):
        size = forecast(calibration, ranks).predictions[0]
        assert size.step_s.value == pytest.approx(max(input_s, truth_s(ranks)), rel=0.03)
        assert sum(size.terms.values()) == pytest.approx(size.step_s.value)
    job = replace(calibration.job, ranks=2, hosts=2, workers=4)
    assert np.median(step_terms(job, calibration)["input"]) == pytest.approx(0.0, abs=1e-3)


def test_a_few_batches_that_take_long_on_one_rank_after_the_other_make_more_ranks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One batch in twenty takes half a second, on each rank in other steps: of more ranks more steps wait for one."""
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 200)  # a tail of ten batches
    long = np.where(np.arange(STEPS)[:, None] % 20 == (3, 11), 0.5, 0.0)
    run = run_of(trained(2, input=long))
    assert run.waits_in_turn
    assert not run.waits_for_input
    two, four = forecast(calibrate([run]), 2, 4).predictions
    assert two.step_s.value == pytest.approx(truth_s(2) + 0.05, rel=0.1)
    assert four.step_s.low is not None
    assert four.step_s.high is not None
    truth = truth_s(4) + 0.5 * (1 - 0.95**4)
    assert max(four.step_s.low, 1.1 * two.step_s.value) < truth < four.step_s.high
    many = np.where(np.arange(STEPS)[:, None] % 20 == np.arange(16) % 20, 0.5, 0.0)  # some rank waits in most steps
    assert run_of(trained(16, input=many)).waits_in_turn
    together = run_of(trained(2, input=np.where(np.arange(STEPS)[:, None] % 20 == (3, 3), 0.5, 0.0)))
    assert together.waits_for_input


def test_16384_ranks_take_less_than_a_loop_over_ranks_would(calibration: Calibration) -> None:
    """Nothing loops over ranks: as many calls of functions for 16,384 ranks as for 16."""
    counts = []
    for ranks in (16, 16_384):
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            forecast(calibration, ranks)
        finally:
            sys.setprofile(None)
        counts.append(calls)
    assert counts[1] < 2 * counts[0]


def test_a_stated_link_is_no_error_of_the_model_on_what_was_measured_without_it() -> None:
    fits = [calibrate([run_of(trained(2))], stated=one) for one in (None, Stated(link_bytes_per_s=BYTES_PER_S * 20))]
    assert fits[0].error == fits[1].error < 0.02
    assert any("stated" in note for note in fits[1].notes)


def test_a_rank_that_is_late_in_backward_has_its_first_buckets_on_their_way() -> None:
    late_s = np.array([0.0, 0.05])
    slow = window(
        2,
        STEPS,
        bucket_s=[all_reduce_s(2, size) for size in SIZES],
        lead_s=np.array(LEADS_S)[:, None] + np.where(np.array(LEADS_S)[:, None] > 0, late_s, 0.0),
        sizes=SIZES,
        samples=32.0,
        forward=FORWARD_S + jitter(2, STEPS, sd_s=0.001),
        backward=BACKWARD_S + late_s,
        optimizer=0.002,
    )
    measured_s = float(simulate(slow)[-1].max()) / STEPS
    calibration = calibrate([run_of(slow)])
    assert forecast(calibration, 2).predictions[0].step_s.value == pytest.approx(measured_s, rel=0.01)
    assert calibration.error < 0.01


def test_several_batches_need_the_batch_of_the_forecast_and_sizes_can_be_held_back() -> None:
    two = [run_of(trained(1, batch=16)), run_of(trained(2, batch=32))]
    with pytest.raises(CannotCalibrate, match="16, 32 samples per rank"):
        runs._one_batch(two, Request(ranks=(4,)))
    assert runs._one_batch(two, Request(ranks=(4,), batch=32)) == two
    used, held_back = runs._split(two, 1)
    assert ([run.ranks for run in used], [run.ranks for run in held_back]) == ([1], [2])


def test_what_ranks_load_themselves_is_hidden_by_nothing() -> None:
    """Without workers a step is as much longer as a batch takes, however long the exchange is."""
    two = replace(run_of(trained(2, input=0.030)), loads_itself=True)
    assert not two.waits_for_input
    (eight,) = forecast(calibrate([two]), 8).predictions
    (alone,) = forecast(calibrate([run_of(trained(2))]), 8).predictions
    assert eight.step_s.value - alone.step_s.value == pytest.approx(0.030, rel=0.05)
    assert eight.terms["input"] == pytest.approx(0.030, rel=0.05)


@pytest.mark.parametrize(("started", "loads_itself"), [(1, True), (3, False), (None, False)])
def test_ranks_without_other_processes_load_themselves(started: int | None, loads_itself: bool) -> None:
    counted = pl.DataFrame({"processes": [started]}, schema={"processes": pl.Int64()})
    data = SimpleNamespace(
        record=SimpleNamespace(kind="run"), counters=counted, events={0: SimpleNamespace(loaders=())}
    )
    assert measured_run._loads_itself(cast(AlignedRun, SimpleNamespace(data=data))) is loads_itself


@pytest.mark.parametrize(("samples", "whole", "steps"), [((1920, 3840), True, 60), ((3840, 3840), False, 30)])
def test_ranks_that_each_pass_over_all_data_make_as_many_steps(
    samples: tuple[int, int], *, whole: bool, steps: int
) -> None:
    """Runs of two sizes tell it: without a sampler an epoch has the data set once for each rank."""
    epochs = [
        MeasuredEpochs(ranks=ranks, samples=of_epoch, parts_s={}, by_rank_s={})
        for ranks, of_epoch in zip((1, 2), samples, strict=True)
    ]
    made = calibrate([replace(run_of(trained(one.ranks)), epochs=one) for one in epochs])
    assert made.steps_are_equal is whole
    (four,) = forecast(made, 4).predictions
    assert four.epoch is not None
    assert four.epoch.steps == steps
    assert any("each rank passes over all of the data" in note for note in forecast(made, 4).notes) is whole


@pytest.mark.parametrize("samples", [(1920, 3840), (3840, 3840)], ids=["as many steps", "as many samples"])
def test_epochs_that_end_with_the_program_may_be_cut_short(samples: tuple[int, int]) -> None:
    epochs = [
        MeasuredEpochs(ranks=ranks, samples=of_epoch, parts_s={}, by_rank_s={}, are_whole=False)
        for ranks, of_epoch in zip((1, 2), samples, strict=True)
    ]
    made = forecast(calibrate([replace(run_of(trained(one.ranks)), epochs=one) for one in epochs]), 4)
    (four,) = made.predictions
    assert (four.epoch is None) is (samples[0] < samples[1])
    assert any("left its loader early" in note for note in made.notes)
