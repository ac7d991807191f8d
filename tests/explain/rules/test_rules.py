"""Each rule finds what is planted for it, names who it is and how large, and no other rule speaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.explain.made import (
    BACKWARD_S,
    BUCKETS,
    FORWARD_S,
    STEPS,
    crowded,
    facts,
    found,
    hosts_of,
    job,
    ring,
    rules,
)
from tests.replay.windows import Call, jitter, late, only, rotating, window

from allpull.explain.evidence.facts import OtherRun
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.loading.loader_pace import LoaderPace
from allpull.explain.rules import input_bound, slow_loader_rank
from allpull.explain.rules.drift import two_levels
from allpull.replay.engine import replay
from allpull.replay.window import Window
from allpull.schema.explained import Finding
from allpull.schema.gap import Gap

EIGHT = Machine(hosts=hosts_of(8))


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault: the window, the machine, and the finding that must come out alone."""

    rule: str
    made: Callable[[], Window]
    machine: Machine = EIGHT
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    loss_s: float | None = None
    first: tuple[int, ...] = ()
    is_bound: bool = False


def shards(share: float, rank: int) -> Window:
    samples = np.full(8, 32.0)
    samples[rank] *= share
    more = late(8, STEPS, rank=rank, by_s=1.0)
    return job(8, samples=samples, forward=more * FORWARD_S * (share - 1), backward=more * BACKWARD_S * (share - 1))


def evaluated(rank: int | None, seconds: float) -> Window:
    scored = only(8, STEPS, seconds=seconds, rank=rank, every=8, first=3)
    barrier = Call(use="barrier", at="begin", steps=tuple(range(3, STEPS, 8)))
    return job(8, evaluation=scored, calls=[barrier])


def late_host() -> Window:
    return job(8, forward=late(8, STEPS, rank=4, by_s=0.02) + late(8, STEPS, rank=5, by_s=0.02))


WAITED = replace(EIGHT, read_bytes_per_s=1e8, storage_read_bytes_per_s=9e7)
FULL = replace(
    EIGHT, cpus={f"node{host}": 8.0 for host in range(1, 5)}, cpu_s=np.full(8, 3.9), started=5, is_rehearsal=False
)
PLANTED = (
    Planted(
        rule="slow-rank",
        made=lambda: job(8, backward=late(8, STEPS, rank=3, by_s=0.02)),
        ranks=(3,),
        hosts=("node2",),
        loss_s=0.02,
    ),
    Planted(
        rule="slow-rank",
        made=lambda: job(8, forward=late(8, STEPS, rank=6, by_s=0.008)),
        ranks=(6,),
        hosts=("node4",),
        loss_s=0.008,
    ),
    Planted(rule="uneven-hosts", made=late_host, ranks=(4, 5), hosts=("node3",), loss_s=0.02),
    Planted(rule="uneven-shards", made=lambda: shards(1.4, 2), ranks=(2,), hosts=("node2",), loss_s=0.021),
    Planted(
        rule="slow-loader-rank",
        made=lambda: job(8, input=late(8, STEPS, rank=7, by_s=0.03)),
        ranks=(7,),
        hosts=("node4",),
        loss_s=0.03,
    ),
    Planted(
        rule="cpu-contention",
        made=lambda: job(8, forward=late(8, STEPS, rank=1, by_s=0.02)),
        machine=crowded(EIGHT, (1,), 0.3),
        ranks=(1,),
        hosts=("node1",),
        loss_s=0.02,
    ),
    Planted(rule="cpu-contention", made=lambda: job(8), machine=crowded(EIGHT, tuple(range(8)), 0.3), is_bound=True),
    Planted(rule="rotating-imbalance", made=lambda: job(8, forward=rotating(8, STEPS, by_s=0.02)), loss_s=0.02),
    Planted(rule="rotating-imbalance", made=lambda: job(8, backward=rotating(8, STEPS, by_s=0.01)), loss_s=0.01),
    Planted(rule="input-bound", made=lambda: job(8, input=0.03), loss_s=0.03),
    Planted(rule="input-bound", made=lambda: job(8, input=0.03), machine=WAITED, loss_s=0.03),
    Planted(rule="preprocess-offline", made=lambda: job(8, input=0.03), machine=FULL, loss_s=0.03),
    Planted(
        rule="first-batch-stall",
        made=lambda: job(8, input=only(8, STEPS, seconds=0.5, every=10), odd=np.arange(STEPS) % 10 == 0),
        first=(0, 10, 20, 30),
        loss_s=0.05,
    ),
    Planted(rule="sequential-evaluation", made=lambda: evaluated(0, 0.2), ranks=(0,), hosts=("node1",), loss_s=0.025),
    Planted(rule="evaluation-share", made=lambda: evaluated(None, 0.4), loss_s=0.05),
    Planted(
        rule="sequential-checkpoint",
        made=lambda: job(8, checkpoint=only(8, STEPS, seconds=0.2, rank=0, every=8, first=3)),
        ranks=(0,),
        hosts=("node1",),
        loss_s=0.025,
    ),
    Planted(
        rule="checkpoint-share", made=lambda: job(8, checkpoint=only(8, STEPS, seconds=0.2, every=8)), loss_s=0.025
    ),
    Planted(
        rule="slow-link",
        made=lambda: job(8, bucket_s=(0.030, 0.040, 0.020)),
        machine=replace(EIGHT, connections=ring(4, {(1, 2): 1e6, (2, 3): 1e6}, busy_share=1.0)),
        ranks=(4, 5),
        hosts=("node3",),
    ),
    Planted(
        rule="shared-uplink",
        made=lambda: job(8, bucket_s=(0.030, 0.040, 0.020)),
        machine=replace(EIGHT, connections=ring(4, {(1, 2): 1e6, (3, 0): 1e6}, busy_share=1.0)),
    ),
    Planted(
        rule="network-bound",
        made=lambda: job(8, bucket_s=(0.030, 0.040, 0.020)),
        machine=replace(EIGHT, connections=ring(4, busy_share=1.0)),
    ),
    Planted(rule="network-bound", made=lambda: job(8, bucket_s=(0.030, 0.040, 0.020))),
    Planted(
        rule="latency-bound",
        made=lambda: job(8, bucket_s=(0.020,) * 8, sizes=(10**6,) * 8),
        machine=replace(EIGHT, round_trip_s=0.004, connections=ring(4, busy_share=0.05)),
    ),
    Planted(
        rule="latency-bound",
        made=lambda: job(8, bucket_s=(0.040,) * 4 + (0.002,), sizes=(2 * 10**6,) * 4 + (10**5,)),
        machine=replace(EIGHT, round_trip_s=0.004, connections=ring(4, busy_share=0.05), uses_gloo=True),
    ),
    Planted(
        rule="no-overlap",
        made=lambda: job(8, bucket_s=(0.006, 0.0001), lead_s=(0.0003, 0.0)),
        machine=replace(EIGHT, connections=ring(4, busy_share=0.1)),
    ),
    Planted(rule="launch-bound", made=lambda: job(8, host=0.02), loss_s=0.02),
    Planted(rule="copy-bound", made=lambda: job(8, copy=0.02), loss_s=0.02),
    Planted(rule="between-phases", made=lambda: job(8, other=0.02), loss_s=0.02, is_bound=True),
    Planted(
        rule="observation-cost",
        made=lambda: job(8, other=0.002),
        machine=replace(EIGHT, recording_share=0.02),
    ),
)


