"""What-if questions: each against arithmetic that a reader can follow, and in what must hold of every window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.oracle import simulate
from tests.replay.windows import Call, anything, jitter, late, only, rotating, window

from allpull.replay.engine import replay, total_work_s
from allpull.replay.useful import sequential, useful, useful_s
from allpull.replay.whatif import balanced, levels, network, work
from allpull.replay.window import Window

SEEDS = st.integers(0, 2**32 - 1)
EXACT = 1e-12
BEGUN = {"backward": 0.100, "forward": 0.010}


def halfway(one: Window) -> levels.Cuts:
    """Where levels change, in the middle of a window that has one."""
    return (one.steps.size // 2,) if one.steps.size > 1 else None


SHORTENINGS: dict[str, Callable[[Window], Window]] = {
    "transfer": network.without_transfer,
    "input": work.without_input,
    "sequential": work.without_sequential,
    "sequential evaluation": lambda one: work.without_sequential(one, ("evaluation",)),
    "orchestration": work.without_orchestration,
    "checkpoints": lambda one: work.without_work(one, ("checkpoint",)),
    "first batches": work.without_first_batches,
    "broadcasts": lambda one: work.without_calls(one, ("broadcast", "barrier")),
    "transfers that show": network.overlapped,
    "half of the bytes": lambda one: network.with_network(one, rate_factor=2.0),
    "latency": lambda one: network.with_network(one, latency_now_s=1e-3),
    "half of the bytes, and what hosts take": lambda one: network.faster(one, 2.0, hosts_s=0.004),
    "what all do between phases": lambda one: work.without_common(one, ("other", "copy")),
    "what all take longer in the end": lambda one: levels.as_before(
        one, (one.steps.size // 2,) if one.steps.size > 1 else None, ("copy",)
    ),
    "what all take longer and longer": lambda one: levels.as_before(one, None, ("forward", "backward"), errors=1.0),
    "half of the input": lambda one: work.scaled(one, ("input",), 0.5),
}


def total_s(one: Window) -> float:
    return replay(one).total_s


@pytest.mark.parametrize("name", SHORTENINGS)
@given(SEEDS)
def test_taking_something_away_makes_nothing_later(name: str, seed: int) -> None:
    one = anything(seed)
    assert (replay(SHORTENINGS[name](one)).end_s <= replay(one).end_s + EXACT).all()


@pytest.mark.parametrize("name", SHORTENINGS)
@given(SEEDS)
def test_every_question_makes_a_window_that_an_event_driven_simulation_agrees_on(name: str, seed: int) -> None:
    asked = SHORTENINGS[name](anything(seed))
    assert replay(asked).end_s == pytest.approx(simulate(asked), rel=EXACT, abs=EXACT)
    assert all((seconds >= 0).all() for seconds in asked.work.values())


@given(SEEDS)
def test_questions_leave_the_window_that_is_asked_as_it_was(seed: int) -> None:
    one = anything(seed)
    before, recorded = total_work_s(one), total_s(one)
    for question in SHORTENINGS.values():
        question(one)
    balanced.like_median(one, [0], ("backward",))
    balanced.without_rotation(one)
    balanced.without_persistence(one)
    assert (total_work_s(one) == before).all()
    assert total_s(one) == recorded


def test_without_transfers_ranks_still_meet() -> None:
    one = window(2, 10, forward=[0.010, 0.030], backward=0.020, bucket_s=0.015, tail_s=0.001)
    assert total_s(one) == pytest.approx(10 * 0.066)
    assert total_s(network.without_transfer(one)) == pytest.approx(10 * 0.050)


def test_serial_evaluation_is_sequential_and_that_of_all_is_useful() -> None:
    scored = only(4, 10, seconds=0.4, every=5) + only(4, 10, seconds=1.0, rank=0, every=5, first=2)
    scored[2, 1:] = 0.001  # they go into the phase and out again
    one = window(4, 10, evaluation=scored, checkpoint=only(4, 10, seconds=0.2, rank=0, every=5), forward=0.010)
    assert useful_s(one).sum(axis=0) == pytest.approx([0.9] * 4)  # 10 · 10 ms, 2 · 0.4 s
    assert {name: seconds.sum() for name, seconds in sequential(one).items()} == pytest.approx(
        {"evaluation": 2.003, "checkpoint": 0.4}
    )


@given(SEEDS)
def test_useful_and_sequential_work_do_not_overlap(seed: int) -> None:
    one = anything(seed)
    both = [*useful(one).items(), *sequential(one).items()]
    known = {name: sum(seconds for other, seconds in both if other == name) for name, _ in both}
    assert all((seconds == one.work[name]).all() for name, seconds in known.items())


def test_evaluation_shared_by_all_ranks_takes_each_its_part() -> None:
    barrier = Call(use="barrier", at="begin", steps=(0, 5))
    one = window(4, 10, evaluation=only(4, 10, seconds=0.8, rank=0, every=5), forward=0.010, calls=[barrier])
    assert total_s(one) == pytest.approx(2 * 0.8 + 0.1)
    assert total_s(work.evaluation_spread(one)) == pytest.approx(2 * 0.2 + 0.1)
    assert total_s(work.without_sequential(one)) == pytest.approx(0.1)


def test_only_the_stall_of_first_batches_goes() -> None:
    fetch = np.full((20, 2), 0.005)
    fetch[::10] = 0.500
    one = window(2, 20, input=fetch, forward=0.010, odd=fetch[:, 0] > 0.1)
    assert total_s(one) == pytest.approx(2 * 0.510 + 18 * 0.015)
    assert total_s(work.without_first_batches(one)) == pytest.approx(20 * 0.015)
    second = np.arange(20) == 10
    assert total_s(work.without_first_batches(one, second)) == pytest.approx(0.510 + 19 * 0.015)
    all_odd = window(2, 20, input=fetch, forward=0.010, odd=True)
    assert total_s(work.without_first_batches(all_odd)) == pytest.approx(total_s(all_odd))


def test_without_broadcasts_of_buffers_a_rank_late_before_forward_is_late_at_the_reduction_alone() -> None:
    sent = Call(use="broadcast", root=0, transfer_s=0.003)
    one = window(3, 10, input=late(3, 10, rank=0, by_s=0.040), forward=0.010, backward=0.020, calls=[sent])
    assert total_s(one) == pytest.approx(10 * 0.073)
    assert total_s(work.without_calls(one, ("broadcast",))) == pytest.approx(10 * 0.070)
    assert total_s(work.without_calls(one, ("barrier",))) == pytest.approx(10 * 0.073)


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "other"])
def test_a_slow_rank_made_like_the_others_gives_back_what_it_was_late(phase: str) -> None:
    usual = {"input": 0.002, "forward": 0.010, "backward": 0.020, "other": 0.001}
    slow = window(4, 30, bucket_s=[0.004] * 3, **{**usual, phase: usual[phase] + late(4, 30, rank=2, by_s=0.040)})
    healthy = window(4, 30, bucket_s=[0.004] * 3, **usual)
    assert total_s(slow) > total_s(healthy) + 1.0
    assert total_s(balanced.like_median(slow, [2], (phase,))) == pytest.approx(total_s(healthy))
    assert total_s(balanced.like_median(slow, [1], (phase,))) == pytest.approx(total_s(slow))


def test_a_slow_rank_made_like_the_others_varies_as_they_do() -> None:
    """Of two ranks that vary by 5 %, the last one is late by 0.56 standard deviations, whoever was slow before."""
    rng = np.random.default_rng(4)
    usual = 0.030 * (1 + 0.05 * rng.standard_normal((300, 2)))
    healthy_s = total_s(window(2, 300, forward=usual))
    assert healthy_s == pytest.approx(300 * 0.030 * (1 + 0.05 * 0.564), rel=0.005)
    slow = window(2, 300, forward=usual + late(2, 300, rank=1, by_s=0.020))
    assert total_s(balanced.like_median(slow, [1], ("forward",))) == pytest.approx(healthy_s, rel=0.002)
    delays = np.zeros((300, 2))
    delays[:, 1] = rng.exponential(0.020, 300)
    delayed = window(2, 300, forward=usual + delays)
    assert total_s(balanced.like_median(delayed, [1], ("forward",))) == pytest.approx(healthy_s, rel=0.03)


def test_a_delay_in_front_of_backward_moves_all_buckets_back_with_it() -> None:
    """The late rank's leads are as of the others: its buckets come 40 ms later; with the delay gone they do not."""
    leads = np.repeat(np.array([[0.015], [0.010], [0.0]]), 2, axis=1)
    usual = {"bucket_s": [0.020] * 3, "lead_s": leads}
    slow = window(2, 10, backward=0.020 + late(2, 10, rank=1, by_s=0.040), **usual)
    healthy = window(2, 10, backward=0.020, **usual)
    assert total_s(healthy) == pytest.approx(10 * 0.065)
    assert total_s(slow) == pytest.approx(10 * 0.105)
    assert total_s(balanced.like_median(slow, [1], ("backward",))) == pytest.approx(10 * 0.065)


