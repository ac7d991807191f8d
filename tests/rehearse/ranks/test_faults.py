"""A planted fault is where, when and as large as it was said to be, and the same each time."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.rehearse.ranks.faults import DISTRIBUTIONS, NOTHING, Extra, Moment, added, meets, read

RANKS = 4


def at(rank: int, step: int, elapsed_s: float = 0.0) -> Moment:
    return Moment(rank=rank, ranks=RANKS, step=step, elapsed_s=elapsed_s)


def test_a_slow_rank_is_slow_alone_and_where_it_was_said():
    faults = read([{"kind": "slow-rank", "rank": 3, "where": "backward", "delay_s": 0.04}])
    assert added(faults, at(3, 7)) == Extra(backward_s=0.04)
    assert {added(faults, at(rank, 7)) for rank in range(3)} == {NOTHING}
    faults = read([{"kind": "slow-rank", "rank": 3, "where": "forward", "delay_s": 0.04}])
    assert added(faults, at(3, 7)) == Extra(forward_s=0.04)


def test_rotating_visits_each_rank_once_in_as_many_steps():
    faults = read([{"kind": "slow-rank", "rank": "rotating", "delay_s": 0.04}])
    for step in range(2 * RANKS):
        slow = [rank for rank in range(RANKS) if added(faults, at(rank, step)) != NOTHING]
        assert slow == [step % RANKS]


@given(st.integers(0, 50), st.floats(0, 50), st.integers(0, 60), st.floats(0, 60))
def test_a_fault_begins_when_both_its_step_and_its_second_have_come(from_step, from_s, step, elapsed_s):
    faults = read([{"kind": "slow-loader", "delay_s": 0.1, "from_step": from_step, "from_s": from_s}])
    begun = step >= from_step and elapsed_s >= from_s
    assert added(faults, at(1, step, elapsed_s)) == (Extra(input_s=0.1) if begun else NOTHING)


def test_a_slow_loader_without_a_rank_is_everyones():
    faults = read([{"kind": "slow-loader", "rank": None, "delay_s": 0.1}])
    assert {added(faults, at(rank, 0)) for rank in range(RANKS)} == {Extra(input_s=0.1)}


def test_a_pause_is_of_all_ranks_or_of_another_one_each_time():
    (of_all,) = read([{"kind": "pause", "every": 3, "duration_s": 0.5}])
    (in_turn,) = read([{"kind": "pause", "every": 3, "duration_s": 0.5, "rank": "rotating"}])
    paused = [
        [[fault.adds(Moment(rank=rank, ranks=2, step=step)).forward_s for rank in range(2)] for step in range(9)]
        for fault in (of_all, in_turn)
    ]
    assert [step for step, seconds in enumerate(paused[0]) if seconds == [0.5, 0.5]] == [2, 5, 8]
    assert [seconds for seconds in paused[1] if any(seconds)] == [[0.0, 0.5], [0.5, 0.0], [0.0, 0.5]]


def test_uneven_evaluation_is_of_one_rank_and_of_the_common_evaluation():
    (fault,) = read([{"kind": "uneven-evaluation", "rank": 1, "duration_s": 0.5}])
    each = [fault.adds(Moment(rank=rank, ranks=2, step=4)) for rank in range(2)]
    assert [one.common_evaluation_s for one in each] == [0.0, 0.5]
    assert not any(one.evaluation_s for one in each)


def test_rank_0_evaluates_and_saves_alone_after_every_k_steps():
    faults = read(
        [
            {"kind": "sequential-evaluation", "every": 10, "duration_s": 0.5},
            {"kind": "sequential-checkpoint", "every": 4, "duration_s": 0.3},
        ]
    )
    found = {step: added(faults, at(0, step)) for step in range(20)}
    assert [step for step, extra in found.items() if extra.evaluation_s == 0.5] == [9, 19]
    assert [step for step, extra in found.items() if extra.checkpoint_s == 0.3] == [3, 7, 11, 15, 19]
    assert {added(faults, at(rank, step)) for rank in range(1, RANKS) for step in range(20)} == {NOTHING}


def test_ranks_agree_on_the_barrier_whatever_their_clocks_say():
    """A barrier that depended on the second when the fault begins would hang: ranks do not reach it together."""
    faults = read([{"kind": "sequential-evaluation", "every": 5, "duration_s": 0.5, "from_s": 3.0, "from_step": 7}])
    assert [step for step in range(15) if meets(faults, step)] == [4, 9, 14]
    assert not meets(read([{"kind": "sequential-checkpoint", "every": 5, "duration_s": 0.5}]), 4)


def test_uneven_shards_multiply():
    faults = read([{"kind": "uneven-shards", "rank": 1, "factor": factor} for factor in (1.5, 2.0)])
    assert added(faults, at(1, 0)).share == 3.0
    assert added(faults, at(0, 0)).share == 1.0


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_jitter_has_the_spread_that_was_said_and_the_mean_of_its_distribution(distribution):
    """4,000 fixed draws: the sample's mean and deviation are within a few standard errors of the truth."""
    std_s = 0.005
    faults = read([{"kind": "jitter", "distribution": distribution, "std_s": std_s}])
    draws = [added(faults, at(rank, step)).forward_s for rank in range(RANKS) for step in range(1000)]
    mean = {"normal": 0.0, "exponential": 1.0, "lognormal": 1.0, "uniform": 3**0.5}[distribution]
    assert statistics.pstdev(draws) == pytest.approx(std_s, rel=0.1)
    assert statistics.fmean(draws) == pytest.approx(mean * std_s, abs=0.05 * std_s)
    assert distribution == "normal" or min(draws) >= 0
    assert distribution != "uniform" or max(draws) <= 12**0.5 * std_s


