"""Ranks that are late in different phases, or pause in turn, hide each other in totals and in medians."""

from __future__ import annotations

import re

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Call, Device, even

PLACES = pytest.mark.parametrize("device", [None, Device()], ids=["cpu", "device"])


@PLACES
def test_two_of_three_ranks_in_different_phases(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=3, device=device)
    judged = judge(healthy.later("forward", 0.020, rank=0).later("backward", 0.020, rank=1), healthy)
    for rank in (0, 1):
        assert_priced(judged.finding("slow-rank", ranks=[rank]), judged.truth)


def test_all_of_three_devices_in_different_phases(judge: Judge) -> None:
    healthy = even(ranks=3, device=Device())
    late = healthy.later("forward", 0.020, rank=0).later("backward", 0.020, rank=1).later("optimizer", 0.020, rank=2)
    judged = judge(late, healthy)
    for rank in range(3):
        assert_priced(judged.finding("slow-rank", ranks=[rank]), judged.truth, 0.015)


@PLACES
def test_one_rank_of_three_that_is_fast_makes_no_other_slow(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=3, device=device)
    assert not judge(healthy.later("forward", -0.020, rank=0)).priced


@PLACES
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_cuts_its_phases_otherwise_is_not_slow(judge: Judge, ranks: int, device: Device | None) -> None:
    healthy = even(ranks=ranks, device=device)
    other_cut = healthy.later("forward", 0.010, rank=0).later("backward", -0.010, rank=0)
    assert not judge(other_cut).priced
    other_cut = other_cut.later("backward", 0.010, rank=1).later("forward", -0.010, rank=1)
    assert not judge(other_cut).priced


@PLACES
def test_two_ranks_that_pause_in_turn_for_less_than_a_quarter_of_a_step(judge: Judge, device: Device | None) -> None:
    healthy = even(ranks=2, steps=62, device=device)
    pausing = healthy
    for turn, step in enumerate(range(4, 62, 2)):
        pausing = pausing.later("forward", 0.018, rank=turn % 2, steps=step)
    judged = judge(pausing, healthy)
    assert_priced(judged.finding("rotating-imbalance", ranks=[]), judged.truth, 0.02)


METRIC = Call(op="all_reduce", bytes=4096, phase="forward", at=1.0)
BUFFERS = Call(op="broadcast", bytes=4096, phase="forward", at=0.0, root=0)


def test_how_late_two_of_three_ranks_are_is_told_without_what_all_wait_for_a_cpu(judge: Judge) -> None:
    """A rank is held against those that are not late in the same phase, and their waiting against its own."""
    healthy = even(ranks=3, steps=120, jitter=0.05)
    late = healthy.later("forward", 0.020, rank=1).later("backward", 0.015, rank=2)
    judged = judge(late, healthy, Recording(queued_s=(0.003, 0.003, 0.003)))
    for rank, late_s in ((1, 0.020), (2, 0.015)):
        (size,) = (one for one in judged.finding("slow-rank", ranks=[rank]).evidence if "beyond the median" in one.what)
        assert size.value == pytest.approx(late_s, rel=0.05)


@PLACES
@pytest.mark.parametrize("ranks", [2, 3])
def test_two_ranks_late_before_different_meetings_cost_both(judge: Judge, ranks: int, device: Device | None) -> None:
    """Rank 1 before a metric is reduced, rank 0 before the gradients are: neither hides the other."""
    healthy = even(ranks=ranks, device=device, calls=(METRIC,))
    one, other = healthy.later("forward", 0.020, rank=1), healthy.later("backward", 0.030, rank=0)
    both = one.later("backward", 0.030, rank=0)
    for rank, mended in ((0, one), (1, other)):
        judged = judge(both, mended)
        assert judged.truth > 1.15
        assert_priced(judged.finding("slow-rank", ranks=[rank]), judged.truth, 0.03)


def test_what_only_rank_0_does_and_a_slow_backward_of_another(judge: Judge) -> None:
    """DDP sends buffers before forward, as with batch norm: rank 1 waits there for rank 0, and rank 0 for it later."""
    healthy = even(ranks=2, calls=(BUFFERS,))
    logging = healthy.later("other", 0.020, rank=0)
    both = logging.later("backward", 0.020, rank=1)
    judged = judge(both, healthy.later("backward", 0.020, rank=1))
    assert judged.truth > 1.1
    assert_priced(judged.finding("slow-rank", ranks=[0]), judged.truth, 0.03)
    assert_priced(judged.finding("slow-rank", ranks=[1]), judge(both, logging).truth, 0.03)


@PLACES
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("calls", [(METRIC,), (BUFFERS,), (BUFFERS, METRIC)])
def test_equal_ranks_that_meet_several_times_in_a_step_are_healthy(
    judge: Judge, calls: tuple[Call, ...], seed: int, device: Device | None
) -> None:
    assert not judge(even(ranks=2, calls=calls, jitter=0.05, seed=seed, device=device)).priced


def test_a_rank_that_nobody_waits_for_at_a_meeting_is_not_late_there(judge: Judge) -> None:
    """The root of a broadcast does not wait: what rank 1 does before it, and rank 0 after it, happens at once.

    So each is late in a phase of its own, and gains nothing before the other is mended.
    """
    healthy = even(ranks=2, calls=(BUFFERS,))
    cut = healthy.later("other", 0.020, rank=1).later("forward", 0.020, rank=0)
    judged = judge(cut, healthy)
    for rank in (0, 1):
        found = judged.finding("slow-rank", ranks=[rank])
        assert found.is_hidden
        assert "before one of their collectives" not in found.title
        assert_priced(found, judged.truth, 0.01)