def only_finding(planted: Planted) -> Finding:
    first = np.isin(np.arange(STEPS), planted.first)
    answer = found(planted.made(), planted.machine, first=first)
    assert [one.rule for one in answer.findings] == [planted.rule], [one.title for one in answer.findings]
    return answer.findings[0]


@pytest.mark.parametrize("planted", PLANTED, ids=[f"{number}-{one.rule}" for number, one in enumerate(PLANTED)])
def test_a_fault_is_found_named_and_priced_and_nothing_else_is(planted: Planted) -> None:
    finding = only_finding(planted)
    assert tuple(finding.ranks) == planted.ranks
    assert tuple(finding.hosts) == planted.hosts
    assert not finding.advice
    assert finding.gain is not None
    assert finding.gain.low is not None
    assert 1 <= finding.gain.low <= finding.gain.value
    assert (finding.gain.low == 1) == planted.is_bound
    if planted.loss_s is not None:
        assert finding.loss_s_per_step == pytest.approx(planted.loss_s, rel=0.15)
    assert finding.remedy
    assert finding.wrong_when
    assert all(np.isfinite(one.value) and one.unit and one.source for one in finding.evidence)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("noise_s", [0.0, 0.0005, 0.001])
def test_a_healthy_run_is_healthy(ranks: int, noise_s: float) -> None:
    machine = Machine(hosts=hosts_of(ranks), connections=ring(max(2, ranks // 2), busy_share=0.1), round_trip_s=1e-4)
    for seed in range(8):
        answer = found(job(ranks, noise_s=noise_s, seed=2 * seed), machine)
        assert answer.findings == (), [one.title for one in answer.findings]


def test_one_rank_alone_is_healthy() -> None:
    assert rules(job(1), Machine(hosts=("node1",))) == []


def test_a_host_all_of_whose_ranks_are_slow_is_one_finding_and_two_ranks_of_two_hosts_are_two() -> None:
    apart = job(8, forward=late(8, STEPS, rank=1, by_s=0.02) + late(8, STEPS, rank=2, by_s=0.03))
    assert [(one.rule, one.ranks) for one in found(apart, EIGHT).findings] == [("slow-rank", [2]), ("slow-rank", [1])]


def test_more_samples_and_a_slower_rank_are_told_apart() -> None:
    both = shards(1.4, 2)
    slower = replace(
        both, work={**both.work, "optimizer": both.work["optimizer"] + 0.03 * both.work["optimizer"][:, :1]}
    )
    assert set(rules(slower, EIGHT)) == {"uneven-shards"}
    work = dict(both.work)
    rows = work["forward"] > 0
    work["forward"] = work["forward"] + np.where(rows, np.arange(8) == 2, 0) * 0.03
    answer = found(replace(both, work=work), EIGHT).findings
    assert {(one.rule, tuple(one.ranks)) for one in answer} == {("uneven-shards", (2,)), ("slow-rank", (2,))}
    sizes = {one.rule: one.loss_s_per_step for one in answer}
    assert sizes["uneven-shards"] == pytest.approx(0.021, rel=0.1)
    assert sizes["slow-rank"] == pytest.approx(0.03 / 1.4, rel=0.25)


def test_more_samples_that_cost_nothing_are_no_fault() -> None:
    samples = np.full(8, 32.0)
    samples[2] = 64
    assert rules(job(8, samples=samples), EIGHT) == []


def test_what_all_loaders_wait_and_what_one_waits_longer_are_told_apart() -> None:
    one = job(8, input=0.02 + late(8, STEPS, rank=5, by_s=0.03))
    answer = {(each.rule, tuple(each.ranks)): each.loss_s_per_step for each in found(one, EIGHT).findings}
    assert answer == {
        ("input-bound", ()): pytest.approx(0.02, rel=0.1),
        ("slow-loader-rank", (5,)): pytest.approx(0.03, rel=0.1),
    }


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_sleep_between_their_phases_in_turn_are_one_finding(ranks: int) -> None:
    """18 ms each, which none of the others has in that step: nothing of it is common to all."""
    one = job(ranks, other=0.0005 + rotating(ranks, STEPS, by_s=0.018))
    (finding,) = found(one, Machine(hosts=hosts_of(ranks))).findings
    assert finding.rule == "rotating-imbalance"
    assert finding.evidence[0].value == pytest.approx(0.018, rel=0.05)


@pytest.mark.parametrize(("environment", "advice"), [(0.7, "AsyncVectorEnv"), (0.1, "callbacks")])
def test_rollouts_that_take_most_of_the_time_are_named_without_a_price(environment: float, advice: str) -> None:
    step_s = float(job(2).wall_s.mean())
    collected = {"environment": environment * step_s, "rollout": (0.8 - environment) * step_s}
    (finding,) = found(job(2), Machine(hosts=hosts_of(2)), rollouts_s=collected, has_epochs=False).findings
    assert (finding.rule, finding.gain, finding.advice) == ("evaluation-share", None, True)
    assert "rollouts takes 80 %" in finding.title
    assert advice in finding.remedy
    usual = {"environment": 0.2 * step_s, "rollout": 0.2 * step_s}
    assert not found(job(2), Machine(hosts=hosts_of(2)), rollouts_s=usual, has_epochs=False).findings


def test_rare_stalls_are_not_called_rotating() -> None:
    stalls = np.random.default_rng(0).random((STEPS, 8)) < 0.01
    assert "rotating-imbalance" not in rules(job(8, forward=0.2 * stalls), EIGHT)


def test_ranks_that_each_pause_every_so_many_steps_are_told_with_their_intervals() -> None:
    """Rank 0 draws a plot every 20 steps, and rank 1 rotates its log every 30: no jitter, and no matter of the host."""
    pauses = only(2, 240, seconds=0.3, rank=0, every=20, first=10) + only(
        2, 240, seconds=0.24, rank=1, every=30, first=25
    )
    (finding,) = found(job(2, steps=240, other=pauses)).findings
    assert finding.rule == "rotating-imbalance"
    assert "rank 0 every 20 steps, rank 1 every 30 steps" in finding.title
    assert "logging" in finding.remedy
    assert finding.loss_s_per_step == pytest.approx((12 * 0.3 + 8 * 0.24) / 240, rel=0.03)
    at_random = np.random.default_rng(1).permutation(240)
    (finding,) = found(job(2, steps=240, other=pauses[at_random])).findings
    assert " every " not in finding.title
    assert "sort by length" in finding.remedy


def test_jitter_of_all_ranks_is_rotating_and_its_size_is_what_the_last_of_them_loses() -> None:
    """The mean of the largest of 8 exponential delays is 2.72 times theirs (Σ 1/k), and all of it is lost."""
    drawn = np.random.default_rng(1).exponential(0.01, (200, 8))
    (one,) = found(job(8, steps=200, forward=drawn), EIGHT).findings
    assert one.rule == "rotating-imbalance"
    assert one.loss_s_per_step == pytest.approx(0.0272, rel=0.1)


def test_work_that_varies_is_priced_from_equal_work_to_none_that_varies() -> None:
    """Of two ranks whose work varies by an exponential law of mean m, max − mean = m/2 is what equal work saves."""
    drawn = np.random.default_rng(2).exponential(0.02, (400, 2))
    one = next(
        each
        for each in found(job(2, steps=400, forward=drawn), Machine(hosts=hosts_of(2))).findings
        if each.rule == "rotating-imbalance"
    )
    step_s = replay(job(2, steps=400, forward=drawn)).total_s / 400
    shared_out = step_s / (step_s - float((drawn.max(axis=1) - drawn.mean(axis=1)).mean()))
    assert one.gain is not None
    assert one.gain.low == pytest.approx(shared_out, rel=0.06)
    assert one.gain.low < one.gain.value < one.gain.high


def test_a_slow_rank_does_not_look_like_a_slow_network_nor_the_other_way_round() -> None:
    delayed = job(8, backward=late(8, STEPS, rank=3, by_s=0.1))
    thin = job(8, bucket_s=(0.05, 0.06, 0.04))
    machine = replace(EIGHT, connections=ring(4, busy_share=0.9))
    assert rules(delayed, machine) == ["slow-rank"]
    assert rules(thin, machine) == ["network-bound"]


def test_an_idle_network_is_not_blamed_for_what_its_hosts_take() -> None:
    """Gradients that take 9 % of a step, while the connections between hosts are busy for 2 % of it."""
    slow_hosts = job(8, bucket_s=(0.002, 0.003, 0.006))
    idle = replace(EIGHT, connections=ring(4, busy_share=0.02))
    assert rules(slow_hosts, idle) == []


def test_a_tiny_exchange_that_waits_for_cpus_is_not_called_a_slow_network() -> None:
    """16 kB in 60 ms, on one host whose ranks wait for a CPU: not the network's, as 64 MB may be."""
    alone = Machine(hosts=("node1",) * 4)
    busy = crowded(alone, tuple(range(4)), 0.4)
    tiny, large = (job(4, bucket_s=(0.060,), sizes=(size,)) for size in (16_000, 64_000_000))
    (contended,) = found(tiny, busy).findings
    assert contended.rule == "cpu-contention"
    assert contended.gain is not None
    assert (contended.gain.low, contended.gain.high) == (pytest.approx(1.0), contended.gain.value)
    assert contended.loss_s_per_step == pytest.approx(0.060 + 0.4 * 0.122, rel=0.05)  # of a step of 122 ms
    assert "network-bound" in rules(large, busy)
    (late,) = found(tiny, alone).findings
    assert late.rule == "network-bound"
    assert "15.6 KiB per step are too few to take that long: threads are woken late" in late.remedy
    assert "fp16" not in late.remedy
    assert "bucket_cap_mb" not in late.remedy
    many = job(4, bucket_s=(0.006,) * 10, sizes=(1_600,) * 10)
    joined = next(one for one in found(many, alone).findings if one.rule == "network-bound")
    assert "in fewer buckets: DDP(model, bucket_cap_mb=25)" in joined.remedy
    assert next(one.value for one in joined.evidence if one.what == "buckets of a step") == 10
    (waiting,) = found(many, busy).findings
    assert waiting.rule == "cpu-contention"
    assert waiting.remedy.startswith("exchange gradients in fewer buckets: DDP(model, bucket_cap_mb=25)")
    assert "fewer buckets" not in contended.remedy
    full = next(one for one in found(large, alone).findings if one.rule == "network-bound")
    assert "fp16_compress_hook" in full.remedy
    assert "woken" not in full.remedy


def test_deepspeed_is_told_its_own_settings() -> None:
    gathers = Call(use="all_gather_into_tensor in forward", at="begin", transfer_s=0.08)
    machine = Machine(hosts=hosts_of(4))
    fsdp, zero = (
        next(one for one in found(job(4, calls=(gathers,)), each).findings if one.rule == "network-bound")
        for each in (machine, replace(machine, uses_deepspeed=True))
    )
    assert "fully_shard" in fsdp.remedy
    assert "fully_shard" not in zero.remedy
    assert "stage3_param_persistence_threshold" in zero.remedy


def test_a_loader_that_reads_nothing_is_not_answered_with_local_disks() -> None:
    waits = job(8, input=late(8, STEPS, rank=7, by_s=0.03))
    reads = replace(EIGHT, started=1, storage_read_bytes_per_s=5e7)
    for machine, staged in ((reads, True), (replace(reads, storage_read_bytes_per_s=0.0), False)):
        (one,) = found(waits, machine).findings
        assert one.rule == "slow-loader-rank"
        assert ("local disks" in one.remedy) is staged
        assert ("made in the training process on node4" in one.remedy) is not staged


def test_a_slow_loader_is_not_answered_with_fewer_workers_than_it_has() -> None:
    pace = LoaderPace(workers=12, batch_s=np.full(8, 0.01), step_s=np.full(8, 0.001), ahead=24, error_s=np.zeros(8))
    (one,) = slow_loader_rank.find(facts(job(8, input=late(8, STEPS, rank=7, by_s=0.03)), EIGHT, pace=pace))
    assert "num_workers=13," in one.remedy.text
    held_up = replace(pace, slowest=np.append(np.ones(7), 8.0))
    (one,) = slow_loader_rank.find(facts(job(8, input=late(8, STEPS, rank=7, by_s=0.03)), EIGHT, pace=held_up))
    assert "get_worker_info().id" in one.remedy.text
    assert "num_workers" not in one.remedy.text


@pytest.mark.parametrize(("step_s", "offered"), [(0.0007, False), (0.0025, False), (0.1, True)])
def test_more_workers_are_advised_only_where_those_there_are_slow(step_s: float, *, offered: bool) -> None:
    """Workers that start again in each of many short epochs are waited for, however fast they are."""
    pace = LoaderPace(
        workers=2, batch_s=np.full(8, 2 * step_s), step_s=np.full(8, step_s), ahead=4, error_s=np.zeros(8)
    )
    seen = facts(job(8, input=0.004), EIGHT, pace=pace)
    assert seen.loading is not None
    again = replace(seen, loading=replace(seen.loading, ready=False), first=np.arange(STEPS) % 10 == 0)
    (one,) = input_bound.find(again)
    assert ("num_workers=2, persistent_workers=True" in one.remedy.text) is not offered
    assert ("more of them do not help" in one.remedy.text) is not offered
    (kept,) = input_bound.find(replace(again, keeps_workers=True))
    assert offered or "persistent_workers" not in kept.remedy.text
    (single,) = input_bound.find(replace(again, first=np.zeros(STEPS, dtype=bool)))
    assert offered or "persistent_workers" not in single.remedy.text, "one epoch"
    assert ("num_workers=0" in single.remedy.text) is (2 * step_s < 0.004), "one process makes what two made"


def test_fast_workers_are_to_make_more_ahead_where_a_few_samples_take_long() -> None:
    """Half a second of 100 ms steps, once in twenty steps of each rank in turn, where two workers made four ahead."""
    long = np.where(np.arange(STEPS)[:, None] % 20 == 2 * np.arange(8), 0.4, 0.001)
    pace = LoaderPace(workers=2, batch_s=np.full(8, 0.02), step_s=np.full(8, 0.01), ahead=4, error_s=np.zeros(8))
    seen = facts(job(8, input=long), EIGHT, pace=replace(pace, slowest=np.full(8, 3.0)))
    assert seen.loading is not None
    found_s = replace(seen, loading=replace(seen.loading, ready=False))
    (one,) = input_bound.find(found_s) or slow_loader_rank.find(found_s)
    assert "see what is in the batches of steps" in one.remedy.text
    (ahead,) = re.findall(r"num_workers=2, prefetch_factor=(\d+)", one.remedy.text)
    assert 2 * int(ahead) >= 4 + 0.4 / job(8).wall_s.mean()
    assert "slowest" not in " ".join(evidence.what for evidence in one.evidence)
    assert one.bounds is not None


def test_what_all_do_where_epochs_begin_is_told_by_their_steps() -> None:
    first = np.isin(np.arange(STEPS), range(7, STEPS, 30))
    work_s = np.where(first, 0.5, 0.0005)[:, None]
    seen = found(job(2, other=work_s), Machine(hosts=hosts_of(2)), first=first)
    (one,) = (one for one in seen.findings if one.rule == "between-phases")
    steps = job(2).steps[first]
    (evidence,) = (evidence.what for evidence in one.evidence if "nearly all of it" in evidence.what)
    assert f"in each of which an epoch begins: {steps[0]}, {steps[1]}" in evidence
    often = found(job(2, other=0.02), Machine(hosts=hosts_of(2)), first=first)
    assert not any("nearly all of it" in evidence.what for one in often.findings for evidence in one.evidence)


def test_what_ranks_do_in_turn_between_two_averages_of_their_models_is_what_all_do() -> None:
    """Local SGD: each sleeps 20 ms in every second step, and as long as the other when they meet; nobody waits."""
    averages = Call(use="all_reduce", at="end", steps=range(7, STEPS, 8))
    made = job(2, other=rotating(2, STEPS, by_s=0.020), calls=[averages], reduces=False)
    (one,) = found(made, Machine(hosts=hosts_of(2))).findings
    assert one.rule == "between-phases"
    assert one.gain is not None
    assert one.gain.is_at_most
    (of_each,) = found(job(2, other=0.010, calls=[averages], reduces=False), Machine(hosts=hosts_of(2))).findings
    assert of_each.gain is not None
    assert one.gain.value == pytest.approx(of_each.gain.value, rel=0.02)


def test_a_rank_with_pauses_of_two_intervals_beside_one_that_is_always_late() -> None:
    """Of two ranks both stand out in the same phase: no rank is left to compare them with there."""
    pauses = late(2, 100, rank=0, by_s=0.3, every=4) + late(2, 100, rank=0, by_s=0.3, every=10)
    made = job(2, steps=100, forward=late(2, 100, rank=1, by_s=0.01) + pauses)
    assert found(made, Machine(hosts=hosts_of(2))).findings


def test_what_all_ranks_do_is_said_of_the_rank_where_there_is_one() -> None:
    (alone,) = found(job(1, steps=100, other=0.02)).findings
    assert alone.title.startswith("The rank spends 20.2 ms per step between")
    (saving,) = found(job(1, checkpoint=only(1, STEPS, seconds=0.3, rank=0, every=8))).findings
    assert saving.title.startswith("Checkpoints take")
    (several,) = found(job(2, steps=100, other=0.02)).findings
    assert several.title.startswith("All ranks spend 2")


@pytest.mark.parametrize(("batch_s", "offered"), [(0.017, False), (0.001, True)])
def test_batches_are_made_in_the_training_process_only_where_that_takes_less_than_the_wait(
    batch_s: float, offered: bool
) -> None:
    pace = LoaderPace(workers=1, batch_s=np.full(8, batch_s), step_s=np.full(8, batch_s), ahead=2, error_s=np.zeros(8))
    seen = facts(job(8, input=0.004), EIGHT, pace=pace)
    assert seen.loading is not None
    (one,) = input_bound.find(replace(seen, loading=replace(seen.loading, ready=True)))
    assert "batches are ready" in one.remedy.text
    assert ("num_workers=0" in one.remedy.text) is offered


def test_a_rehearsal_is_not_blamed_for_the_machine_under_it() -> None:
    machine = replace(crowded(EIGHT, tuple(range(8)), 0.4), is_rehearsal=True)
    assert rules(job(8), machine) == []


def test_a_rank_that_is_late_without_waiting_for_a_cpu_is_not_called_contended() -> None:
    slow = job(8, forward=late(8, STEPS, rank=1, by_s=0.02))
    assert rules(slow, crowded(EIGHT, (2,), 0.3)) == ["slow-rank"]


def test_evaluation_on_one_rank_says_what_sharing_it_would_gain() -> None:
    finding = only_finding(next(one for one in PLANTED if one.rule == "sequential-evaluation"))
    shared = next(one for one in finding.evidence if "share it evenly" in one.what)
    assert shared.value == pytest.approx(0.025 * 7 / 8, rel=0.05)


def test_evaluation_on_all_ranks_is_no_fault_while_it_is_short() -> None:
    assert rules(evaluated(None, 0.05), EIGHT) == []


def test_the_rank_that_saves_longer_than_the_others_is_named_where_all_save() -> None:
    saving = {by_s: only(2, STEPS, seconds=by_s, rank=rank, every=8) for rank, by_s in enumerate((0.1, 0.35))}
    (finding,) = found(job(2, checkpoint=sum(saving.values()))).findings
    assert finding.rule == "checkpoint-share"
    assert finding.title.endswith("; rank 1 saves for 3.5 times as long as the others")
    (others,) = [one for one in finding.evidence if "median other rank" in one.what]
    assert others.value == pytest.approx(0.1 / 8)


def test_a_batch_that_is_late_only_at_the_begin_of_epochs_is_not_called_input_bound() -> None:
    planted = next(one for one in PLANTED if one.rule == "first-batch-stall")
    assert only_finding(planted).rule == "first-batch-stall"


@pytest.mark.parametrize(
    ("machine", "advised"),
    [
        (replace(EIGHT, gpus={"node1": ("V100",)}), ["mixed-precision"]),
        (replace(EIGHT, gpus={"node1": ("V100",)}, autocast="bfloat16"), []),
        (replace(EIGHT, torch_vector="DEFAULT", vector=("avx2", "avx512f")), ["vector-build"]),
        (replace(EIGHT, torch_vector="AVX512", vector=("avx2", "avx512f")), []),
        (replace(EIGHT, torch_vector="DEFAULT", vector=("sse4_2",)), []),
        (replace(EIGHT, read_bytes_per_s=1e9, storage_read_bytes_per_s=1e6), ["page-cache-only"]),
        (replace(EIGHT, read_bytes_per_s=1e9, storage_read_bytes_per_s=9e8), []),
        (replace(EIGHT, read_bytes_per_s=1e5, storage_read_bytes_per_s=0.0), []),
    ],
)
def test_advice_is_given_where_the_data_say_so_and_has_no_price(machine: Machine, advised: list[str]) -> None:
    answer = found(job(8), machine).findings
    assert [one.rule for one in answer] == advised
    assert all(one.advice and one.gain is None and one.loss_s_per_step is None for one in answer)


def test_a_number_of_ranks_that_costs_more_than_its_neighbours_is_awkward() -> None:
    """Dell's twelve V100s: slower each than eight, and than sixteen."""
    one = job(12, samples=32.0)
    here = float(one.samples.sum()) / one.measured_s / 12
    eight, sixteen = (
        OtherRun(run="a", ranks=8, samples_per_s=1.1 * here),
        OtherRun(run="b", ranks=16, samples_per_s=1.09 * here),
    )
    machine = Machine(hosts=hosts_of(12))
    assert rules(one, machine, other_runs=[eight, sixteen]) == ["awkward-rank-count"]
    assert rules(one, machine, other_runs=[eight]) == []
    falling = OtherRun(run="b", ranks=16, samples_per_s=0.9 * here)
    assert rules(one, machine, other_runs=[eight, falling]) == []
    unsteady = [OtherRun(run=f"c{by}", ranks=8, samples_per_s=by * here) for by in (0.95, 1.1, 1.27)]
    assert rules(one, machine, other_runs=[*unsteady, sixteen]) == []  # such runs differ by that much anyway


def test_two_hosts_have_one_way_and_the_finding_says_so() -> None:
    one = job(4, bucket_s=(0.03, 0.04, 0.02))
    machine = Machine(hosts=hosts_of(4), connections=ring(2, {(0, 1): 1e6}, busy_share=1.0))
    (finding,) = found(one, machine).findings
    assert finding.rule == "network-bound"
    assert "the data cannot tell which end" in finding.remedy


def test_calls_of_the_program_are_transfers_too() -> None:
    """A script that averages gradients by hand after backward: no reduction, one all-reduce of 30 ms."""
    by_hand = window(
        4,
        STEPS,
        forward=0.02 + jitter(4, STEPS, sd_s=0.0005),
        backward=0.04,
        reduces=False,
        calls=[Call(use="all_reduce", at="end", transfer_s=0.03)],
    )
    (finding,) = found(by_hand, Machine(hosts=hosts_of(4))).findings
    assert finding.rule == "network-bound"
    assert "gradients" not in finding.title  # nothing shows what the program sends
    named = [one for one in finding.evidence if "all_reduce" in one.what]
    assert [one.value for one in named] == [pytest.approx(0.03, rel=0.01)]
    assert "FSDP" not in finding.remedy
    assert "join" not in finding.remedy


@pytest.mark.parametrize(
    ("use", "advice"),
    [("all_reduce", "join the tensors of the 16 calls"), ("all_gather_into_tensor in forward", "fully_shard")],
)
def test_many_calls_are_joined_and_parameters_gathered_less_often(use: str, advice: str) -> None:
    calls = [Call(use=use, at="end", transfer_s=0.002)] * 16
    one = window(4, STEPS, forward=0.02 + jitter(4, STEPS, sd_s=0.0005), backward=0.04, reduces=False, calls=calls)
    (finding,) = found(one, Machine(hosts=hosts_of(4))).findings
    assert finding.rule == "network-bound"
    assert advice in finding.remedy
    assert [each.value for each in finding.evidence if each.what.startswith("calls of")] == [16.0]


def test_collectives_that_were_not_matched_are_nobodys_work() -> None:
    gap = Gap(kind="blocked in other", text="any words", seconds=0.02)
    waited = replace(job(8, other=0.02 + late(8, STEPS, rank=2, by_s=0.02)), gaps=(gap,))
    assert rules(waited, EIGHT) == []
    assert set(rules(replace(waited, gaps=()), EIGHT)) == {"between-phases", "slow-rank"}


@pytest.mark.parametrize("text", ["'other' holds everything", "matched across ranks", ""])
def test_other_words_of_a_gap_change_no_diagnosis(text: str) -> None:
    """Rules decide by the kind of a gap, whatever its sentence says."""
    waited = job(8, other=0.02 + late(8, STEPS, rank=2, by_s=0.02))
    for kind, expected in (("blocked in other", set()), ("bucket times", {"between-phases", "slow-rank"})):
        assert set(rules(replace(waited, gaps=(Gap(kind=kind, text=text),)), EIGHT)) == expected


def test_buckets_are_those_of_the_window() -> None:
    assert facts(job(4)).window.reductions.buckets == len(BUCKETS)


def test_steps_that_take_longer_because_batches_are_larger_are_no_drift() -> None:
    """A warm-up of the batch size: twice the samples from step 60 on, and twice the work; the note says so."""
    later = np.where(np.arange(120) < 60, 1.0, 2.0)[:, None]
    work = {"forward": FORWARD_S * (later - 1), "backward": BACKWARD_S * (later - 1)}
    slower, larger = job(4, steps=120, **work), job(4, steps=120, **work, samples=16 * later)
    assert rules(slower) == ["drift"]
    notes = " ".join(two_levels(facts(larger)))
    assert rules(larger) == []
    assert "from step 160 on steps have 2 times as much data as at first, and take 2 times as long" in notes
    sizes = replace(slower, elements=np.broadcast_to(16 * later, (120, 4)).copy())
    assert rules(sizes) == [], "longer texts, or larger images"


def test_levels_that_change_from_epoch_to_epoch_are_levels_and_no_line() -> None:
    """Epochs of 40 steps that take 60, 90 and 120 ms: a line through them ends beyond the longest one."""
    epoch = np.arange(120)[:, None] // 40
    first = np.zeros(120, dtype=np.bool_)
    first[::40] = True
    made = job(4, steps=120, forward=epoch * FORWARD_S, backward=epoch * BACKWARD_S)
    (finding,) = found(made, first=first).findings
    assert finding.title.startswith(
        "From epoch to epoch all ranks compute longer, in the last one 191 %, most of it in"
    )
    step_s = made.measured_s / 120
    assert finding.gain is not None
    assert finding.gain.value == pytest.approx(step_s / (step_s - (FORWARD_S + BACKWARD_S)), rel=0.02)
    little = job(4, steps=120, forward=np.arange(120)[:, None] / 60 * FORWARD_S)
    assert found(little, first=first).findings[0].title.startswith("Little by little")
    half = job(4, steps=120, forward=(np.arange(120) >= 40)[:, None] * FORWARD_S)
    assert found(half, first=first).findings[0].title.startswith(f"From step {half.steps[40]} on")


def test_steps_that_train_another_network_are_no_drift() -> None:
    """As where a backbone is unfrozen, and the network put into DDP again; at another step it is drift as ever."""
    half = (np.arange(120) >= 60)[:, None]
    made = job(4, steps=120, forward=half * FORWARD_S, backward=half * BACKWARD_S)
    assert [one.rule for one in found(made, new_networks=[int(made.steps[20])]).findings] == ["drift"]
    known = facts(made, new_networks=[int(made.steps[59])])
    assert not found(made, new_networks=[int(made.steps[59])]).findings
    (note,) = two_levels(known)
    assert note.startswith(
        f"from step {made.steps[60]} on the program trains another network, or another part of it, and steps compute 2 "
    )


def test_how_much_longer_a_warm_up_takes_is_told_by_its_own_level_however_much_that_is() -> None:
    early = (np.arange(120) < 40).astype(np.float64)[:, None]
    slow_first = job(4, steps=120, forward=early * FORWARD_S * 2.5, backward=early * BACKWARD_S * 2.5)
    assert "up to step 139 all ranks compute 239 % longer than after it: " in " ".join(two_levels(facts(slow_first)))


def test_ranks_that_wait_for_a_cpu_beside_their_work_do_not_become_faster() -> None:
    made = job(4, steps=120)
    busy = replace(made, queued_s=np.where(np.arange(120) < 80, 0.0, 0.015)[:, None] * np.ones((120, 4)))
    shared = Machine(hosts=("h",) * 4, cpus={"h": 2.0})
    assert two_levels(facts(busy, shared)) == []


def test_what_may_be_rollouts_is_not_sold_as_evaluation() -> None:
    (finding,) = found(evaluated(None, 0.4), has_epochs=False).findings
    assert finding.rule == "evaluation-share"
    assert finding.advice
    assert finding.gain is None
    assert "rollouts" in finding.title


def test_what_all_evaluate_besides_is_not_evaluated_alone() -> None:
    """In each eighth step rank 0 evaluates for 400 ms by itself, and all of them for 30 ms, before one barrier."""
    alone = only(4, STEPS, seconds=0.4, rank=0, every=8, first=3) + only(4, STEPS, seconds=0.03, every=8, first=3)
    barrier = Call(use="barrier", at="begin", steps=tuple(range(3, STEPS, 8)))
    (finding,) = (
        one for one in found(job(4, evaluation=alone, calls=[barrier])).findings if one.rule == "sequential-evaluation"
    )
    assert finding.title == "Rank 0 evaluates alone, 400 ms each time, while the others wait"
    assert finding.loss_s_per_step == pytest.approx(0.4 / 8, rel=0.05)


def test_evaluation_in_most_steps_may_be_learned_from() -> None:
    """Labels that a network gives itself, a teacher: what is computed there may be needed, and no gain is certain."""
    (finding,) = found(job(4, evaluation=0.06)).findings
    assert finding.title == "Evaluation by all ranks in most steps takes 48 % of the time"
    assert finding.remedy.startswith("if the program learns from nothing that it computes there, evaluate less often")
    assert finding.gain is not None
    assert finding.gain.low == 1.0


@pytest.mark.parametrize(
    ("phase", "call", "loss_s"),
    [
        ("optimizer", Call(use="broadcast in optimizer", at="end", root=0), 0.015),
        ("other", Call(use="scatter", at="end", root=0), 0.020),
    ],
)
def test_work_for_all_is_priced_at_most_as_shared_out_or_gone(phase: str, call: Call, loss_s: float) -> None:
    """Rank 0 works 20 ms for all four: shared out evenly that is 5 ms of each, so 15 ms a step can be saved at most."""
    made = window(4, STEPS, forward=0.02, backward=0.04, calls=[call], **{phase: only(4, STEPS, seconds=0.02, rank=0)})
    (finding,) = found(made, Machine(hosts=hosts_of(4))).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [0])
    assert finding.loss_s_per_step == pytest.approx(loss_s, rel=0.01)
    assert finding.gain is not None
    assert finding.gain.is_at_most
    assert "to the others" in finding.title
    assert ("if rank == 0" in finding.remedy) == (phase == "other")  # a rank may log there as well
    gathered = replace(made, uses=("gather", "broadcast"))  # a teacher on one rank, for the batches of all
    assert [one.gain.is_at_most for one in found(gathered).findings if one.gain] == [phase == "other"]
    alone = replace(made, uses=("all_reduce",))
    (finding,) = found(alone, Machine(hosts=hosts_of(4))).findings
    assert finding.loss_s_per_step == pytest.approx(0.020, rel=0.01)
    assert finding.gain is not None
    assert not finding.gain.is_at_most


def test_work_on_exchanged_tokens_is_priced_at_most_as_gone_and_what_even_shares_save_is_told() -> None:
    """Rank 0's experts work 24 ms, the others' 4: of 20 ms a step, 15 are saved by even shares, all if it is slow."""
    tokens = 0.004 + only(4, STEPS, seconds=0.02, rank=0)
    calls = [Call(use="all_to_all_single in forward", at="end", root=0)]
    (finding,) = found(
        window(4, STEPS, forward=tokens, backward=0.04, calls=calls), Machine(hosts=hosts_of(4))
    ).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [0])
    assert finding.gain is not None
    assert finding.gain.is_at_most
    step_s = finding.loss_s_per_step / finding.loss_share
    assert finding.gain.high == pytest.approx(step_s / (step_s - 0.020), rel=0.01)
    assert finding.gain.low == pytest.approx(1.0)
    (shared,) = (one.value for one in finding.evidence if one.what.startswith("saved if ranks shared"))
    assert shared == pytest.approx(0.015, rel=0.01)
    assert "balance" in finding.remedy


@pytest.mark.parametrize(("more", "named"), [(1.3, True), (1.02, False)])
def test_a_slow_rank_with_larger_samples_is_told_so(more: float, named: bool) -> None:
    """As many samples on all ranks, those of rank 2 always longer: nothing varies that would show what they cost."""
    slow = {"forward": late(4, STEPS, rank=2, by_s=0.01) + 0.02, "backward": 0.04}
    elements = np.full((STEPS, 4), 4096.0) * np.where(np.arange(4) == 2, more, 1.0)
    made = replace(window(4, STEPS, **slow), elements=elements)
    (finding,) = found(made, Machine(hosts=hosts_of(4))).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [2])
    assert finding.gain is not None
    assert ("samples are larger" in finding.remedy) == finding.gain.is_at_most == named
    doubled = replace(made, samples=np.where(np.arange(4) == 2, more, 1.0) * made.samples)  # more of equal size
    assert not any("samples are larger" in one.remedy for one in found(doubled, Machine(hosts=hosts_of(4))).findings)


