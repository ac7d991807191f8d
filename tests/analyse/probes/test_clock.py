"""Clocks of two hosts against planted offsets, on fast networks and slow ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse.probes.clock import PAUSE_NS, bursts, compare, pinged
from allpull.observe.clock_pings import BURST_S, PINGS
from allpull.schema.base import tag
from allpull.schema.probes import ClockAnswer, Pings

PAUSE_S = 0.2
MS = 10**6


def pings(offset_ns, drift, seconds, *, seed=0, way_ns=20_000):
    """Pings of a clock that is ``offset_ns`` ahead at the start and runs ``1 + drift`` times as fast.

    As the probe sends them: a burst is 100, or as many as fit into a second; then it pauses.
    """
    rng = np.random.default_rng(seed)
    rows, now = [], 10**18

    def theirs(at: int) -> int:
        return at + offset_ns + round(drift * (at - 10**18))

    while now < 10**18 + seconds * 10**9:
        end = now + BURST_S * 10**9
        for _ in range(PINGS):
            if now >= end:
                break
            there, back = (int(way_ns + rng.exponential(30_000)) for _ in range(2))
            received = theirs(now + there)
            answered = theirs(now + there + 5_000)
            rows.append([now, received, answered, now + there + 5_000 + back])
            now += there + back + 5_000
        now += round(PAUSE_S * 10**9)
    return rows


@given(offset_ns=st.integers(-(10**10), 10**10), drift=st.floats(-2e-4, 2e-4), seed=st.integers(0, 1000))
def test_a_planted_offset_and_drift_are_found_within_their_own_bounds(offset_ns, drift, seed):
    rows = pings(offset_ns, drift, 4, seed=seed)
    found = compare(rows)
    truth_s = (offset_ns + drift * (rows[-1][0] - 10**18)) / 1e9
    assert abs(found.offset_s - truth_s) <= found.offset_bound_s + 1e-5  # the last burst is 10 ms long at 2e-4
    assert found.drift is not None
    assert found.drift_bound is not None
    assert abs(found.drift - drift) <= found.drift_bound + 1e-9
    assert found.drift_bound < 5e-5


def test_a_probe_too_short_for_a_drift_says_so():
    assert compare(pings(5, 0.0, 0.1)).drift is None


def test_a_clock_that_was_set_in_between_is_refused():
    with pytest.raises(ValueError, match="set in between"):
        compare([[100, 5, 6, 90]])
    with pytest.raises(ValueError, match="no pings"):
        compare([])


@pytest.mark.parametrize(("way_ns", "size"), [(20_000, PINGS), (15 * MS, 34), (400 * MS, 2)])
def test_bursts_are_cut_at_pauses_however_many_pings_the_network_lets_through(way_ns, size):
    rows = pings(0, 0.0, 5, way_ns=way_ns)
    cut = bursts(np.array(rows, dtype=np.int64))
    assert [len(burst) for burst in cut] == [size] * len(cut)
    assert all(late[0, 0] - early[-1, 3] > PAUSE_NS for early, late in zip(cut, cut[1:], strict=False))


def test_a_slow_network_bounds_the_drift_by_all_of_its_bursts():
    """With bursts of 34 pings, a hundred are three bursts, of which two told nothing of the drift."""
    rows = pings(3 * MS, 1e-4, 10, way_ns=15 * MS)
    found = compare(rows)
    assert abs(found.drift - 1e-4) <= found.drift_bound < 2 * 60e-3 / 8
    assert (rows[-1][0] - bursts(np.array(rows))[-1][0, 0]) < BURST_S * 10**9


def test_offsets_are_of_the_host_that_pinged_on_both_clocks():
    monotonic, realtime = pings(5 * MS, 1e-5, 4), pings(-7 * MS, 0.0, 4, seed=1)
    rows = [[*one, *other] for one, other in zip(monotonic, realtime, strict=False)]
    answer = ClockAnswer(schema=tag("clock"), hosts=3, against=[Pings(host=1, pings=rows), Pings(host=2, pings=rows)])
    result = pinged(answer, "run", ["n1", "n2"])
    assert [(one.host, one.against, one.clock) for one in result.offsets] == [
        *(("n2", "n1", clock) for clock in ("monotonic", "realtime")),
        *(("2", "n1", clock) for clock in ("monotonic", "realtime")),
    ]
    steady, real = result.offsets[:2]
    assert steady.offset_s == pytest.approx(-5e-3 - 4e-5, abs=1e-4)
    assert steady.drift_ppm == pytest.approx(-10, abs=steady.drift_bound_ppm)
    assert real.offset_s == pytest.approx(7e-3, abs=1e-4)
