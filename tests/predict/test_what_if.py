"""What-ifs hold against a simulation of the changed job; what cannot be changed is refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.predict.test_runs import BACKWARD_S, BYTES_PER_S, FORWARD_S, STEPS, loaded, probe, run_of, trained
from tests.replay.oracle import simulate

from allpull.errors import BadInput, UnknownName
from allpull.predict import forecast as forecasts
from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.fit import calibrate
from allpull.predict.terms.periodic import Periodic
from allpull.predict.what_if import KEYS, parsed, rebucketed, waterfall, what_if
from allpull.schema.forecast import WhatIf


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate([run_of(trained(1)), run_of(trained(2))], [probe()])


def base(calibration: Calibration, ranks: int = 8) -> forecasts.Forecast:
    job = calibration.job
    changed = type(job)(ranks=ranks, hosts=ranks, batch=job.batch, bucket_bytes=job.bucket_bytes)
    return forecasts.forecast(changed, calibration)


def after(text: str, calibration: Calibration, ranks: int = 8) -> WhatIf:
    return what_if(parsed(text), base(calibration, ranks), calibration)


def test_a_waterfall_closes_from_one_step_to_the_other(calibration: Calibration) -> None:
    before = forecasts.interval(base(calibration).step_s).value
    for text in ("link=x4", "latency=1us", "bucket=4MiB", "compress=fp16", "overlap=perfect", "device=x2"):
        changed = after(text, calibration)
        assert sum(changed.change_s.values()) == pytest.approx(changed.step_s.value - before, abs=1e-9), text
        assert changed.change == text


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_link_is_that_of_a_simulation_with_it(calibration: Calibration, factor: float) -> None:
    truth_s = float(simulate(trained(8, rate=BYTES_PER_S * factor, seed=100))[-1].max()) / STEPS
    assert after(f"link=x{factor}", calibration).step_s.value == pytest.approx(truth_s, rel=0.03)


def test_gradients_of_half_the_bytes_are_a_link_of_twice_the_rate(calibration: Calibration) -> None:
    half, twice = after("compress=fp16", calibration), after("link=x2", calibration)
    assert half.step_s.value == pytest.approx(twice.step_s.value, rel=1e-6)


def test_a_slow_rank_is_removed_from_a_run_that_had_one() -> None:
    slow = np.array([0.0, 0.0, 0.05, 0.0])
    four = [run_of(trained(4, seed=5) if not late else _with_slow(slow)) for late in (False, True)]
    healthy, ill = (calibrate([one], [probe()]) for one in four)
    repaired = after("slow-rank=removed", ill)
    assert repaired.change_s["lateness"] + repaired.change_s["compute"] == pytest.approx(-0.05, rel=0.1)
    assert repaired.step_s.value == pytest.approx(forecasts.interval(base(healthy).step_s).value, rel=0.03)
    with pytest.raises(BadInput, match="no rank"):
        after("slow-rank=removed", healthy)


def _with_slow(slow: np.ndarray) -> object:
    from dataclasses import replace  # noqa: PLC0415

    one = trained(4, seed=5)
    work = dict(one.work)
    work["forward"] = np.where(work["forward"] > FORWARD_S / 2, work["forward"] + slow, work["forward"])
    return replace(one, work=work)


def test_perfect_overlap_leaves_the_longer_of_work_and_exchange(calibration: Calibration) -> None:
    perfect = after("overlap=perfect", calibration)
    baseline = {one.name: one.step_s for one in forecasts.baselines(base(calibration), calibration)}
    assert perfect.step_s.value < forecasts.interval(base(calibration).step_s).value
    assert perfect.step_s.value >= baseline["perfect overlap"] * 0.97


def test_new_buckets_hold_the_same_bytes_ready_in_the_same_order() -> None:
    sizes, lead_s = rebucketed(np.array([2e6, 4e6, 4e6]), np.array([[[0.08, 0.04, 0.0]]]), 2e6)
    assert sizes.tolist() == [2e6] * 5
    assert lead_s[0, 0] == pytest.approx([0.08, 0.06, 0.04, 0.02, 0.0])
    same, leads = rebucketed(np.array([2e6, 2e6]), np.array([[[0.05, 0.0]]]), 2e6)
    assert same.tolist() == [2e6, 2e6]
    assert leads[0, 0] == pytest.approx([0.05, 0.0])


def test_neutral_changes_change_nothing(calibration: Calibration) -> None:
    before = forecasts.interval(base(calibration).step_s).value
    for text in ("link=x1", "latency=x1", "device=1", "compress=x1", "hosts=8", "ranks-per-host=1", "accumulation=1"):
        assert after(text, calibration).step_s.value == pytest.approx(before, rel=1e-9), text


def test_a_faster_link_never_costs_time(calibration: Calibration) -> None:
    steps = [after(f"link=x{factor}", calibration, 64).step_s.value for factor in (0.5, 1, 2, 8, 1000)]
    assert steps == sorted(steps, reverse=True)


def test_accumulation_computes_more_per_exchange(calibration: Calibration) -> None:
    more = after("accumulation=4", calibration)
    assert more.throughput.value > 8 * 32 / forecasts.interval(base(calibration).step_s).value
    assert more.change_s["exchange"] == pytest.approx(0.0, abs=1e-3)
    assert more.change_s["compute"] == pytest.approx(3 * (FORWARD_S + BACKWARD_S), rel=0.02)  # one optimizer step


def test_changes_in_one_option_are_made_together(calibration: Calibration) -> None:
    together = after("link=x1000,latency=0", calibration)
    assert together.step_s.value < after("link=x1000", calibration).step_s.value
    assert len(waterfall(["link=x2", "device=x2"], [base(calibration)], calibration)) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("link", "not KEY=VALUE"),
        ("link=", "not KEY=VALUE"),
        ("link=fast", "a factor"),
        ("link=x0", "a factor"),
        ("link=x2,link=x3", "twice"),
        ("latency=-1us", "not negative"),
        ("latency=5 parsecs", "a time such as"),
        ("hosts=0", "whole number"),
        ("hosts=9", "more than 8 ranks"),
        ("batch=64", "samples per rank"),
        ("bucket=many", "a size"),
        ("bucket=1", "10,000 buckets"),
        ("compress=x0.5", "larger"),
        ("algorithm=magic", "one of"),
        ("overlap=none", "one of"),
        ("slow-rank=removed", "no rank"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(calibration: Calibration, text: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        after(text, calibration)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'latency'"):
        parsed("latncy=1us")


@pytest.mark.parametrize("text", ["link=x2", "bucket=1MiB", "compress=fp16", "overlap=perfect", "algorithm=ring"])
def test_one_rank_exchanges_nothing_that_could_change(calibration: Calibration, text: str) -> None:
    with pytest.raises(BadInput, match=r"one rank|one host"):
        after(text, calibration, ranks=1)


def test_every_key_says_what_it_takes() -> None:
    assert all(key.form and key.meaning for key in KEYS.values())


def test_an_evaluation_on_all_ranks_and_more_workers_change_what_they_name(calibration: Calibration) -> None:
    seconds = np.full(calibration.algorithm.size, 1.5)
    evaluated = replace(
        calibration,
        job=replace(calibration.job, samples_per_epoch=32 * 24),
        events={"evaluation": Periodic(seconds=seconds, ranks=2, division="serial")},
    )
    four = forecasts.forecast(replace(evaluated.job, ranks=4, hosts=4), evaluated)
    serial, parallel = (what_if(parsed(f"evaluation={how}"), four, evaluated).epoch for how in ("serial", "parallel"))
    assert serial is not None
    assert parallel is not None
    assert serial.steps == parallel.steps == 6
    assert serial.seconds.value - parallel.seconds.value == pytest.approx(1.5 - 1.5 / 4)
    for key in ("evaluation=parallel", "workers=2"):
        with pytest.raises(BadInput, match=r"no run has a complete epoch|hardly waits"):
            after(key, calibration)
    limited = calibrate([replace(run_of(loaded(2, 0.4)), workers=1)])
    four = forecasts.forecast(replace(limited.job, ranks=2, hosts=2), limited)
    faster = what_if(parsed("workers=4"), four, limited)
    assert faster.change_s["input"] == pytest.approx(-forecasts.terms_of(four.terms)["input"], rel=0.05)