def test_transfers_that_block_nobody_are_no_part_of_those_that_do() -> None:
    """What takes a broadcast 30 ms has taken it when the others come, who are 50 ms late: they wait for nothing."""
    sent = Call(use="broadcast in optimizer", root=0, at="end", transfer_s=0.03)
    reduced = Call(use="all_reduce", at="forward", transfer_s=0.04)
    made = window(4, STEPS, reduces=False, forward=late(4, STEPS, rank=1, by_s=0.05), other=0.01, calls=[reduced, sent])
    for finding in found(made, Machine(hosts=hosts_of(4))).findings:
        if finding.rule == "network-bound":
            whole, *parts = [
                one.value for one in finding.evidence if one.what.startswith(("transfer that", "of that, in"))
            ]
            assert sum(parts) <= whole * 1.001
            break
    else:
        raise AssertionError("the exchange of 40 ms is not found")


def test_a_rank_that_sleeps_is_not_said_to_compute() -> None:
    """Of its step, rank 3 has the CPU for no longer than the others, and does not wait for one."""
    made = job(8, forward=late(8, STEPS, rank=3, by_s=0.04))
    asleep = replace(made, queued_s=np.zeros((STEPS, 8)))
    step_s = made.measured_s / STEPS
    machine = replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 4.0), cpu_s=np.full(8, 0.062 / step_s))
    (finding,) = found(asleep, machine).findings
    assert finding.rule == "slow-rank"
    assert "sleeps" in finding.title
    assert "py-spy dump" in finding.remedy
    busy = replace(machine, cpu_s=np.where(np.arange(8) == 3, 0.102, 0.062) / step_s)
    (finding,) = found(asleep, busy).findings
    assert "computes" in finding.title


