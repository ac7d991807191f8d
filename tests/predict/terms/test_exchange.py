"""Exposed exchange against a lane that is simulated bucket by bucket."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.predict.terms.algorithms import ring
from allpull.predict.terms.exchange import bucket_seconds, exposed, overlapped


def simulated(seconds: list[float], lead_s: list[float]) -> float:
    """When the lane is done, after the last gradient."""
    now = -np.inf
    for length, lead in zip(seconds, lead_s, strict=True):
        now = max(now, -lead) + length
    return max(now, 0.0)


def test_the_lane_is_the_simulated_one() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        buckets = int(rng.integers(1, 6))
        seconds = rng.uniform(0, 0.02, (3, buckets))
        lead_s = np.sort(rng.uniform(0, 0.05, (3, 4, buckets)), axis=2)[:, :, ::-1].copy()
        lead_s[:, :, -1] = 0
        expected = [
            np.mean([simulated(list(one), list(step)) for step in steps])
            for one, steps in zip(seconds, lead_s, strict=True)
        ]
        assert exposed(seconds, lead_s) == pytest.approx(expected)
        assert (overlapped(seconds, lead_s) >= 0).all()


def test_a_bucket_takes_its_hops_and_its_bytes() -> None:
    alpha, beta = np.array([1e-5]), np.array([1e-9])
    seconds = bucket_seconds(
        ring(4, 4), np.array([1e6, 4e6]), latency_s=(alpha, alpha), s_per_byte=(np.array([0.0]), beta)
    )
    assert seconds == pytest.approx(np.array([[6e-5 + 1.5e-3, 6e-5 + 6e-3]]))