def test_nobody_is_like_others_where_there_are_none() -> None:
    one = window(3, 5, forward=[0.01, 0.02, 0.03])
    assert total_s(balanced.like_median(one, range(3), ("forward",))) == total_s(one)
    assert total_s(balanced.like_median(one, [], ("forward",))) == total_s(one)


def test_persistent_and_rotating_imbalance_are_taken_away_apart() -> None:
    usual = {"forward": 0.030, "optimizer": 0.010}
    always = window(4, 40, backward=0.060 + late(4, 40, rank=1, by_s=0.040), **usual)
    in_turn = window(4, 40, backward=0.060 + rotating(4, 40, by_s=0.040), **usual)
    assert total_s(balanced.without_rotation(always)) == pytest.approx(total_s(always))
    assert total_s(balanced.without_persistence(always)) == pytest.approx(40 * 0.110, rel=1e-3)
    assert total_s(balanced.without_rotation(in_turn)) == pytest.approx(40 * 0.110)
    assert total_s(balanced.without_persistence(in_turn)) == pytest.approx(total_s(in_turn))


def test_a_rank_that_is_late_before_one_of_several_meetings_makes_the_others_no_later_before_the_rest() -> None:
    """A collective after forward, for which rank 1 takes 30 ms longer: the mean rank is 15 ms longer there, not 30."""
    one = window(2, 40, forward=0.020 + late(2, 40, rank=1, by_s=0.030), backward=0.040, calls=[Call(use="all_gather")])
    assert total_s(one) == pytest.approx(40 * 0.090)
    assert total_s(balanced.without_persistence(one)) == pytest.approx(40 * 0.075)