def test_jitter_is_the_same_each_time_and_its_own_on_each_rank():
    plain = {"kind": "jitter", "distribution": "exponential", "std_s": 0.005}
    moments = [at(rank, step) for rank in range(RANKS) for step in range(100)]
    first, again = ([added(read([plain]), moment) for moment in moments] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(moments)
    assert first != [added(read([{**plain, "seed": 1}]), moment) for moment in moments]


def test_jitter_of_no_size_is_none():
    for distribution in DISTRIBUTIONS:
        faults = read([{"kind": "jitter", "distribution": distribution, "std_s": 0.0}])
        assert added(faults, at(2, 3)) == NOTHING


@given(st.permutations(range(4)))
def test_faults_add_up_in_any_order(order):
    plain = [
        {"kind": "slow-rank", "rank": 1, "where": "forward", "delay_s": 0.25},
        {"kind": "slow-rank", "rank": 1, "where": "backward", "delay_s": 0.5},
        {"kind": "slow-loader", "rank": 1, "delay_s": 0.125},
        {"kind": "uneven-shards", "rank": 1, "factor": 2.0},
    ]
    total = added(read([plain[index] for index in order]), at(1, 0))
    assert total == Extra(forward_s=0.25, backward_s=0.5, input_s=0.125, share=2.0)


def test_faults_of_other_rooms_are_left_to_them():
    assert read([{"kind": "slow-link", "host": 1, "factor": 0.1}, {"kind": "kill-rank", "rank": 0}]) == ()


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"kind": "slow-rank", "delay_s": 0.1}, "rank"),
        ({"kind": "slow-rank", "rank": 0, "delay": 0.1}, "no field delay"),
        ({"kind": "slow-rank", "rank": "odd", "delay_s": 0.1}, "rank is 'odd'"),
        ({"kind": "slow-rank", "rank": 0, "delay_s": 0.1, "where": "sideways"}, "where is 'sideways'"),
        ({"kind": "slow-rank", "rank": 0, "delay_s": float("nan")}, "delay_s is nan"),
        ({"kind": "slow-loader", "delay_s": -1.0}, "delay_s is -1.0"),
        ({"kind": "jitter", "distribution": "cauchy", "std_s": 0.1}, "distribution is 'cauchy'"),
        ({"kind": "sequential-evaluation", "every": 0, "duration_s": 0.1}, "every is 0"),
    ],
)
def test_a_fault_that_cannot_be_planted_is_named_with_what_is_wrong(plain, said):
    with pytest.raises(BadInput, match=said) as caught:
        read([{"kind": "slow-loader", "delay_s": 0.1}, plain])
    assert f"faults[1] ({plain['kind']})" in caught.value.message
    assert caught.value.hint
