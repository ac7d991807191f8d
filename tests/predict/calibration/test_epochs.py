"""What an epoch has besides its usual steps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analyse.program import Program, records

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import PARTS, Epoch, Epochs
from allpull.predict.calibration import epochs
from allpull.units import NS_PER_S

STEP_S, STEPS = 0.03, 25


def measured(monkeypatch: pytest.MonkeyPatch, *training_s: float) -> epochs.MeasuredEpochs:
    """The epochs of a run that trains for so long in each, the first of them first."""
    complete = tuple(
        Epoch(
            number=number,
            first_step=number * STEPS,
            steps=STEPS,
            samples=STEPS * 16,
            begin_ns=0,
            end_ns=round(seconds * NS_PER_S),
            last_step_ns=0,
            parts_ns={**dict.fromkeys(PARTS, 0), "training": round(seconds * NS_PER_S)},
        )
        for number, seconds in enumerate(training_s)
    )
    nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    made = Epochs(complete=complete, begin_ns=0, has_first=True, ends_training=True, pauses_ns=nothing)
    monkeypatch.setattr(epochs, "epochs_of", lambda _: made)
    found = epochs.measured_epochs(AlignedRun(records(Program())), STEP_S)
    assert found is not None
    return found


def test_steps_that_are_longer_than_the_usual_ones_are_a_part_of_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the first batch of an epoch takes 300 ms: no usual step has that, and every epoch."""
    usual_s = STEPS * STEP_S
    longer = measured(monkeypatch, 2.0, usual_s + 0.31, usual_s + 0.29).parts_s["longer steps"]
    assert longer.tolist() == pytest.approx([0.31, 0.29])
    assert "longer steps" not in measured(monkeypatch, 2.0, usual_s * 1.02, usual_s).parts_s


def test_the_warm_up_of_the_only_epoch_comes_once_and_not_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "longer steps" not in measured(monkeypatch, 2.0).parts_s


def evaluated(ranks: int, seconds: float) -> epochs.MeasuredEpochs:
    """Epochs in each of which all ranks evaluate for so long."""
    parts_s = {"evaluation": np.full(4, seconds)}
    return epochs.MeasuredEpochs(
        ranks=ranks, samples=320, parts_s=parts_s, by_rank_s={"evaluation": np.full((1, ranks), 4 * seconds)}
    )


@pytest.mark.parametrize(("alone_s", "on_8_s"), [(1.0, 1.0), (1.2, 1.0), (2.0, 0.25), (1.8, 0.25)])
def test_an_evaluation_that_took_as_long_on_fewer_ranks_is_not_shared(alone_s: float, on_8_s: float) -> None:
    """Each of two ranks evaluates for a second: a part of it, or all of it, as one rank alone did."""
    rng = np.random.default_rng(0)
    made = epochs.events(evaluated(2, 1.0), [evaluated(1, alone_s), evaluated(2, 1.0)], 400, rng)
    assert np.median(made["evaluation"].on(8)) == pytest.approx(on_8_s, rel=0.02)
    alone = epochs.events(evaluated(2, 1.0), [evaluated(2, 1.0)], 400, rng)
    assert np.median(alone["evaluation"].on(8)) == pytest.approx(0.25, rel=0.02)