def test_lateness_in_turn_before_one_of_several_meetings_is_shared_out_there() -> None:
    """15 ms in turn before a barrier at the end of a step: shared out 7.5 ms of each rank, and no later in backward."""
    barrier = Call(use="barrier", at="end")
    one = window(2, 40, forward=0.020, backward=0.020, other=rotating(2, 40, by_s=0.015), calls=[barrier])
    assert total_s(one) == pytest.approx(40 * 0.055)
    assert total_s(balanced.shared_out(one, ("forward", "backward", "other"))) == pytest.approx(40 * 0.0475)


def test_pauses_are_shared_out_where_they_are_and_what_each_rank_usually_takes_stays() -> None:
    """Rank 0 pauses 100 ms in each tenth step, 10 ms on the mean: these stay its own, of the rest each has a half."""
    pauses = only(2, 40, seconds=0.100, rank=0, every=10, first=3)
    one = window(2, 40, forward=0.020 + late(2, 40, rank=1, by_s=0.005), backward=0.020 + pauses)
    assert total_s(one) == pytest.approx(36 * 0.045 + 4 * 0.140)
    assert total_s(balanced.shared_out(one, ("backward",))) == pytest.approx(36 * 0.045 + 4 * 0.095)


@given(SEEDS)
def test_levelling_keeps_what_each_rank_or_each_step_has_to_do(seed: int) -> None:
    one = anything(seed)
    useful = useful_s(one)
    assert useful_s(balanced.without_rotation(one)).sum(axis=0) == pytest.approx(useful.sum(axis=0), rel=1e-9)
    even = useful_s(balanced.without_persistence(one)).sum(axis=0)
    assert even == pytest.approx(np.full(one.ranks, useful.sum(axis=0).mean()), rel=1e-9)


def test_twice_the_rate_halves_the_bytes_and_leaves_the_latency() -> None:
    one = window(2, 10, backward=0.020, bucket_s=[0.013, 0.013], lead_s=[0.0, 0.0], tail_s=0.002)
    assert total_s(one) == pytest.approx(10 * (0.020 + 0.026 + 0.002))
    assert total_s(network.with_network(one, rate_factor=2)) == pytest.approx(10 * (0.020 + 0.013 + 0.001))
    kept = network.with_network(one, rate_factor=2, latency_s=0.003, latency_now_s=0.003)
    assert total_s(kept) == pytest.approx(10 * (0.020 + 2 * 0.008 + 0.001))
    assert total_s(network.with_network(one, latency_s=0.001)) == pytest.approx(10 * (0.020 + 0.028 + 0.002))


def test_what_is_common_is_what_the_lower_median_rank_takes() -> None:
    one = window(2, 10, other=[0.010, 0.040], forward=0.010)
    assert total_s(one) == pytest.approx(10 * 0.050)
    assert total_s(work.without_common(one, ("other",))) == pytest.approx(10 * 0.040)
    in_turn = window(3, 9, other=0.001 + rotating(3, 9, by_s=0.020), forward=0.010)
    assert total_s(work.without_common(in_turn, ("other",))) == pytest.approx(9 * 0.030)