def test_what_a_rank_does_longer_is_not_said_where_its_cpu_time_shows_neither() -> None:
    """Rank 3 is 40 ms late, and ran for 20 ms of it; or nothing is known of when it ran."""
    made = job(8, forward=late(8, STEPS, rank=3, by_s=0.04))
    seen = replace(made, queued_s=np.zeros((STEPS, 8)))
    ran_s = np.where(np.arange(8) == 3, 0.122, 0.102)  # all in a step of another thread, so that no sleep is certain
    machine = replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 4.0))
    for cpu_s in (ran_s / (made.measured_s / STEPS), None):
        (finding,) = found(seen, replace(machine, cpu_s=cpu_s)).findings
        assert "takes 40 ms per step longer" in finding.title
        assert finding.remedy.index("py-spy dump") < finding.remedy.index("clocks and heat")


def test_sleep_in_an_optimizer_is_no_work_that_others_could_share() -> None:
    sent = Call(use="broadcast in optimizer", at="end", root=0)
    slept = only(4, STEPS, seconds=0.02, rank=0)
    made = window(4, STEPS, forward=0.02, backward=0.04, optimizer=slept, calls=[sent])
    asleep = replace(made, queued_s=np.zeros((STEPS, 4)))
    machine = Machine(hosts=hosts_of(4), cpu_s=np.full(4, 0.06 / (made.measured_s / STEPS)))
    (finding,) = found(asleep, machine).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [0])
    assert finding.loss_s_per_step == pytest.approx(0.020, rel=0.01)
    assert finding.gain is not None
    assert not finding.gain.is_at_most
    assert "ZeroRedundancyOptimizer" not in finding.remedy


