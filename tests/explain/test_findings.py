"""Prices, and what is no finding: several faults at once, faults that hide each other, faults within the noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.made import STEPS, facts, found, hosts_of, job, ring
from tests.replay.windows import Call, anything, late, only, relabelled, stretched

from allpull.analyse.course import line_of, when_there
from allpull.explain.candidate import MIN_SHARE
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.pricing.expected_gain import expected_gain

EIGHT = Machine(hosts=hosts_of(8))
SEEDS = st.integers(0, 2**32 - 1)


def named(one, machine=EIGHT) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, tuple(finding.ranks)) for finding in found(one, machine).findings]


def test_two_late_ranks_hide_each_other_and_both_are_named_the_larger_first() -> None:
    both = job(8, forward=late(8, STEPS, rank=2, by_s=0.02), input=late(8, STEPS, rank=5, by_s=0.04))
    answer = found(both, EIGHT).findings
    assert [(one.rule, one.ranks) for one in answer] == [("slow-loader-rank", [5]), ("slow-rank", [2])]
    assert [one.loss_s_per_step for one in answer] == pytest.approx([0.04, 0.02], rel=0.1)
    alone = answer[1].evidence[-1]
    assert alone.what == "gain per step if only this is fixed"
    assert alone.value == pytest.approx(0.0, abs=0.002)
    assert [one.is_hidden for one in answer] == [True, True]  # alone, the larger saves half of its lateness
    after_s = facts(job(8)).step_s
    gains = [one.gain.value for one in answer if one.gain is not None]
    assert gains == pytest.approx(
        [1 + 0.04 / after_s, 1 + 0.02 / after_s], rel=0.01
    )  # each with the other mended first


def test_two_ranks_that_are_late_by_the_same_are_both_named() -> None:
    both = job(8, forward=late(8, STEPS, rank=2, by_s=0.03) + late(8, STEPS, rank=5, by_s=0.03))
    assert {ranks for _, ranks in named(both)} == {(2,), (5,)}


@pytest.mark.parametrize(("evaluates_s", "late_s"), [(0.4, 0.015), (0.1, 0.04)])
def test_faults_of_two_kinds_are_both_priced_in_full(evaluates_s: float, late_s: float) -> None:
    barrier = Call(use="barrier", at="begin", steps=tuple(range(3, STEPS, 8)))
    scored = only(8, STEPS, seconds=evaluates_s, rank=0, every=8, first=3)
    both = job(8, evaluation=scored, backward=late(8, STEPS, rank=3, by_s=late_s), calls=[barrier])
    answer = found(both, EIGHT).findings
    wanted = {"sequential-evaluation": evaluates_s / 8, "slow-rank": late_s}
    assert {one.rule: one.loss_s_per_step for one in answer} == pytest.approx(wanted, rel=0.15)
    assert [one.rule for one in answer] == sorted(wanted, key=lambda rule: -wanted[rule])


@pytest.mark.parametrize(
    ("late_s", "order"), [(0.02, ("network-bound", "slow-rank")), (0.04, ("slow-rank", "network-bound"))]
)
def test_an_upper_bound_counts_for_half_of_what_is_in_doubt(late_s: float, order: tuple[str, str]) -> None:
    """One bucket of 60 ms, of which hosts may take any part: it may buy nothing, and more than the late rank does."""
    network = replace(EIGHT, connections=ring(4, busy_share=0.9))
    answer = found(job(8, forward=late(8, STEPS, rank=3, by_s=late_s), bucket_s=(0.0, 0.0, 0.06)), network).findings
    assert tuple(one.rule for one in answer) == order
    gains = {one.rule: one.gain for one in answer}
    bound, known = gains["network-bound"], gains["slow-rank"]
    assert bound is not None
    assert known is not None
    assert bound.is_at_most
    assert not known.is_at_most
    assert bound.value > known.value


def test_where_hosts_are_known_to_take_no_part_the_network_is_an_estimate_and_the_larger_fault_stands_first() -> None:
    """In a rehearsal the CPU time of ranks tells it."""
    nothing = np.full(8, 1e-4)
    network = replace(EIGHT, connections=ring(4, busy_share=0.9), is_rehearsal=True, cpu_s=nothing, queued_s=nothing)
    both = job(8, forward=late(8, STEPS, rank=3, by_s=0.04), bucket_s=(0.0, 0.0, 0.06))
    answer = found(both, network).findings
    assert [one.rule for one in answer] == ["network-bound", "slow-rank"]
    assert not any(one.gain.is_at_most for one in answer if one.gain is not None)


def test_a_delay_that_a_busy_network_hides_costs_nothing_and_a_note_says_so() -> None:
    """Four 50 ms buckets in flight hide a rank that is 40 ms late in the end of backward (DESIGN §4)."""
    leads = np.tile(np.array([0.035, 0.02, 0.01, 0.0])[:, None], (1, 8))
    leads[:3, 3] += 0.04
    hidden = job(8, backward=late(8, STEPS, rank=3, by_s=0.04), bucket_s=(0.05,) * 4, lead_s=leads)
    answer = found(hidden, replace(EIGHT, connections=ring(4, busy_share=1.0)))
    assert [one.rule for one in answer.findings] == ["network-bound"]
    assert any("Rank 3" in note and "costs nothing now" in note for note in answer.notes)


@pytest.mark.parametrize(("seen_s", "said"), [(0.0001, "costs nothing now"), (0.0018, "a small loss of 1.")])
def test_what_is_left_of_a_hidden_delay_is_called_small_where_it_is_not_nothing(seen_s: float, said: str) -> None:
    """Rank 3 is 20 ms late, and the exchange of gradients hides all but ``seen_s`` of it."""
    lead_s = np.full((2, 8), 0.0)
    lead_s[0] = 0.030
    lead_s[0, 3] += 0.020
    one = job(8, backward=late(8, STEPS, rank=3, by_s=0.020), bucket_s=(0.050 - seen_s, 0.001), lead_s=lead_s)
    answer = found(one, replace(EIGHT, connections=ring(4, busy_share=1.0)))
    assert "slow-rank" not in [finding.rule for finding in answer.findings]
    assert any("Rank 3" in note and said in note for note in answer.notes), answer.notes


def test_a_delay_below_the_error_of_the_clocks_is_called_not_resolvable() -> None:
    small = job(8, forward=late(8, STEPS, rank=3, by_s=0.008), bound_s=0.01)
    answer = found(small, EIGHT)
    assert answer.findings == ()
    assert any("not resolvable" in note and "10 ms" in note for note in answer.notes)
    assert [one.rule for one in found(replace(small, bound_s=0.0), EIGHT).findings] == ["slow-rank"]


def test_a_fault_that_sets_in_half_way_is_sure_all_the_same() -> None:
    half = late(8, STEPS, rank=3, by_s=0.04)
    half[: STEPS // 2] = 0
    (one,) = found(job(8, backward=half), EIGHT).findings
    assert (one.rule, one.ranks) == ("slow-rank", [3])
    assert one.loss_s_per_step == pytest.approx(0.02, rel=0.1)
    assert one.gain is not None
    assert one.gain.low is not None
    assert one.gain.low > 1.15


def test_rotating_lateness_does_not_silence_what_concerns_the_whole_job() -> None:
    """Lateness in turn raises the noise floor of ranks above what the evaluation costs, which is sure all the same.

    It comes at no regular intervals: such pauses are no noise.
    """
    in_turn = np.zeros((STEPS, 8))
    in_turn[np.arange(STEPS), np.random.default_rng(1).integers(8, size=STEPS)] = 0.06
    barrier = Call(use="barrier", at="begin", steps=tuple(range(3, STEPS, 8)))
    scored = only(8, STEPS, seconds=0.1, rank=0, every=8, first=3)
    both = job(8, evaluation=scored, backward=in_turn, calls=[barrier])
    floor_s = facts(both, EIGHT).floor_s
    assert floor_s is not None
    assert floor_s > 0.0125
    answer = {one.rule: one.loss_s_per_step for one in found(both, EIGHT).findings}
    assert answer == pytest.approx({"rotating-imbalance": 0.06, "sequential-evaluation": 0.0125}, rel=0.1)


@pytest.mark.parametrize("share", [0.03, 0.08, 0.15])
def test_nothing_that_may_cost_more_than_two_percent_goes_by_without_a_word(share: float) -> None:
    """Gradients within one host have to take a quarter of a step to be a fault; what takes less is noted."""
    one_host = Machine(hosts=("node1",) * 4)
    answer = found(job(4, bucket_s=(0.0, 0.0, 0.062 * share / (1 - share))), one_host)
    assert answer.findings == ()
    assert answer.undecided
    (note,) = answer.notes
    assert "exchange of gradients" in note
    assert "it may cost" in note


@given(SEEDS)
@settings(max_examples=40)
def test_a_suspect_is_a_finding_or_noted_or_small(seed: int) -> None:
    one = anything(seed, steps=12)
    answer = found(one, Machine(hosts=hosts_of(one.ranks)))
    assert answer.undecided == any("it may cost" in note for note in answer.notes)
    assert all(finding.loss_share is None or finding.loss_share >= MIN_SHARE for finding in answer.findings)


@pytest.mark.parametrize("steps", [8, 10, 15, 20, 25])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_where_one_loader_has_all_the_waiting_it_is_named_and_not_all_ranks(ranks: int, steps: int) -> None:
    machine = Machine(hosts=hosts_of(ranks))
    one = job(ranks, steps=steps, input=0.0002 + late(ranks, steps, rank=1, by_s=0.03))
    (finding,) = found(one, machine).findings
    assert (finding.rule, finding.ranks) == ("slow-loader-rank", [1])
    assert finding.loss_s_per_step == pytest.approx(0.03, rel=0.1)


@given(SEEDS, st.integers(2, 8), st.integers(8, 30))
@settings(max_examples=40)
def test_all_ranks_wait_only_where_half_of_them_do(seed: int, ranks: int, steps: int) -> None:
    """However unsteady the loaders of fewer than half of the ranks, and whether they stand out or not."""
    drawn = np.random.default_rng(seed).exponential(0.05, (steps, ranks))
    drawn[:, (ranks + 1) // 2 - 1 :] = 0
    answer = found(job(ranks, steps=steps, input=drawn), Machine(hosts=hosts_of(ranks)))
    assert "input-bound" not in [one.rule for one in answer.findings]


def test_what_one_of_two_loaders_waits_longer_is_not_promised_to_both() -> None:
    """Both wait 20 ms, and one up to 300 ms more now and then: more workers on all ranks buy the 20 ms."""
    stalls = np.zeros((20, 2))
    stalls[[3, 11], 1] = 0.3
    findings = {
        one.rule: one for one in found(job(2, steps=20, input=0.02 + stalls), Machine(hosts=("a", "b"))).findings
    }
    assert findings["input-bound"].loss_s_per_step == pytest.approx(0.02, rel=0.1)


def test_a_loss_is_there_from_where_it_begins_or_up_to_where_it_ends() -> None:
    loss = np.concatenate([np.zeros(12), np.full(18, 0.1)])
    assert when_there(loss) == slice(12, 30)
    assert when_there(loss[::-1]) == slice(0, 18)
    assert when_there(0.02 + loss[::-1]) is None, "a sixth of it is left: it has not ended"
    assert when_there(loss[:15]) is None
    assert when_there(np.append(loss, np.zeros(12))) == slice(12, 30)
    assert when_there(np.append(loss, np.full(12, 0.06))) == slice(12, 42), "more than half of it is left"
    assert when_there(np.tile([0.0, 0.0, 0.1, 0.1], 15)) is None, "it comes and goes"
    assert when_there(np.full(40, 0.1)) is None
    assert when_there(np.zeros(40)) is None


def test_too_few_steps_give_no_finding_and_no_error() -> None:
    for steps in (1, 2, 7):
        assert found(job(8, steps=steps, forward=late(8, steps, rank=3, by_s=0.04)), EIGHT).findings == ()


@given(SEEDS)
@settings(max_examples=60)
def test_whatever_happens_prices_are_possible_and_in_order(seed: int) -> None:
    one = anything(seed)
    answer = found(one, Machine(hosts=hosts_of(one.ranks))).findings
    priced = [each for each in answer if not each.advice]
    gains = [expected_gain(each.gain) for each in priced]
    assert gains == sorted(gains, reverse=True)
    for each in priced:
        assert each.loss_share is not None
        assert 0 < each.loss_share <= 1
        assert each.gain is not None
        assert each.gain.low is not None
        assert 1 < each.gain.low <= each.gain.value


@given(SEEDS, st.permutations(range(8)))
@settings(max_examples=15)
def test_relabelling_ranks_changes_only_their_names(seed: int, order: list[int]) -> None:
    machine = Machine(hosts=tuple(f"node{rank}" for rank in range(8)))
    one = job(8, forward=late(8, STEPS, rank=2, by_s=0.03), input=late(8, STEPS, rank=6, by_s=0.05), seed=seed % 1000)
    other = replace(machine, hosts=tuple(machine.hosts[rank] for rank in order))
    before = [(each.rule, sorted(each.hosts)) for each in found(one, machine).findings]
    assert before == [(each.rule, sorted(each.hosts)) for each in found(relabelled(one, order), other).findings]


@given(st.floats(1e-2, 1e2))
@settings(max_examples=15)
def test_the_unit_of_time_changes_no_verdict(factor: float) -> None:
    one = job(8, forward=late(8, STEPS, rank=2, by_s=0.03))
    (before,), (after,) = found(one, EIGHT).findings, found(stretched(one, factor), EIGHT).findings
    assert (before.rule, before.ranks) == (after.rule, after.ranks)
    assert after.loss_share == pytest.approx(before.loss_share, rel=1e-6)


def test_findings_survive_hostile_names() -> None:
    hosts = tuple(f"[red]\x1b[31m{rank}\n" for rank in range(8))
    (one,) = found(job(8, forward=late(8, STEPS, rank=2, by_s=0.03)), Machine(hosts=hosts)).findings
    assert one.hosts == [hosts[2]]


def test_lateness_that_grows_is_priced_whole_and_said_to_grow() -> None:
    """Rank 2 is late by nothing at first and by 20 ms in the end: 10 ms a step on average, and none of it is jitter."""
    steps = 120
    ramp = np.zeros((steps, 4))
    ramp[:, 2] = np.linspace(0.0, 0.02, steps)
    late_more, equal = job(4, steps=steps, forward=ramp), job(4, steps=steps)
    (finding,) = found(late_more, Machine(hosts=hosts_of(4))).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [2])
    assert finding.loss_s_per_step == pytest.approx((late_more.measured_s - equal.measured_s) / steps, rel=0.05)
    (end,) = [one for one in finding.evidence if one.what.startswith("cost per step in the end: it grows")]
    assert end.value == pytest.approx(0.02, rel=0.1)


def test_a_loss_by_chance_or_at_once_does_not_grow() -> None:
    drawn = np.random.default_rng(3).exponential(0.01, 200)
    assert line_of(drawn) is None
    assert line_of(np.repeat([0.001, 0.02], 100)) is None
    assert line_of(drawn + np.linspace(0.03, 0.035, 200)) is None, "by a sixth: its mean tells enough"
    line = line_of(np.linspace(0.03, 0.0, 200))
    assert line is not None
    assert line[[0, -1]] == pytest.approx((0.03, 0.0), abs=1e-9)


def test_evaluation_of_all_and_what_one_rank_evaluates_longer_are_not_the_same_time() -> None:
    """All evaluate 150 ms in each fourth step, rank 1 another 150 ms: without the former the latter would be alone."""
    every = np.zeros((STEPS, 2))
    every[::4] = 0.150
    every[::4, 1] += 0.150
    odd = np.arange(STEPS) % 4 == 0
    answer = found(replace(job(2, evaluation=every), odd=odd), Machine(hosts=hosts_of(2)))
    assert {one.rule for one in answer.findings} == {"evaluation-share", "uneven-evaluation"}
    assert not [note for note in answer.notes if "price partly the same time" in note]
