"""What a remedy buys is what the job has once it is followed: each price against the window in which it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import BACKWARD_S, FORWARD_S, STEPS, crowded, facts, found, hosts_of, job
from tests.replay.windows import late, only

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.loading.loader_pace import LoaderPace
from allpull.explain.evidence.start import Start
from allpull.explain.rules import first_batch_stall
from allpull.explain.rules.cpu_contention import AT_MOST
from allpull.replay.engine import replay
from allpull.replay.window import Window
from allpull.schema.explained import Finding

FOUR = Machine(hosts=hosts_of(4))
BY_SAMPLE_S = FORWARD_S + BACKWARD_S
GPUS = replace(FOUR, gpus={"node1": ("V100",), "node2": ("V100",)})


def finding(rule: str, one: Window, machine: Machine, **more) -> Finding:
    (only_one,) = [each for each in found(one, machine, **more).findings if each.rule == rule]
    return only_one


def sharded(shares: list[float]) -> Window:
    """Samples and work of each rank in proportion to ``shares``."""
    share = np.array(shares)
    more = np.broadcast_to(share - 1.0, (STEPS, share.size))
    return job(share.size, noise_s=0.0, samples=64 * share, forward=FORWARD_S * more, backward=BACKWARD_S * more)


@pytest.mark.parametrize("share", [1.15, 1.4, 2.0])
@pytest.mark.parametrize("ranks", [4, 8])
def test_equal_shards_train_the_samples_that_there_are(ranks: int, share: float) -> None:
    """One rank of N with twice the samples: shared out, each has (N + 1)/N of a share, and samples/s say the gain."""
    shares = [1.0] * ranks
    shares[2] = share
    mean = float(np.mean(shares))
    uneven, even = replay(sharded(shares)).total_s, replay(sharded([mean] * ranks)).total_s
    one = finding("uneven-shards", sharded(shares), Machine(hosts=hosts_of(ranks)))
    assert one.gain is not None
    assert one.gain.value == pytest.approx(uneven / even, rel=0.01)
    assert one.loss_s_per_step == pytest.approx((uneven - even) / STEPS, rel=0.01)


def test_a_rank_with_more_samples_beside_one_with_fewer_is_priced_by_what_all_would_have() -> None:
    shares = [1.0, 1.0, 1.5, 0.7]
    one = finding("uneven-shards", sharded(shares), FOUR)
    # the half share is divided by four: the others then have 1.125, 1.125, 1.125 and 0.825 of a share
    assert one.loss_s_per_step == pytest.approx((1.5 - 1.125) * BY_SAMPLE_S, rel=0.1)


@pytest.mark.parametrize(
    ("phase", "rule"), [("other", "between-phases"), ("copy", "copy-bound"), ("host", "launch-bound")]
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_one_rank_takes_longer_is_not_charged_to_all(phase: str, rule: str, ranks: int) -> None:
    """Half of the ranks, of two the one, take 40 ms where the others take 10: those 10 are what all have alike."""
    more = np.zeros((STEPS, ranks))
    more[:, ranks // 2 :] = 0.030
    one = job(ranks, noise_s=0.0, **{phase: 0.010 + more})
    priced = finding(rule, one, Machine(hosts=hosts_of(ranks)))
    common_s = 0.0102 if phase == "other" else 0.010
    assert priced.loss_s_per_step == pytest.approx(common_s, rel=0.01)
    assert priced.evidence[0].value == pytest.approx(common_s, rel=0.01)


def test_the_losses_of_what_is_common_and_of_who_is_late_are_no_more_than_the_step() -> None:
    one = job(2, steps=60, other=0.010 + late(2, 60, rank=1, by_s=0.030))
    answer = found(one, Machine(hosts=hosts_of(2)))
    assert {each.rule for each in answer.findings} == {"between-phases", "slow-rank"}
    assert sum(each.loss_s_per_step or 0.0 for each in answer.findings) == pytest.approx(0.040, rel=0.05)


def test_first_batches_are_priced_without_what_other_odd_steps_wait() -> None:
    first = np.arange(STEPS) % 10 == 0
    stalled = only(4, STEPS, seconds=0.4, every=10) + only(4, STEPS, seconds=0.8, every=10, first=7)
    scored = only(4, STEPS, seconds=0.3, every=10, first=7)
    one = job(4, input=stalled, evaluation=scored, odd=(scored[:, 0] > 0) | first)
    (suspect,) = first_batch_stall.find(facts(one, FOUR, first=first))
    assert suspect.without is not None
    loss_s = (replay(one).total_s - replay(suspect.without(one)).total_s) / STEPS
    assert loss_s == pytest.approx(0.4 / 10, rel=0.02)
    assert loss_s == pytest.approx(suspect.evidence[0].value, rel=0.02)
    assert "num_workers=1," in suspect.remedy.text
    assert "with as many as now" in suspect.remedy.text


def test_first_batches_that_one_rank_waits_for_name_it() -> None:
    first = np.arange(STEPS) % 10 == 0
    one = job(4, input=only(4, STEPS, seconds=0.4, rank=2, every=10), odd=first)
    answer = found(one, FOUR, first=first)
    assert [(each.rule, each.ranks) for each in answer.findings] == [("first-batch-stall", [2])]
    assert "on rank 2" in answer.findings[0].title


def test_workers_that_were_counted_are_kept_in_that_number() -> None:
    first = np.arange(STEPS) % 10 == 0
    one = job(4, input=only(4, STEPS, seconds=0.4, every=10))
    pace = LoaderPace(workers=3, batch_s=np.full(4, 0.01), step_s=np.full(4, 0.004), ahead=6, error_s=np.zeros(4))
    (suspect,) = first_batch_stall.find(facts(one, FOUR, first=first, pace=pace))
    assert [line.line for line in suspect.remedy.lines] == ["DataLoader(num_workers=3, persistent_workers=True)"]
    assert "as many as now" not in suspect.remedy.text
    assert suspect.without is not None
    loss_s = (replay(one).total_s - replay(suspect.without(one)).total_s) / STEPS
    assert loss_s == pytest.approx((0.4 - 0.01) / 10, rel=0.02), "kept workers begin the first batch with the epoch"


def test_workers_that_are_kept_already_are_not_kept_once_more() -> None:
    first = np.arange(STEPS) % 10 == 0
    one = job(4, input=only(4, STEPS, seconds=0.4, every=10))
    (suspect,) = first_batch_stall.find(facts(one, FOUR, first=first, keeps_workers=True))
    assert suspect.remedy.lines == ()
    assert "persistent_workers" not in suspect.remedy.text
    assert "across epochs" in suspect.remedy.text


def test_waiting_for_a_cpu_is_an_upper_bound_within_what_takes_cpus() -> None:
    """Threads of a rank wait for more seconds than a step has; a sleep of 33 ms between the phases stays."""
    one = job(4, other=0.033)
    whole = facts(one, crowded(FOUR, (0, 1, 2, 3), 1.1))
    priced = finding("cpu-contention", one, whole.machine)
    computing_s = FORWARD_S + BACKWARD_S + 0.002
    assert priced.evidence[0].value > whole.step_s
    assert priced.loss_s_per_step == pytest.approx(AT_MOST * computing_s, rel=0.05)
    assert priced.gain is not None
    assert (priced.gain.low, priced.gain.high) == (1.0, priced.gain.value)


def test_of_ranks_with_accelerators_only_what_they_wait_for_their_hosts_can_be_a_matter_of_cpus() -> None:
    one = job(4, host=0.004, copy=0.001)
    priced = finding("cpu-contention", one, crowded(GPUS, (0, 1, 2, 3), 0.5))
    assert priced.loss_s_per_step == pytest.approx(AT_MOST * 0.005, rel=0.02)


@pytest.mark.parametrize(
    ("precision", "remedy"),
    [(None, "autocast"), ("fp32", "--set train.precision=bf16 (now fp32)"), ("tf32", "--set train.precision=bf16")],
)
def test_sixteen_bits_are_advised_where_they_are_not_used(precision: str | None, remedy: str) -> None:
    start = Start(starter="command" if precision is None else "train")
    one = finding("mixed-precision", job(4), replace(GPUS, precision=precision), start=start)
    assert remedy in one.remedy
    assert ("if it is not used yet" in one.title) == (precision is None)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "o2"])
def test_sixteen_bits_are_not_advised_to_a_run_that_trains_in_them(precision: str) -> None:
    assert found(job(4), replace(GPUS, precision=precision)).findings == ()


@pytest.mark.parametrize(
    ("compiled", "remedy"),
    [(None, "torch.compile(model"), (False, "train.compile=reduce-overhead"), (True, "train.cuda_graph=true")],
)
def test_to_compile_is_advised_where_the_model_is_not_compiled(compiled: bool | None, remedy: str) -> None:
    one = finding("launch-bound", job(4, host=0.02), replace(FOUR, compiled=compiled))
    assert one.remedy.startswith(("--set ", "")[compiled is None] + remedy)
