"""The simulator itself, against schedules that fit on a napkin."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Bucket, Call, Device, Training, Wire, even, spread

from allpull import open_run

MS = 1e-3


def napkin(**changes: object) -> Training:
    """Two ranks, without jitter: 10 ms forward, 40 ms backward, 5 ms optimizer; 4 buckets of 8 ms each."""
    plain = {
        "ranks": 2,
        "steps": 3,
        "jitter": 0.0,
        "input_s": 0.0,
        "other_s": 0.0,
        "forward_s": 10 * MS,
        "backward_s": 40 * MS,
        "optimizer_s": 5 * MS,
        "buckets": spread(total=4, count=4),
        "wire": Wire(latency_s=8 * MS, bytes_per_s=1e30),
    }
    return even(**{**plain, **changes})  # type: ignore[arg-type]


def step_ms(training: Training) -> float:
    return simulate(training).seconds() / training.steps / MS


def test_buckets_overlap_backward() -> None:
    # Ready after 10, 20, 30 and 40 ms, 8 ms each: only the last one is left after backward.
    assert step_ms(napkin()) == pytest.approx(10 + 40 + 8 + 5)


def test_a_busy_lane_runs_back_to_back() -> None:
    # 15 ms each: 10 + 4 × 15 = 70 ms after backward began.
    assert step_ms(napkin(wire=Wire(latency_s=15 * MS, bytes_per_s=1e30))) == pytest.approx(10 + 70 + 5)


def test_a_late_rank_costs_less_behind_a_busy_lane() -> None:
    busy = napkin(wire=Wire(latency_s=15 * MS, bytes_per_s=1e30))
    # Backward takes 60 ms: the first bucket is ready at 15 instead of 10 ms, and the lane is busy from then on.
    assert step_ms(busy.later("backward", 20 * MS, rank=1)) == pytest.approx(10 + 15 + 60 + 5)
    assert step_ms(napkin().later("backward", 20 * MS, rank=1)) == pytest.approx(10 + 60 + 8 + 5)


def test_bytes_take_latency_and_rate() -> None:
    one = napkin(buckets=(Bucket(bytes=1000, ready=1.0),), wire=Wire(latency_s=2 * MS, bytes_per_s=1e6))
    assert step_ms(one) == pytest.approx(10 + 40 + 2 + 1 + 5)


def test_every_reducing_pass_is_a_meeting() -> None:
    late = napkin(passes=2).later("forward", 20 * MS, rank=1)  # in the first of two
    assert step_ms(late) == pytest.approx(20 + 2 * (10 + 40 + 8) + 5)
    both = late.later("forward", 20 * MS, rank=0, number=1)  # another rank in the second: nothing hides
    assert step_ms(both) == pytest.approx(40 + 2 * (10 + 40 + 8) + 5)


def test_without_reducing_there_is_no_meeting() -> None:
    late = napkin(passes=2, reduces=(False, True)).later("forward", 20 * MS, rank=1)
    assert step_ms(late) == pytest.approx(20 + 10 + 40 + 10 + 40 + 8 + 5)
    both = late.later("forward", 20 * MS, rank=0, number=1)  # they are late at once
    assert step_ms(both) == pytest.approx(20 + 10 + 40 + 10 + 40 + 8 + 5)


def test_a_broadcast_waits_for_its_root_alone() -> None:
    called = napkin(calls=(Call(op="broadcast", bytes=1, root=0),), wire=Wire(latency_s=2 * MS, bytes_per_s=1e30))
    history = simulate(called.later("input", 20 * MS, rank=0))
    assert history.hosts[1][0].calls[0].end == pytest.approx(22 * MS)
    history = simulate(called.later("input", 20 * MS, rank=1))
    assert history.hosts[0][0].calls[0].end == pytest.approx(2 * MS)


def test_a_gather_waits_for_all() -> None:
    called = napkin(calls=(Call(op="all_gather", bytes=1, at=0.5),), wire=Wire(latency_s=2 * MS, bytes_per_s=1e30))
    history = simulate(called.later("input", 20 * MS, rank=1))
    assert history.hosts[0][0].calls[0].end == pytest.approx((20 + 5 + 2) * MS)
    assert history.hosts[0][0].phases["forward"] == pytest.approx(10 * MS)


def test_a_host_that_runs_ahead_costs_nothing() -> None:
    ahead = simulate(napkin(steps=10, device=Device(issue_share=0.5)))
    assert ahead.seconds(2) / 8 / MS == pytest.approx(10 + 40 + 8 + 5, abs=0.01)
    assert all(log.paced == 0 for log in ahead.devices[0][3:])


def test_a_slow_host_paces_its_device() -> None:
    paced = simulate(napkin(steps=10, device=Device(issue_share=2.0, pieces=5)))
    assert paced.seconds(2) / 8 / MS == pytest.approx(2 * (10 + 40 + 5), rel=0.1)
    assert paced.devices[0][5].paced > 0.75 * (paced.devices[0][5].end - paced.devices[0][5].begin)


def test_a_device_starves_with_its_host() -> None:
    starved = simulate(napkin(steps=10, device=Device(ahead=1)).later("input", 30 * MS, rank=slice(None)))
    # The fetch begins when the device ends the step before: nothing hides it.
    assert starved.devices[0][5].phases["input"] == pytest.approx(30 * MS)


@pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])
def test_phases_close(tmp_path: Path, device: Device | None) -> None:
    """The product reads what was written, and finds that it adds up."""
    training = even(hosts=2, steps=20, device=device, calls=(Call(op="broadcast", bytes=100, root=0),))
    metrics = open_run(write(simulate(training), tmp_path, Recording(offsets_s=(0.0, 3.0)))).metrics()
    assert metrics.closure_error == pytest.approx(0.0, abs=1e-6)
    of_devices = 0.0 if device is None else 2 * Recording().device_bound_s
    assert metrics.clock_error_s == pytest.approx(50e-6 + of_devices, rel=0.1)  # half a round trip, and two devices


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(even(seed=3)).seconds() == simulate(even(seed=3)).seconds()
    assert dataclasses.replace(even(seed=3)).passes[0].forward[0, 0] == even(seed=3).passes[0].forward[0, 0]