def test_ranks_that_are_late_in_turn_and_arrive_together_rotate_no_loss() -> None:
    """They average once in eight steps: in between each is 30 ms late in every other step, and nobody waits for it."""
    in_turn = np.where(np.arange(STEPS)[:, None] % 2 == np.arange(2), 0.03, 0.0)
    averaged = [Call(use="all_reduce", at="end", steps=range(7, STEPS, 8))]
    rare = window(2, STEPS, reduces=False, forward=0.05 + in_turn, backward=0.04, calls=averaged)
    assert "rotating-imbalance" not in {one.rule for one in found(rare, Machine(hosts=hosts_of(2))).findings}
    each = [Call(use="all_reduce", at="end")]
    often = window(2, STEPS, reduces=False, forward=0.05 + in_turn, backward=0.04, calls=each)
    assert "rotating-imbalance" in {one.rule for one in found(often, Machine(hosts=hosts_of(2))).findings}


@pytest.mark.parametrize("places", [(12, 12), (12, 15)], ids=["together", "in turn"])
def test_a_few_batches_that_take_long_are_told_by_their_steps(places: tuple[int, int]) -> None:
    """Every twentieth batch of each rank takes 0.4 s, with no worker: seven ordinary steps long."""
    long = np.where(np.arange(STEPS)[:, None] % 20 == places, 0.4, 0.001)
    here = Machine(hosts=("h", "h"), cpus={"h": 8.0}, started=1)
    (finding,) = (one for one in found(job(2, input=long), here).findings if one.rule == "input-bound")
    first = str(job(2).steps[12])
    assert f"the batches of steps {first}, " in finding.remedy
    (ahead,) = re.findall(r"prefetch_factor=(\d+)", finding.remedy)
    assert int(ahead) >= 0.4 / job(2).wall_s.mean()
    assert finding.gain is not None
    assert finding.gain.is_at_most
    (finding,) = (one for one in found(job(2, input=0.03), here).findings if one.rule == "input-bound")
    assert "the batches of steps" not in finding.remedy
    (finding,) = (
        one for one in found(job(2, input=long), replace(here, started=5)).findings if one.rule == "input-bound"
    )
    assert "the batches of steps" not in finding.remedy


