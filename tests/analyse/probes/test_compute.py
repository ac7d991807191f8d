"""Lines over batch sizes against planted ones, with and without a floor; the record of the probe in rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.analyse.probes.compute import computed, fit
from allpull.schema.base import tag
from allpull.schema.probes import ComputeAnswer

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def planted(fixed_s: float, per_sample_s: float, floor_s: float = 0.0) -> dict[int, list[float]]:
    return {batch: [max(floor_s, fixed_s + per_sample_s * batch)] * 5 for batch in BATCHES}


@settings(max_examples=50)
@given(st.floats(1e-5, 1.0), st.floats(1e-6, 0.1))
def test_a_line_without_a_floor_is_found_again(fixed_s, per_sample_s):
    line, worst = fit(planted(fixed_s, per_sample_s))
    assert worst < 0.06  # where a sample costs next to nothing, small batches may as well lie on a floor
    if line.floor_s is None:
        assert line.fixed_s == pytest.approx(fixed_s, rel=1e-6, abs=1e-6 * per_sample_s)
        assert line.per_sample_s == pytest.approx(per_sample_s, rel=1e-6)


@settings(max_examples=50)
@given(st.floats(0.0, 0.5), st.floats(1e-5, 1e-2), st.floats(3.0, 40.0))
def test_a_floor_and_its_knee_are_found_again(share, per_sample_s, knee):
    """The floor is (fixed + per_sample · knee); below the knee, times are the same."""
    fixed_s = share * per_sample_s * knee
    line, worst = fit(planted(fixed_s, per_sample_s, floor_s=fixed_s + per_sample_s * knee))
    assert worst < 1e-6
    assert line.knee == pytest.approx(knee, rel=1e-4)
    assert line.floor_s == pytest.approx(fixed_s + per_sample_s * knee)


def test_times_scale_with_their_unit_and_the_knee_does_not():
    seconds, _ = fit(planted(1e-3, 1e-4, 3e-3))
    hours, _ = fit({batch: [3600 * one for one in times] for batch, times in planted(1e-3, 1e-4, 3e-3).items()})
    assert hours.knee == pytest.approx(seconds.knee) == pytest.approx(20.0)
    assert hours.fixed_s == pytest.approx(3600 * seconds.fixed_s)


def test_times_that_do_not_grow_have_no_slope():
    """What an optimizer takes depends on the model alone."""
    line, worst = fit({1: [2.0], 2: [2.0], 4: [1.98]})
    assert (line.per_sample_s, line.floor_s) == (0.0, None)
    assert line.fixed_s == pytest.approx(1.9933, abs=1e-3)
    assert worst < 0.01


def test_one_batch_has_no_line_and_neither_have_times_of_nothing():
    assert fit({4: [1.0]}) is None
    assert fit({1: [0.0], 2: [1.0]}) is None


def test_a_fixed_part_is_never_below_zero():
    line, _ = fit({1: [1.0], 2: [2.2], 4: [4.6], 8: [9.0]})
    assert (line.fixed_s, line.floor_s) == (0.0, None)
    assert 1.0 < line.per_sample_s < 1.2


def answer(times_s: dict[int, list[float]]) -> ComputeAnswer:
    points = [
        {
            "batch": batch, "precision": "fp32", "threads": 2, "step_s": times, "forward_s": [one / 4 for one in times],
            "backward_s": [one / 2 for one in times], "optimizer_s": [1e-3] * len(times), "issue_s": None,
        }
        for batch, times in times_s.items()
    ]  # fmt: skip
    bucket = {"batch": 2, "precision": "fp32", "threads": 2, "backward_s": [1.0, 3.0, 2.0]}
    return ComputeAnswer.model_validate({
        "schema": tag("compute"), "model": "m", "device": "cpu", "channels": 3, "classes": 10, "size": 8,
        "parameters": 5, "flop_per_sample": 1e6, "matmul_flop_per_s": {"fp32": 1e9}, "bucket_bytes": 1,
        "noise": [{"median_s": 1e-4, "p95_over_fastest": 1.1, "load_1min": None}], "points": points,
        "buckets": [{**bucket, "buckets": [{"size_bytes": 8, "ready_s": [0.5, 0.6, 0.4]}]}], "left_out": [],
    })  # fmt: skip


def test_rates_and_shares_are_those_of_the_medians():
    result = computed(answer({1: [0.01, 0.02, 0.9], 2: [0.03, 0.04, 0.05]}), "r")
    one = result.points[0]
    assert (one.step_s.median, one.step_s.count, one.samples_per_s) == (0.02, 3, 50.0)
    assert (one.flop_per_s, one.peak_share) == (5e7, 0.05)
    assert result.buckets[0].buckets[0].ready_share == 0.25
    assert [one.part for one in result.fits] == ["step", "forward", "backward", "optimizer"]


@pytest.mark.slow
def test_intervals_cover_the_planted_line_under_noise():
    rng, hits, knees = np.random.default_rng(2), 0, 0
    for _ in range(15):
        times = {
            batch: (one[0] * rng.lognormal(0, 0.03, 25)).tolist()
            for batch, one in planted(2e-3, 2e-4, floor_s=4e-3).items()
        }
        (found,) = [one for one in computed(answer(times), "r").fits if one.part == "step"]
        low, high = found.per_sample_s.low, found.per_sample_s.high
        hits += low <= 2e-4 <= high
        knees += found.knee is not None and found.knee.low <= 10.0 <= found.knee.high
    assert hits >= 13
    assert knees >= 12
