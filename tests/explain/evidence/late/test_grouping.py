"""Many culprits: all are mended together and named together, however many there are, and hide nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.made import STEPS, found, hosts_of, job
from tests.replay.windows import late, relabelled

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.grouping import MANY, groups, named
from allpull.explain.evidence.late.outliers import Outlier
from allpull.schema.results import Interval


def slow(ranks: int, which: list[int], by_s: float = 0.03) -> np.ndarray:
    return by_s * np.isin(np.arange(ranks), which) * np.ones((STEPS, 1))


def outstanding(rank: int, by_s: float) -> Outlier:
    return Outlier(rank=rank, size=Interval(value=by_s, low=None, high=None), steady=True)


@pytest.mark.parametrize(("ranks", "every"), [(36, 4), (64, 4), (20, 2)])
def test_slow_ranks_are_one_finding_that_costs_what_they_are_late_by(ranks: int, every: int) -> None:
    """Nine of 36 as sixteen of 64 and half of 20: on each host the same local rank."""
    which = list(range(0, ranks, every))
    answer = found(job(ranks, backward=slow(ranks, which)), Machine(hosts=hosts_of(ranks, every)))
    (one,) = answer.findings
    assert (one.rule, one.ranks) == ("slow-rank", which)
    assert one.loss_s_per_step == pytest.approx(0.03, rel=0.1)
    assert "local rank 0 of every host" in one.title
    assert all("small loss" in note for note in answer.notes)


def test_slow_loaders_of_many_ranks_are_one_finding() -> None:
    (one,) = found(job(32, input=slow(32, list(range(12)))), Machine(hosts=hosts_of(32))).findings
    assert (one.rule, one.ranks) == ("slow-loader-rank", list(range(12)))
    assert one.loss_s_per_step == pytest.approx(0.03, rel=0.1)


def test_groups_of_two_faults_hide_each_other_and_both_are_priced() -> None:
    """Ten ranks 60 ms late in backward, and six others 20 ms in forward: 40 ms, then 20."""
    both = job(40, backward=slow(40, list(range(10)), 0.06), forward=slow(40, list(range(20, 26)), 0.02))
    answer = found(both, Machine(hosts=hosts_of(40, 1))).findings
    assert [one.ranks for one in answer] == [list(range(10)), list(range(20, 26))]
    assert [one.loss_s_per_step for one in answer] == pytest.approx([0.06, 0.02], rel=0.1)


def test_more_suspects_than_are_priced_hide_nobody() -> None:
    """Ten slow hosts of two ranks each, of which eight are shown with what they are late by; a note counts the rest."""
    ranks = 40
    by_host = 0.02 + 0.002 * np.repeat(np.arange(10), 2)
    late_s = np.zeros((STEPS, ranks))
    late_s[:, :20] = by_host
    answer = found(job(ranks, forward=late_s), Machine(hosts=hosts_of(ranks)))
    assert [one.rule for one in answer.findings] == ["uneven-hosts"] * 8
    assert [one.loss_s_per_step for one in answer.findings] == pytest.approx(
        [0.038, 0.036, 0.034, 0.032, 0.030, 0.028, 0.026, 0.024], rel=0.1
    )
    assert any("2 more candidates of uneven-hosts" in note for note in answer.notes)


def test_a_rank_that_is_late_by_next_to_nothing_is_no_reason_for_anything() -> None:
    """Two of four ranks 0.1 % late, and a third 20 ms: the third is priced against an ordinary rank, not half of it."""
    small = late(4, STEPS, rank=0, by_s=6e-5) + late(4, STEPS, rank=1, by_s=6e-5)
    one = job(4, noise_s=1e-6, forward=small, backward=late(4, STEPS, rank=2, by_s=0.02))
    (finding,) = found(one, Machine(hosts=hosts_of(4))).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [2])
    assert finding.loss_s_per_step == pytest.approx(0.02, rel=0.05)


def test_a_slow_host_is_no_model_for_a_rank_with_more_work() -> None:
    """Of four ranks a whole host is 4 ms late, and one of the other 20 ms: they cost 20 ms and 4."""
    host = late(4, STEPS, rank=0, by_s=0.004) + late(4, STEPS, rank=1, by_s=0.004)
    samples = np.array([32.0, 32.0, 32.0 * 4 / 3, 32.0])
    more = late(4, STEPS, rank=2, by_s=0.02)
    both = job(4, noise_s=1e-5, samples=samples, forward=host, backward=more)
    answer = {one.rule: one.loss_s_per_step for one in found(both, Machine(hosts=hosts_of(4))).findings}
    assert answer["uneven-hosts"] == pytest.approx(0.004, rel=0.1)


@given(st.lists(st.tuples(st.floats(1e-3, 1.0), st.sampled_from("ab")), min_size=1, max_size=30))
@settings(max_examples=60)
def test_every_rank_is_in_one_group_of_its_fault_and_size(made: list[tuple[float, str]]) -> None:
    made.sort(reverse=True)
    fault = dict(enumerate(one for _, one in made))
    every = [outstanding(rank, by_s) for rank, (by_s, _) in enumerate(made)]
    grouped = groups(every, lambda one: fault[one.rank])
    assert sorted(rank for group in grouped for rank in group.ranks) == list(range(len(made)))
    assert [group.size.value for group in grouped] == sorted((group.size.value for group in grouped), reverse=True)
    for group in grouped:
        assert len(group.ranks) == 1 or len(group.ranks) >= MANY
        assert len({fault[rank] for rank in group.ranks}) == 1
        assert group.members[-1].size.value >= 0.5 * group.size.value


def test_two_equal_ranks_stay_two() -> None:
    assert [group.ranks for group in groups([outstanding(3, 0.1), outstanding(1, 0.1)], lambda _: "")] == [(3,), (1,)]


@pytest.mark.parametrize(
    ("ranks", "hosts", "said"),
    [
        ([1, 3, 5], hosts_of(6), "3 ranks, local rank 1 of every host,"),
        ([1, 3, 5], hosts_of(8), "3 ranks, local rank 1 of 3 hosts,"),
        ([0, 3, 5], hosts_of(6), "Ranks 0, 3, 5"),
        (list(range(9)), ("a",) * 12, "Ranks 0, 1, 2, 3, 4, 5 and 3 more"),
        ([0, 1, 2], ("a", "b", "c", "d"), "Ranks 0, 1, 2"),
        ([0, 1, 2], ("",) * 6, "Ranks 0, 1, 2"),
    ],
)
def test_ranks_are_named_by_what_they_have_in_common(ranks: list[int], hosts: tuple[str, ...], said: str) -> None:
    assert named(ranks, Machine(hosts=hosts)) == said


@given(st.permutations(range(16)))
@settings(max_examples=5)
def test_relabelling_many_slow_ranks_changes_only_their_names(order: list[int]) -> None:
    one = job(16, forward=slow(16, [0, 3, 4, 9, 11]))
    machine = Machine(hosts=tuple(f"n{rank}" for rank in range(16)))
    other = Machine(hosts=tuple(machine.hosts[rank] for rank in order))
    (before,), (after,) = found(one, machine).findings, found(relabelled(one, order), other).findings
    assert sorted(before.hosts) == sorted(after.hosts)
    assert after.loss_s_per_step == pytest.approx(before.loss_s_per_step, rel=1e-9)
