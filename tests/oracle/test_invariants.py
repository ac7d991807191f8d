"""What must hold whatever the run: names of ranks, clocks, units and the place of records change no price."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.judged import Judged, judge
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, Wire, even, spread

pytestmark = pytest.mark.slow

MIB = 1 << 20


def faulty(rank: int, device: Device | None, scale: float = 1.0) -> Training:
    """One rank late in backward, behind a lane that is nearly full; ``scale`` times as long in all."""
    wire = Wire(latency_s=0.0, bytes_per_s=64 * MIB / (0.055 * scale))
    healthy = even(
        hosts=2,
        input_s=0.001 * scale,
        other_s=0.0005 * scale,
        forward_s=0.030 * scale,
        backward_s=0.060 * scale,
        optimizer_s=0.004 * scale,
        buckets=spread(total=64 * MIB, count=8),
        wire=wire,
        device=device,
    )
    return healthy.later("backward", 0.040 * scale, rank=rank)


def relabelled(training: Training, order: list[int]) -> Training:
    """The same ranks by other numbers."""
    passes = tuple(
        dataclasses.replace(one, forward=one.forward[order], backward=one.backward[order]) for one in training.passes
    )
    names = ("input", "copy", "other", "optimizer", "evaluation", "checkpoint")
    return dataclasses.replace(training, passes=passes, **{name: getattr(training, name)[order] for name in names})


def gains(judged: Judged) -> dict[str, float]:
    return {f"{one.rule} {one.ranks}": one.gain.value for one in judged.priced if one.gain is not None}


def test_ranks_may_have_other_numbers(tmp_path: Path) -> None:
    before = judge(tmp_path / "before", faulty(3, Device()))
    after = judge(tmp_path / "after", relabelled(faulty(3, Device()), [0, 1, 3, 2]))  # within their host
    assert gains(after) == pytest.approx({key.replace("[3]", "[2]"): gain for key, gain in gains(before).items()})
    assert gains(before)


def test_clocks_may_be_set_to_anything(tmp_path: Path) -> None:
    before = judge(tmp_path / "before", faulty(1, None))
    after = judge(tmp_path / "after", faulty(1, None), recording=Recording(offsets_s=(0.0, -123.4)))
    assert gains(after) == pytest.approx(gains(before), rel=1e-3)


def test_all_times_may_be_ten_times_as_long(tmp_path: Path) -> None:
    before, after = judge(tmp_path / "before", faulty(1, None)), judge(tmp_path / "after", faulty(1, None, 10.0))
    assert gains(after) == pytest.approx(gains(before), rel=2e-3)


@pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])
def test_factors_are_shares_that_multiply(tmp_path: Path, device: Device | None) -> None:
    tree = judge(tmp_path, faulty(2, device)).explained.efficiency
    assert tree is not None
    names = ("transfer", "input", "sequential", "orchestration", "serialisation", "load_balance")
    factors = [getattr(tree, name).value for name in names]
    assert all(0.0 < factor <= 1.0 + 1e-9 for factor in factors)
    assert float(np.prod(factors)) == pytest.approx(tree.parallel.value, rel=1e-3)
