"""Item 7: a run whose computation takes longer than on fewer ranks is not healthy."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracle.records import write
from tests.oracle.simulator import simulate
from tests.oracle.training import Device, even

import allpull


@pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])
@pytest.mark.parametrize(("scaling", "phase"), [(0.636, "backward"), (0.85, "forward"), (1.0, "")])
def test_computation_that_grew(tmp_path: Path, device: Device | None, scaling: float, phase: str) -> None:
    """All of the growth is in one phase, which the finding names."""
    small, big = even(ranks=1, device=device), even(ranks=8, device=device)
    useful_s = 0.030 + 0.060 + 0.004
    if phase:
        big = big.later(phase, useful_s * (1.0 / scaling - 1.0), rank=slice(None))
    reference = write(simulate(small), tmp_path / "small")
    explained = allpull.explain(write(simulate(big), tmp_path / "big"), reference=reference)
    assert explained.efficiency is not None
    assert explained.efficiency.computational is not None
    assert explained.efficiency.computational.value == pytest.approx(scaling, abs=0.01)
    findings = [finding for finding in explained.findings if not finding.advice]
    if not phase:
        assert not findings
        return
    assert explained.healthy is None
    assert any(phase in finding.title or any(phase in line.what for line in finding.evidence) for finding in findings)


def test_a_noisy_reference_widens_the_price(tmp_path: Path) -> None:
    """One rank that varies by 3 % shows its mean of 30 steps to 0.5 %: no price of it is exact to a thousandth."""
    small, big = (even(ranks=ranks, jitter=0.03, steps=30, seed=seed) for ranks, seed in ((1, 103), (4, 3)))
    slow = big.later("backward", 0.030, rank=slice(None))
    truth = simulate(slow).seconds(2) / simulate(big).seconds(2)
    reference = write(simulate(small), tmp_path / "small")
    (finding,) = (
        one
        for one in allpull.explain(write(simulate(slow), tmp_path / "big"), reference=reference).findings
        if one.rule == "computational-scaling"
    )
    assert abs(finding.gain.value - truth) > 0.005
    assert finding.gain.low <= truth <= finding.gain.high