def test_where_other_programs_keep_cpus_busy_a_drift_may_be_theirs() -> None:
    later = np.where(np.arange(STEPS) < STEPS // 2, 0.0, 0.03)[:, None]
    for busy, named in ((2.0, True), (0.0, False)):
        shared = Machine(hosts=("h", "h"), cpus={"h": 4.0}, other_cpu_s={"h": busy})
        (finding,) = (one for one in found(job(2, forward=later), shared).findings if one.rule == "drift")
        assert ("other programs" in finding.remedy) == named
        assert any("that other programs keep busy" in one.what for one in finding.evidence) == named


@pytest.mark.parametrize("change", [1.0, 0.7])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_late_for_a_while_costs_what_the_run_without_it_saves(ranks: int, change: float) -> None:
    """From step 50 of 100 on, when the work of all may shrink, too: neither change of level is jitter."""
    late_s, shrinks_s = np.zeros((100, ranks)), np.zeros((100, ranks))
    late_s[50:, 1], shrinks_s[50:] = 0.03, (change - 1) * 0.02
    made, healthy = (job(ranks, 100, forward=forward_s, backward=shrinks_s) for forward_s in (late_s, 0.0))
    (finding,) = found(made).findings
    assert (finding.rule, finding.ranks) == ("slow-rank", [1])
    assert finding.gain.value == pytest.approx(replay(made).total_s / replay(healthy).total_s, rel=0.003)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_are_late_one_after_the_other_are_each_found(ranks: int) -> None:
    """Rank 1 in steps 0 to 39, rank 0 from then on: of few ranks the others are late themselves half of the time."""
    rows = np.arange(100)[:, None]
    one_s, other_s = (
        np.where((np.arange(ranks) == rank) & when, 0.03, 0.0) for rank, when in ((1, rows < 40), (0, rows >= 40))
    )
    made = job(ranks, 100, backward=one_s + other_s)
    findings = found(made).findings
    assert {(finding.rule, *finding.ranks) for finding in findings} == {("slow-rank", 0), ("slow-rank", 1)}
    for finding in findings:
        others_s = one_s if finding.ranks == [0] else other_s
        without = replay(job(ranks, 100, backward=others_s)).total_s
        assert finding.gain.value == pytest.approx(replay(made).total_s / without, rel=0.01)
        assert "most of it in backward" in finding.title
        assert ("up to step 139" in finding.title) is (finding.ranks == [1])
        assert ("from step 140 on" in finding.title) is (finding.ranks == [0])


def test_ranks_that_are_late_for_a_while_together_are_priced_in_the_whiles_of_all() -> None:
    """Of eight hosts with a rank each, ranks 0 and 2 are late in steps 13 to 34, rank 1 six steps later."""
    late_s = np.zeros((100, 8))
    late_s[13:35, [0, 2]], late_s[19:41, 1] = 0.03, 0.03
    made, healthy = (job(8, 100, forward=forward_s) for forward_s in (late_s, 0.0))
    findings = found(made, Machine(hosts=hosts_of(8, 1))).findings
    assert {rank for one in findings for rank in one.ranks} == {0, 1, 2}
    if len(findings) == 1:
        assert findings[0].gain.value == pytest.approx(replay(made).total_s / replay(healthy).total_s, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_host_is_named_although_ranks_of_another_are_a_little_late_meanwhile(seed: int) -> None:
    """Of two hosts with four ranks one is late by 50 ms in steps 40 to 79, and three ranks of the other by 5 ms."""
    late_s = np.zeros((100, 8))
    late_s[40:80, :4], late_s[40:80, 4:7] = 0.05, 0.005
    (finding,) = found(job(8, 100, forward=late_s, seed=seed), Machine(hosts=hosts_of(8, 4))).findings
    assert (finding.rule, finding.ranks) == ("uneven-hosts", [0, 1, 2, 3])
    little_s = np.where(late_s < 0.05, late_s, 0.0)
    one, other = (replay(job(8, 100, forward=each, seed=seed)).total_s for each in (late_s, little_s))
    assert finding.gain.value == pytest.approx(one / other, rel=0.03)
