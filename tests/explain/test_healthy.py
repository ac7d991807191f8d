"""A run is called healthy where a fault would have been seen: not for want of steps, nor of ranks that are noisy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analyse.program import Program, records

from allpull.analyse.aligned import AlignedRun
from allpull.explain.explanation import explain
from allpull.schema.explained import ExplainResult


def explained(ranks: int, steps: int, noise_ms: float = 0.1) -> ExplainResult:
    noise = np.abs(np.random.default_rng(ranks).normal(0, noise_ms, (steps, ranks)))
    program = Program(ranks=ranks, steps=steps, work={"forward": 20 + noise, "input": 0.1}, bucket_ms=(0.2, 0.2))
    return explain(AlignedRun(records(program))).result


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_too_few_steps_say_nothing_and_that_is_said(ranks: int, steps: int) -> None:
    result = explained(ranks, steps)
    assert (result.window.steps, result.findings, result.healthy) == (steps, [], None)
    said = "One step is" if steps == 1 else f"{steps} steps are"
    assert sum(note == f"{said} too few to distinguish a fault from noise" for note in result.notes) == 1


def test_one_rank_has_nobody_to_be_late_for_and_no_noise_of_nothing() -> None:
    result = explained(1, 30)
    assert result.healthy is not None
    assert result.healthy.startswith("Nothing stands out, and the ")
    assert "0 s" not in result.healthy
    assert not any("noise" in note for note in result.notes)


@pytest.mark.parametrize("ranks", [2, 4])
def test_enough_quiet_steps_are_healthy_above_a_noise_that_has_a_size(ranks: int) -> None:
    result = explained(ranks, 30)
    assert result.healthy is not None
    assert result.healthy.startswith("Nothing stands out above the noise of ")
    assert " 0 s" not in result.healthy


def test_ranks_so_noisy_that_a_late_one_would_not_be_seen_are_not_called_healthy() -> None:
    """Two ranks that vary by 20 ms of 65: a rank that is a tenth late is not seen in 12 steps."""
    result = explained(2, 12, noise_ms=20)
    assert [one for one in result.findings if one.rule == "slow-rank"] == []
    assert result.healthy is None
    assert any("cannot be distinguished from noise" in note for note in result.notes)


def test_on_cpus_what_a_slow_rank_has_to_cost_is_said_and_is_more_than_chance() -> None:
    """Ranks that all but agree: chance reaches a few microseconds, and yet a rank 5 % late is not named."""
    quiet = explained(4, 30)
    assert any(
        note.startswith("On CPUs a slow rank is named if it costs at least 8 % of a step") for note in quiet.notes
    )
    assert quiet.healthy is not None
    assert "above the noise of 5.24 ms per step" in quiet.healthy  # 8 % of 65.5 ms
    noisy = explained(2, 12, noise_ms=20)
    assert not any("is named from" in note for note in noisy.notes)
