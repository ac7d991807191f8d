"""Losses that hide each other: none gains much by itself, and the price of all of them is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import Judged, assert_priced
from tests.oracle.test_loaders_in_turn import DEVICES, in_turn, of_processes, quicker
from tests.oracle.training import Device, Training, even

RULE = "hidden-losses"
EVERY_TENTH = slice(9, None, 10)


def saving(training: Training, seconds: float, rank: int = 0, steps: slice = EVERY_TENTH) -> Training:
    return training.later("checkpoint", seconds, rank=rank, steps=steps)


def evaluating(training: Training, each_s: float, more_s: float = 0.0, rank: int = 2) -> Training:
    """All ranks evaluate in each tenth step, one of them for longer."""
    all_of_them = training.later("evaluation", each_s, rank=slice(None), steps=EVERY_TENTH)
    return all_of_them.later("evaluation", more_s, rank=rank, steps=EVERY_TENTH)


def shared(training: Training) -> Training:
    """The same evaluation on all ranks."""
    mean_s = np.broadcast_to(training.evaluation.mean(axis=0), training.evaluation.shape)
    return dataclasses.replace(training, evaluation=mean_s.copy())


def is_silent(judged: Judged) -> bool:
    return RULE not in [one.rule for one in judged.priced]


def test_one_rank_saves_while_another_evaluates_longer(judge: Judge) -> None:
    healthy = even(ranks=4, steps=100)
    both = saving(evaluating(healthy, 0.4, 0.5), 0.5)
    for one in (evaluating(healthy, 0.4, 0.5), shared(both)):
        assert judge(both, one).truth < 1.02
    judged = judge(both, shared(evaluating(healthy, 0.4, 0.5)))
    assert judged.truth > 1.15
    found = judged.finding(RULE, ranks=[0, 2])
    assert_priced(found, judged.truth)
    assert "sequential-checkpoint of rank 0" in found.title
    assert "uneven-evaluation of rank 2" in found.title
    assert "DistributedSampler" in found.remedy
    assert judged.explained.healthy is None


def test_three_losses_of_which_no_two_gain_anything(judge: Judge) -> None:
    healthy = even(ranks=4, steps=100)
    two = saving(evaluating(healthy, 0.4, 0.5), 0.5)
    three = two.later("other", 0.5, rank=3, steps=EVERY_TENTH)
    judged = judge(three, shared(evaluating(healthy, 0.4, 0.5)))
    found = judged.finding(RULE, ranks=[0, 2, 3])
    assert found.title.startswith("3 losses")
    assert_priced(found, judged.truth)


def test_the_same_at_other_times_is_two_findings(judge: Judge) -> None:
    healthy = even(ranks=4, steps=100)
    apart = saving(evaluating(healthy, 0.4, 0.5), 0.5, steps=slice(4, None, 10))
    judged = judge(apart, evaluating(healthy, 0.4, 0.5))
    assert is_silent(judged), judged.said()
    assert_priced(judged.finding("sequential-checkpoint", ranks=[0]), judged.truth)
    assert_priced(judged.finding("uneven-evaluation", ranks=[2]), judge(apart, shared(apart)).truth)


@DEVICES
@pytest.mark.parametrize("batch_s", [0.128, 0.136])
def test_a_late_rank_and_loaders_that_are_as_slow(judge: Judge, batch_s: float, device: Device | None) -> None:
    """Either may be the later one."""
    quick = dataclasses.replace(in_turn(4, batch_s, 0.03, device), loader=None)
    faulty = in_turn(4, batch_s, 0.03, device).later("backward", 0.035, rank=1)
    judged = judge(faulty, quick, of_processes(2, timed=True))
    assert judged.truth > 1.25
    found = judged.finding(RULE, ranks=[1])
    assert_priced(found, judged.truth, tolerance=0.015)
    assert "slow-rank of rank 1" in found.title
    assert "input-bound" in found.title
    assert all(one.gain is not None and one.gain.value > 1.02 for one in judged.priced), judged.said()


@pytest.mark.parametrize("late_s", [0.028, 0.037])
def test_a_late_rank_and_the_loader_of_another_that_is_as_slow(judge: Judge, late_s: float) -> None:
    """Rank 3 gets a batch per 130 ms, and each other rank one per 70; nobody waits for it if rank 1 is later."""
    quick = in_turn(4, 0.070, 0.03, None)
    faulty = quicker(quick, 0.130 / 0.070, [3]).later("backward", late_s, rank=1)
    judged = judge(faulty, quick, of_processes(2, timed=True))
    assert judged.truth > 1.25
    found = judged.finding(RULE, ranks=[1, 3])
    assert_priced(found, judged.truth, tolerance=0.015)
    assert "slow-loader-rank of rank 3" in found.title


@DEVICES
def test_loaders_that_are_no_limit_hide_nothing(judge: Judge, device: Device | None) -> None:
    faulty = in_turn(4, 0.080, 0.03, device).later("backward", 0.035, rank=1)
    judged = judge(faulty, None, of_processes(2, timed=True))
    assert is_silent(judged), judged.said()


def test_findings_that_hide_a_part_of_each_other_say_so(judge: Judge) -> None:
    """Loaders are always waited for, except after rank 0 has saved, when they are ahead."""
    slow = in_turn(4, 0.150, 0.03, None)
    both = saving(slow, 0.5)
    judged = judge(both, dataclasses.replace(slow, loader=None), of_processes(2, timed=True))
    assert is_silent(judged), judged.said()
    assert {"sequential-checkpoint", "input-bound"} <= {one.rule for one in judged.priced}, judged.said()
    (note,) = (one for one in judged.explained.notes if "hide part of each other" in one)
    step_s = judged.explained.window.seconds / judged.explained.window.steps
    saved_ms = float(note.split("saves up to ")[1].split(" ms")[0])
    assert saved_ms / 1000 == pytest.approx(step_s * (1 - 1 / judged.truth), rel=0.05), (note, judged.said())


@pytest.mark.parametrize("late_s", [0.028, 0.032])
def test_a_rank_whose_loader_is_as_late_as_itself_names_what_comes_first(judge: Judge, late_s: float) -> None:
    """Its workers make batches while it computes: neither is worth much alone."""
    quick = in_turn(4, 0.070, 0.03, None)
    both = quicker(quick, 0.130 / 0.070, [1]).later("backward", late_s, rank=1)
    judged = judge(both, quick, of_processes(2, timed=True))
    assert judged.truth > 1.25
    alone = {
        "slow-rank": judge(both, quicker(quick, 0.130 / 0.070, [1])).truth,
        "slow-loader-rank": judge(both, quick.later("backward", late_s, rank=1)).truth,
    }
    for one in judged.priced:
        truth = alone.get(one.rule, judged.truth)
        if "of the same mended first" in one.title:  # what it gains then
            (other,) = alone.keys() - {one.rule}
            truth = judged.truth / alone[other]
        assert_priced(one, truth, 0.02)
    assert judged.priced