def test_a_rank_that_is_late_by_a_constant_time_still_is_when_levels_fall() -> None:
    rises = np.where(np.arange(20) < 10, 0.0, 1.0)[:, None]
    one = window(3, 20, backward=0.060 + 0.030 * rises + np.array([0.0, 0.040, 0.0]))
    assert total_s(levels.as_before(one, (10,), ("backward",))) == pytest.approx(20 * 0.100)
    by_itself = window(3, 20, backward=0.060 + 0.030 * rises + 0.040 * rises * np.array([0.0, 1.0, 0.0]))
    assert total_s(levels.as_before(by_itself, (10,), ("backward",))) == pytest.approx(10 * 0.060 + 10 * 0.100)


def test_a_stall_lasts_as_long_when_levels_fall() -> None:
    backward_s = np.where(np.arange(20) < 10, 0.060, 0.090)[:, None] + np.zeros(2)
    backward_s[15] += 1.0
    fallen = levels.as_before(window(2, 20, backward=backward_s), (10,), ("backward",))
    assert total_s(fallen) == pytest.approx(20 * 0.060 + 1.0)


def test_a_changed_network_changes_the_collectives_of_the_program() -> None:
    call = Call(use="all_reduce", at="end", transfer_s=0.008)
    one = window(2, 10, forward=0.010, calls=[call], reduces=False)
    assert total_s(network.with_network(one, rate_factor=4)) == pytest.approx(10 * 0.012)
    assert total_s(network.with_network(one, latency_s=0.001)) == pytest.approx(10 * 0.019)


@given(SEEDS, st.floats(1.0, 100.0), st.floats(0.0, 0.05))
def test_what_hosts_take_lies_between_a_fast_network_and_the_one_that_was(
    seed: int, factor: float, each_s: float
) -> None:
    one = anything(seed)
    kept = replay(network.faster(one, factor, hosts_s=each_s)).end_s
    assert (kept >= replay(network.with_network(one, rate_factor=factor)).end_s - EXACT).all()
    assert (kept <= replay(one).end_s + EXACT).all()
    assert total_s(network.faster(one, factor)) == total_s(network.with_network(one, rate_factor=factor))
    assert total_s(network.faster(one, factor, hosts_s=np.inf)) == total_s(one)


def test_hosts_take_their_time_for_the_last_bucket_and_its_tail() -> None:
    one = window(2, 10, backward=0.020, bucket_s=[0.013, 0.013], lead_s=[0.0, 0.0], tail_s=0.002)
    assert total_s(network.faster(one, np.inf, hosts_s=0.005)) == pytest.approx(10 * (0.020 + 0.010))
    assert total_s(network.faster(one, np.inf, hosts_s=np.array([0.0, 0.005]))) == pytest.approx(10 * (0.020 + 0.005))
    assert total_s(network.faster(one, np.inf, hosts_s=np.array([0.0, 0.014]))) == pytest.approx(10 * (0.020 + 0.014))
    assert total_s(network.faster(one, 2.0, hosts_s=np.array([0.0, 1.0]))) == pytest.approx(10 * (0.020 + 0.0215))


@given(SEEDS, st.floats(1.0, 100.0))
def test_a_faster_network_shortens_and_a_slower_one_does_not(seed: int, factor: float) -> None:
    one = anything(seed)
    assert total_s(network.with_network(one, rate_factor=factor)) <= total_s(one) + EXACT
    assert total_s(network.with_network(one, rate_factor=1 / factor)) >= total_s(one) - EXACT
    assert total_s(network.with_network(one, rate_factor=1e15)) == pytest.approx(
        total_s(network.without_transfer(one)), abs=1e-9
    )


@pytest.mark.parametrize(("wire_s", "exposed_s"), [(0.060, 0.0), (0.130, 0.030)])
def test_perfect_overlap_exposes_what_backward_is_too_short_for(wire_s: float, exposed_s: float) -> None:
    one = window(3, 10, bucket_s=[wire_s / 2] * 2, lead_s=[0.0, 0.0], **BEGUN)
    assert total_s(one) == pytest.approx(10 * (0.110 + wire_s))
    assert total_s(network.overlapped(one)) == pytest.approx(10 * (0.110 + exposed_s))


