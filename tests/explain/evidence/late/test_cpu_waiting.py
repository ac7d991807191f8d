"""What the thread that trains waited for a CPU is told from what a rank does itself, step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import STEPS, found, hosts_of, job, rules

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.lateness import late_ranks
from allpull.replay.engine import replay
from allpull.replay.window import Window

TWO = Machine(hosts=("node1", "node1"))


def held(
    ranks: int = 2, *, mean_s: tuple[float, ...], sd_s: float, own_s: tuple[float, ...] | None = None, seed: int = 3
) -> Window:
    """A window whose ranks had no CPU for ``mean_s`` a step, and computed ``own_s`` longer of themselves."""
    rng = np.random.default_rng(seed)
    queued_s = np.maximum(np.array(mean_s) + rng.normal(0.0, sd_s, (STEPS, ranks)), 0.0)
    more_s = queued_s + (0.0 if own_s is None else np.array(own_s))
    return replace(job(ranks, forward=more_s), queued_s=queued_s)


def test_a_rank_that_waits_for_a_cpu_is_crowded_and_not_slow() -> None:
    findings = found(held(mean_s=(0.001, 0.030), sd_s=0.002), TWO).findings
    assert [(one.rule, one.ranks) for one in findings] == [("cpu-contention", [1])]
    assert findings[0].evidence[0].value == pytest.approx(0.029, abs=0.001)


def test_a_rank_that_is_late_by_itself_stands_out_below_the_noise_of_a_crowded_machine() -> None:
    one = held(mean_s=(0.008, 0.008), sd_s=0.010, own_s=(0.0, 0.005))
    assert not late_ranks(replace(one, queued_s=None), TWO).slow
    (slow,) = late_ranks(one, TWO).slow
    assert slow.rank == 1
    assert slow.size.value == pytest.approx(0.005, rel=0.1)


def test_a_late_rank_of_a_crowded_machine_costs_what_the_noise_does_not_hide() -> None:
    crowded = {"mean_s": (0.008, 0.008), "sd_s": 0.010}
    one, healthy = held(**crowded, own_s=(0.0, 0.015)), held(**crowded)
    (slow,) = (finding for finding in found(one, TWO).findings if finding.rule == "slow-rank")
    assert slow.ranks == [1]
    assert slow.gain.value == pytest.approx(replay(one).total_s / replay(healthy).total_s, rel=0.005)
    assert slow.gain.value < 1.145  # 1.20 without noise of its own


def test_a_rank_may_be_both() -> None:
    findings = found(held(mean_s=(0.001, 0.040), sd_s=0.001, own_s=(0.0, 0.015)), TWO).findings
    assert {one.rule: one.ranks for one in findings} == {"cpu-contention": [1], "slow-rank": [1]}
    size = {one.rule: one.evidence[0].value for one in findings}
    assert size == {"cpu-contention": pytest.approx(0.039, rel=0.05), "slow-rank": pytest.approx(0.015, rel=0.05)}
    cost = {one.rule: one.loss_s_per_step for one in findings}
    assert cost["cpu-contention"] == pytest.approx(0.039, rel=0.1)
    assert cost["slow-rank"] == pytest.approx(0.015, rel=0.15)


def test_all_that_wait_alike_are_told_at_most() -> None:
    finding = found(held(mean_s=(0.050, 0.050), sd_s=0.003), TWO).findings[0]
    assert (finding.rule, finding.ranks) == ("cpu-contention", [])
    assert finding.gain is not None
    assert finding.gain.low == pytest.approx(1.0)
    assert finding.gain.high == pytest.approx(finding.gain.value)
    assert finding.evidence[0].value == pytest.approx(0.050, rel=0.05)


def test_chance_that_a_crowded_machine_makes_rotates_no_fault_into_the_program() -> None:
    one = held(4, mean_s=(0.004,) * 4, sd_s=0.012)
    assert "rotating-imbalance" in rules(replace(one, queued_s=None))
    assert "rotating-imbalance" not in rules(one)


def test_a_rank_that_looks_for_the_others_while_it_waits_is_not_late_because_of_that() -> None:
    """Rank 1 is 50 ms late; rank 0 waits for it busily, and has no CPU for 40 ms of that."""
    one = job(2, forward=np.tile([0.0, 0.05], (STEPS, 1)))
    busily = replace(one, queued_s=np.tile([0.04, 0.0005], (STEPS, 1)))
    named = [(finding.rule, finding.ranks) for finding in found(busily, TWO).findings if finding.ranks]
    assert named == [("slow-rank", [1])]


def test_a_loader_that_waits_for_a_cpu_in_the_thread_that_trains_is_a_slow_loader() -> None:
    one = job(2, input=np.tile([0.0, 0.03], (STEPS, 1)))
    crowded = replace(one, queued_s=np.tile([0.0005, 0.03], (STEPS, 1)))
    named = [(finding.rule, finding.ranks) for finding in found(crowded, TWO).findings if finding.ranks]
    assert named == [("slow-loader-rank", [1])]


def test_one_rank_of_two_that_waits_is_not_all_of_them() -> None:
    rng = np.random.default_rng(1)
    bursts_s = np.where(rng.random((STEPS, 2)) < 0.3, 0.08, 0.0) * [0.0, 1.0]
    one = replace(job(2, forward=bursts_s), queued_s=bursts_s)
    assert [finding.ranks for finding in found(one, TWO).findings if finding.rule == "cpu-contention"] in ([], [[1]])


def test_lateness_that_queues_may_explain_is_told_of() -> None:
    """All wait for 30 ms, and rank 1 computes 25 ms longer: where in the step ranks waited is not known."""
    answer = found(held(mean_s=(0.03, 0.03), sd_s=0.001, own_s=(0.0, 0.025)), TWO)
    named = {rank for finding in answer.findings for rank in finding.ranks}
    assert named == {1} or (answer.undecided and any("Rank 1" in note for note in answer.notes))


def test_a_rehearsal_has_no_use_for_the_thread_that_stands_for_an_accelerator() -> None:
    machine = Machine(hosts=hosts_of(2), is_rehearsal=True)
    assert rules(held(mean_s=(0.0, 0.030), sd_s=0.002), machine) == ["slow-rank"]