@pytest.mark.parametrize(("ranks", "device"), [(2, None), (3, None), (3, Device())])
def test_two_ranks_late_in_different_phases_before_one_meeting(judge: Judge, ranks: int, device: Device | None) -> None:
    """Rank 1 is late by 10 ms in the total of a step, which is all that one sees of it: each hides the other."""
    healthy = even(ranks=ranks, jitter=0.01, device=device)
    one, other = healthy.later("forward", 0.025, rank=0), healthy.later("optimizer", 0.035, rank=1)
    both = one.later("optimizer", 0.035, rank=1)
    for rank, alone in ((0, one), (1, other)):
        judged = judge(alone, healthy)  # the other was mended first
        assert_priced(judge(both).finding("slow-rank", ranks=[rank]), judged.truth, 0.03)


@pytest.mark.parametrize(("backward_s", "is_named"), [(0.025, False), (0.012, True)])
def test_one_of_two_ranks_takes_longer_in_forward_and_the_other_in_backward(
    judge: Judge, backward_s: float, is_named: bool
) -> None:
    """They could also end forward at different places of the program: a note says what it is if they do not."""
    healthy = even(ranks=2, jitter=0.01)
    forward = healthy.later("forward", 0.025, rank=0)
    judged = judge(forward.later("backward", backward_s, rank=1), healthy)
    assert [one.ranks for one in judged.priced if one.rule == "slow-rank"] == [[0]] * is_named, judged.said()
    told = re.search(r"longer than rank 1 in forward, .* saves up to ([\d.]+) ms", judged.notes())
    assert told is not None, judged.notes()
    assert float(told[1]) == pytest.approx(backward_s * 1e3, rel=0.03)
    assert "longer in backward" not in judge(forward).notes()
    assert "longer in backward" not in judge(healthy).notes()


def test_two_passes_that_wait_for_a_cpu_by_as_much_are_no_faults_of_ranks(judge: Judge) -> None:
    waiting = even(ranks=2, jitter=0.01).later("forward", 0.025, rank=0).later("backward", 0.025, rank=1)
    assert "longer in backward" not in judge(waiting, None, Recording(queued_s=(0.025, 0.025))).notes()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("pause_s", "late_s"), [(0.500, 0.025), (0.300, 0.040)])
def test_a_rank_that_pauses_at_times_hides_none_that_is_always_late(
    judge: Judge, ranks: int, pause_s: float, late_s: float
) -> None:
    healthy = even(ranks=ranks, steps=125, jitter=0.01)
    pausing = healthy.later("other", pause_s, rank=0, steps=slice(None, None, 10))
    late = healthy.later("other", late_s, rank=ranks - 1)
    both = pausing.later("other", late_s, rank=ranks - 1)
    for rank, mended in ((0, late), (ranks - 1, pausing)):
        judged = judge(both, mended)
        found = judged.finding("slow-rank", ranks=[rank])
        assert_priced(found, judged.truth, 0.01)
        assert ("once in 10 steps" in found.title) is (rank == 0)


@pytest.mark.parametrize("queued_s", [(0.020, 0.020), (0.020, 0.020, 0.0)])
def test_ranks_that_wait_for_a_cpu_in_different_phases_are_not_slow(judge: Judge, queued_s: tuple[float, ...]) -> None:
    healthy = even(ranks=len(queued_s), steps=120, jitter=0.02)
    waiting = healthy.later("forward", 0.020, rank=0).later("backward", 0.020, rank=1)
    waiting = waiting.later("optimizer", 0.020, rank=1).later("backward", -0.020, rank=1)
    assert "slow-rank" not in {one.rule for one in judge(waiting, None, Recording(queued_s=queued_s)).priced}


def test_two_ranks_that_pause_at_intervals_of_their_own(judge: Judge) -> None:
    healthy = even(ranks=2, steps=125, jitter=0.01)
    pausing = healthy.later("other", 0.200, rank=0, steps=slice(None, None, 10))
    pausing = pausing.later("other", 0.120, rank=1, steps=slice(3, None, 7))
    judged = judge(pausing, healthy)
    found = judged.finding("rotating-imbalance", ranks=[])
    assert "rank 0 every 10 steps, rank 1 every 7 steps" in found.title
    assert_priced(found, judged.truth, 0.02)


def test_ranks_that_are_late_in_turn_are_told_the_phase_in_which_they_are(judge: Judge) -> None:
    """Two networks in a step: rank 0 is late in the forward pass of one, rank 1 in that of the other.

    In a step as a whole the forward passes of both take as long: the phase shows only before the collective.
    """
    healthy = even(ranks=2, passes=2)
    judged = judge(healthy.later("forward", 0.020, rank=0).later("forward", 0.020, rank=1, number=1), healthy)
    for rank in (0, 1):
        title = judged.finding("slow-rank", ranks=[rank]).title
        assert title.endswith("before one of their collectives, most of it in forward"), judged.said()


@PLACES
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_late_in_long_steps_only_does_not_vary(judge: Judge, ranks: int, device: Device | None) -> None:
    """Every fourth step trains a second network as well, and rank 1 is late there: a critic has more updates.

    What all ranks take longer for in these steps is no jitter that rank 1 would keep without its fault.
    """
    fourth = slice(3, None, 4)
    healthy = even(ranks=ranks, steps=122, device=device).later("backward", 0.040, rank=slice(None), steps=fourth)
    judged = judge(healthy.later("backward", 0.050, rank=1, steps=fourth), healthy)
    found = judged.finding("slow-rank", ranks=[1])
    assert found.gain is not None
    assert found.gain.value == pytest.approx(judged.truth, rel=0.015)
    assert not [line for line in found.evidence if "cost per step from" in line.what], "it comes and goes"
