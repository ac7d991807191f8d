"""What a forecast adds to its draws: how far published series are off on another day."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.predict.forecast import FASTER, SLOWER, interval, of_rate, of_seconds
from allpull.predict.table.series import PUBLISHED
from allpull.predict.table.series_errors import held_back, learned
from allpull.published.tables import read_tables


@pytest.mark.slow
def test_the_widths_of_another_day_are_those_that_published_series_teach() -> None:
    widths = learned(held_back(read_tables([PUBLISHED]).points, 2))
    floor, with_doublings, _ = widths.coefficients
    assert with_doublings == pytest.approx(0, abs=1e-6)  # else an interval has to widen with the distance as well
    assert (-widths.low * floor, widths.high * floor) == pytest.approx((SLOWER, FASTER), abs=5e-5)


def test_a_time_is_widened_as_the_rate_that_it_is_the_inverse_of() -> None:
    draws = np.random.default_rng(0).lognormal(sigma=0.05, size=2001)
    seconds, rate = of_seconds(draws), of_rate(1 / draws)
    assert seconds.low == pytest.approx(1 / rate.high)
    assert seconds.high == pytest.approx(1 / rate.low)
    assert seconds.low < interval(draws).low < interval(draws).high < seconds.high