@pytest.mark.parametrize("buckets", [1, 2, 4, 20])
def test_smaller_buckets_expose_the_last_of_them(buckets: int) -> None:
    """Gradients become ready as fast as they are sent: all but the last bucket hide behind backward."""
    one = window(2, 10, bucket_s=0.100, sizes=[100_000_000], **BEGUN)
    cut = network.with_buckets(one, 100_000_000 // buckets)
    assert cut.reductions is not None
    assert cut.reductions.buckets == buckets
    assert total_s(cut) == pytest.approx(10 * (0.110 + 0.100 / buckets))
    slower = network.with_buckets(one, 100_000_000 // buckets, latency_s=0.002)
    # the first is ready at 100/n ms, then the lane is never free: n latencies of 2 ms and 98 ms for the bytes
    assert total_s(slower) == pytest.approx(10 * (0.010 + 0.100 / buckets + 0.002 * buckets + 0.098))


def test_a_bucket_of_all_gradients_waits_for_the_last_of_them() -> None:
    one = window(2, 10, bucket_s=[0.010, 0.030, 0.020], **BEGUN)
    assert total_s(network.with_buckets(one, 10**9)) == pytest.approx(10 * (0.110 + 0.060))


def test_no_bucket_divides_a_gradient() -> None:
    """As DDP fills them: a bucket ends with the gradient that makes it full. An embedding is the last, and the most."""
    one = window(2, 10, bucket_s=0.100, sizes=[100_000_000], **BEGUN)
    embedding = [1_000_000] * 10 + [90_000_000]
    whole = network.with_buckets(one, 25_000_000, gradients_bytes=embedding)
    assert total_s(whole) == pytest.approx(total_s(one))
    cut = network.with_buckets(one, 5_000_000, gradients_bytes=embedding).reductions
    assert cut is not None
    assert cut.size_bytes is not None
    assert cut.size_bytes.tolist() == [5_000_000, 5_000_000, 90_000_000]
    other = network.with_buckets(one, 25_000_000, gradients_bytes=[1, 2])  # of another network
    assert other.reductions is not None
    assert other.reductions.buckets == 4


@given(SEEDS)
def test_buckets_cut_where_they_are_cut_change_nothing(seed: int) -> None:
    one = window(3, 4, backward=jitter(3, 4, sd_s=0.02, seed=seed), bucket_s=[0.002, 0.01, 0.01, 0.007],
                 sizes=[1 << 20, 25 << 20, 25 << 20, 17 << 20])  # fmt: skip
    same = network.with_buckets(one, 25 << 20, first_bytes=1 << 20)
    assert same.reductions is not None
    assert same.reductions.size_bytes is not None
    assert same.reductions.size_bytes.tolist() == [1 << 20, 25 << 20, 25 << 20, 17 << 20]
    assert replay(same).end_s == pytest.approx(replay(one).end_s, rel=1e-9)


@given(SEEDS, st.integers(10**6, 10**8))
def test_cutting_buckets_loses_no_byte_and_no_second(seed: int, cap_bytes: int) -> None:
    one = anything(seed)
    lane = one.reductions
    if lane is None or lane.size_bytes is None:
        with pytest.raises(ValueError, match="without sizes"):
            network.with_buckets(one, cap_bytes)
        return
    cut = network.with_buckets(one, cap_bytes).reductions
    assert cut is not None
    assert cut.size_bytes is not None
    assert cut.size_bytes.sum() == lane.size_bytes.sum()
    assert cut.size_bytes.max() <= cap_bytes + 1
    assert cut.seconds.sum(axis=1) == pytest.approx(lane.seconds.sum(axis=1), rel=1e-9, abs=EXACT)
    assert (np.diff(cut.lead_s, axis=1) <= EXACT).all()
    assert (cut.seconds >= 0).all()


def test_a_bucket_of_no_bytes_is_no_question() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        network.with_buckets(window(2, 3, bucket_s=0.01, backward=0.02), 0)


@given(SEEDS)
def test_a_rank_alone_takes_as_long_and_meets_nobody(seed: int) -> None:
    one = anything(seed)
    by_itself = network.single_rank(one)
    assert replay(by_itself).end_s == pytest.approx(replay(one).end_s, rel=EXACT)
    if one.ranks == 1:
        assert total_s(network.without_transfer(by_itself)) == pytest.approx(total_s(one), rel=EXACT)
        assert not by_itself.meets.any()


def test_half_the_work_on_one_rank() -> None:
    one = window(2, 10, input=[0.010, 0.050], forward=0.010)
    assert total_s(work.scaled(one, ("input",), 0.5, ranks=[1])) == pytest.approx(10 * 0.035)
    assert total_s(work.scaled(one, ("forward",), 2.0)) == pytest.approx(10 * 0.070)
