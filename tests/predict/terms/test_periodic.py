"""Facts: Amdahl's law of a serial evaluation, a sharded one, and an epoch that is the sum of its terms."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.predict.terms import periodic
from allpull.predict.terms.periodic import Floats, Periodic

DRAWS = 100


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def event(by_rank_s: list[list[float]]) -> Periodic:
    seconds = np.array(by_rank_s)
    division, is_certain = periodic.division(seconds)
    longest = periodic.resampled_mean(seconds.max(axis=1), DRAWS, rng())
    return Periodic(seconds=longest, ranks=seconds.shape[1], division=division, is_certain=is_certain)


def total(terms: dict[str, Floats]) -> float:
    return float(np.median(sum(terms.values())))


def test_a_serial_evaluation_limits_an_epoch_as_amdahl_has_it() -> None:
    serial = event([[10.0, 0.0], [10.2, 0.1]])
    assert serial.division == "serial"
    step = {"compute": np.full(DRAWS, 0.1)}
    times = [total(periodic.epoch(step, 6400 // ranks, {"evaluation": serial}, ranks)) for ranks in (1, 64, 6400)]
    amdahl = 1 / (10.1 / 650.1 + 640 / 650.1 / 64)
    assert times[0] / times[1] == pytest.approx(amdahl, rel=0.01)
    assert times[0] / times[2] < 650.1 / 10.1


def test_a_sharded_evaluation_is_shared_by_more_ranks() -> None:
    sharded = event([[5.0, 4.9], [5.1, 5.0]])
    assert sharded.division == "sharded"
    assert np.median(sharded.on(16)) == pytest.approx(5.05 / 8, rel=0.02)


def test_dividing_the_work_and_back_changes_nothing() -> None:
    serial = event([[8.0, 0.0, 0.0, 0.0]])
    assert serial.divided("sharded").on(4) == pytest.approx(serial.seconds / 4)
    assert serial.divided("sharded").divided("serial").on(64) == pytest.approx(serial.seconds)


def test_on_one_rank_division_cannot_be_seen() -> None:
    alone = event([[3.0], [3.1]])
    assert (alone.division, alone.is_certain) == ("serial", False)


def test_what_never_happens_takes_no_time() -> None:
    step = {"compute": np.full(DRAWS, 0.1)}
    assert total(periodic.epoch(step, 10, {}, 4)) == pytest.approx(1.0)


def test_few_events_have_some_spread_and_many_their_own() -> None:
    one = periodic.resampled_mean(np.array([2.0]), 4000, rng())
    assert one.std() / 2 == pytest.approx(periodic.LEAST_SPREAD, rel=0.1)
    many = periodic.resampled_mean(rng().exponential(1.0, 25), 4000, rng())
    assert many.std() == pytest.approx(0.2, rel=0.4)
