"""Item 6: time that all ranks lose alike, or one after the other, is not useful."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_bound, assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Device, Training, even

ALL = slice(None)


def place(training: Training, where: str) -> Training:
    return dataclasses.replace(training, device=Device()) if where == "device" else training


@pytest.mark.parametrize(
    ("phase", "where"), [("forward", "cpu"), ("backward", "device"), ("optimizer", "cpu"), ("other", "device")]
)
def test_three_stalls_of_all_ranks(judge: Judge, phase: str, where: str) -> None:
    """Three of 3 s in 60 steps of 66 ms: recompilation, an allocator that retries, a file system that hangs."""
    healthy = place(even(steps=62, forward_s=0.020, backward_s=0.036, jitter=0.02), where)
    stalled = healthy
    for step in (12, 31, 49):
        stalled = stalled.later(phase, 3.0, rank=ALL, steps=step)
    judged = judge(stalled, healthy)
    assert_priced(judged.finding("common-stall", ranks=[]), judged.truth, 0.03)
    assert judged.explained.healthy is None


def test_what_ranks_wait_for_a_cpu_in_a_stall_is_part_of_it(judge: Judge) -> None:
    """Garbage is collected for 1 s on a CPU that is shared: it takes 3 s, and without it these are gone."""
    healthy = even(steps=62, forward_s=0.020, backward_s=0.036, jitter=0.02)
    stalled = healthy.later("forward", 3.0, rank=ALL, steps=31)
    queued = np.full(healthy.input.shape, 0.001)
    queued[:, 31] = 2.0
    judged = judge(stalled, healthy, Recording(queued_by_step_s=queued))
    found = judged.finding("common-stall", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    lines = {line.what: line.value for line in found.evidence}
    assert lines["the longest of them"] == pytest.approx(3.0, rel=0.02)
    assert lines["stalls of all ranks, spread over all steps"] == pytest.approx(found.loss_s_per_step, rel=0.02)
    waited_s = lines["of that, time in which they waited for a CPU"]
    assert waited_s == pytest.approx(2 / 3 * found.loss_s_per_step, rel=0.02)


STALLS = (12, 31, 49)
ON_ALL = [(rank, step) for rank in range(8) for step in STALLS]


def stalled_for_3_s(where: str = "cpu") -> tuple[Training, Training]:
    """Eight ranks with three stalls in 60 steps, and without."""
    healthy = place(even(ranks=8, steps=62, forward_s=0.020, backward_s=0.036, jitter=0.02), where)
    stalled = healthy
    for step in STALLS:
        stalled = stalled.later("forward", 3.0, rank=ALL, steps=step)
    return stalled, healthy


@pytest.mark.parametrize(
    ("cause", "where", "taken_s", "named"),
    [
        ("garbage_collection", "cpu", 2.9, "collects garbage"),
        ("garbage_collection", "device", 3.0, "collects garbage"),
        ("compilation", "cpu", 2.5, "torch.compile"),
        ("allocator_retries", "device", None, "allocator"),
    ],
)
def test_the_cause_of_a_stall_is_named(judge: Judge, cause: str, where: str, taken_s: float | None, named: str) -> None:
    stalled, healthy = stalled_for_3_s(where)
    pauses = tuple((rank, step, cause, taken_s) for rank, step in ON_ALL)
    judged = judge(stalled, healthy, Recording(stalls=pauses))
    found = judged.finding("common-stall", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert named in found.title
    covered = [line.value for line in found.evidence if line.unit == "share"]
    assert len(covered) == 1
    assert 0.75 <= covered[0] <= 1.0  # a kernel takes longer than its pause of the host


@pytest.mark.parametrize(
    "pauses",
    [
        (),
        tuple((0, step, "garbage_collection", 3.0) for step in STALLS),  # of one rank: the others stall without
        tuple((rank, step, "garbage_collection", 0.4) for rank, step in ON_ALL),  # too short
        tuple((rank, step + 1, "compilation", 3.0) for rank, step in ON_ALL),  # at other times
        tuple((rank, step, "solar_flare", 3.0) for rank, step in ON_ALL),  # of a later version
    ],
)
def test_a_cause_that_was_not_recorded_is_not_named(judge: Judge, pauses: tuple[Any, ...]) -> None:
    stalled, healthy = stalled_for_3_s()
    found = judge(stalled, healthy, Recording(stalls=pauses)).finding("common-stall", ranks=[])
    assert found.title.endswith("in forward")
    assert "the cause was not recorded" in found.remedy


def test_a_run_without_stalls_leaves_the_cause_open(judge: Judge) -> None:
    stalled, healthy = stalled_for_3_s()
    found = judge(stalled, healthy, Recording(records_stalls=False)).finding("common-stall", ranks=[])
    assert "does not record causes" in found.remedy


def test_two_causes_take_turns(judge: Judge) -> None:
    stalled, healthy = stalled_for_3_s()
    causes = dict(zip(STALLS, ("compilation", "garbage_collection", "compilation"), strict=True))
    pauses = tuple((rank, step, causes[step], 3.0) for rank, step in ON_ALL)
    found = judge(stalled, healthy, Recording(stalls=pauses)).finding("common-stall", ranks=[])
    assert [line.value for line in found.evidence if line.unit == "share"] == pytest.approx([2 / 3, 1 / 3], rel=0.01)
    assert found.title.index("torch.compile") < found.title.index("garbage")


@pytest.mark.parametrize(("written_bytes", "named"), [(900_000_000, True), (300_000, False)])
def test_files_that_are_written_in_a_stall(judge: Judge, written_bytes: int, named: bool) -> None:
    stalled, healthy = stalled_for_3_s()
    ends_s = [0.066 * step + 3.0 * number for number, step in enumerate(STALLS, 1)]

    def usage(_: int, at: float) -> dict[str, Any]:
        """Each stall writes as much, evenly; training itself writes 0.1 MB/s."""
        share = sum(min(1.0, max(0.0, (at - end + 3.0) / 3.0)) for end in ends_s)
        written = round(written_bytes * share + 100_000 * at)
        return {"processes": 1, "storage_read_bytes": 0, "storage_write_bytes": written}

    found = judge(stalled, healthy, Recording(usage=usage, sample_s=0.25)).finding("common-stall", ranks=[])
    assert ("write files" in found.title) is named


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_files_that_are_read_all_the_time_are_no_cause(judge: Judge, where: str) -> None:
    """Hosts issue ahead of their devices, so steps take another time there than on devices."""
    stalled, healthy = stalled_for_3_s(where)

    def usage(_: int, at: float) -> dict[str, Any]:
        return {"processes": 1, "storage_read_bytes": round(2_000_000 * at), "storage_write_bytes": 0}

    found = judge(stalled, healthy, Recording(usage=usage, sample_s=0.25)).finding("common-stall", ranks=[])
    assert "files" not in found.title
    assert not [line for line in found.evidence if line.unit == "bytes/s"]


@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize(("cause", "remedy"), [("compilation", "TORCH_LOGS"), ("garbage_collection", "gc.freeze()")])
def test_stalls_of_one_rank(judge: Judge, cause: str, remedy: str, where: str) -> None:
    """Every sixth step rank 1 stalls for 0.5 s, and in each step it waits for a CPU for 10 ms."""
    healthy = place(even(ranks=4, steps=62, forward_s=0.020, backward_s=0.036, jitter=0.02), where)
    stalled = healthy.later("forward", 0.5, rank=1, steps=slice(6, None, 6))
    pauses = tuple((1, step, cause, 0.5) for step in range(6, 62, 6))
    judged = judge(stalled, healthy, Recording(stalls=pauses, queued_s=(0.0, 0.010, 0.0, 0.0)))
    found = judged.finding("slow-rank", ranks=[1])
    assert_priced(found, judged.truth, 0.03)
    assert remedy in found.remedy
    assert "cpu-contention" not in [one.rule for one in judged.explained.findings]


def slower_by(training: Training, share: float, steps: slice) -> Training:
    """All ranks compute longer by ``share`` in ``steps``."""
    for phase in ("forward", "backward"):
        now = getattr(training.passes[0], phase)[:, steps]
        training = training.later(phase, share * now, rank=ALL, steps=steps)
    return training.later("optimizer", share * training.optimizer[:, steps], rank=ALL, steps=steps)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_all_ranks_slow_down_half_way(judge: Judge, where: str) -> None:
    healthy = place(even(steps=62), where)
    judged = judge(slower_by(healthy, 0.4, slice(32, None)), healthy)
    assert_priced(judged.finding("drift", ranks=[]), judged.truth, 0.03)


def test_clocks_that_drop_half_way_are_evidence(judge: Judge) -> None:
    healthy = place(even(steps=62), "device")
    drops_at = 32 * 0.098

    def gpu(rank: int, at: float) -> dict[str, Any]:
        hot = at > drops_at
        clock = 1_980_000_000 if not hot else 1_415_000_000
        return {"busy_share": 1.0, "clock_hz": clock, "power_w": 690.0, "temperature_c": 88.0 if hot else 70.0}

    judged = judge(slower_by(healthy, 0.4, slice(32, None)), healthy, Recording(gpu=gpu, sample_s=0.25))
    found = judged.finding("drift", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert {line.unit for line in found.evidence} & {"Hz", "MHz", "C", "°C"}, found.evidence


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_ranks_that_pause_in_turn(judge: Judge, where: str) -> None:
    """Every third step another of eight ranks pauses for 90 ms, as garbage collection does."""
    healthy = place(even(ranks=8, steps=98), where)
    pausing = healthy
    for turn, step in enumerate(range(4, 98, 3)):
        pausing = pausing.later("forward", 0.090, rank=turn % 8, steps=step)
    judged = judge(pausing, healthy)
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.04)
    assert "garbage" not in found.title


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_ranks_that_collect_garbage_in_turn(judge: Judge, where: str) -> None:
    healthy = place(even(ranks=8, steps=98), where)
    pausing, pauses = healthy, []
    for turn, step in enumerate(range(4, 98, 3)):
        pausing = pausing.later("forward", 0.090, rank=turn % 8, steps=step)
        pauses.append((turn % 8, step, "garbage_collection", 0.085))
    judged = judge(pausing, healthy, Recording(stalls=tuple(pauses)))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.04)
    assert "Python collects garbage" in found.title
    assert "gc.collect()" in found.remedy


def stalling_in_turn(where: str, times: int, seconds: float) -> tuple[Training, Training, list[tuple[int, int]]]:
    """Of four ranks another one stalls, as many ``times``, evenly over 118 steps; without; and who does when."""
    healthy = place(even(ranks=4, steps=122, jitter=0.02), where)
    order = np.random.default_rng(5).permutation(times) % 4
    who = [(int(rank), int(step)) for rank, step in zip(order, np.linspace(4, 118, times), strict=True)]
    stalled = healthy
    for rank, step in who:
        stalled = stalled.later("forward", seconds, rank=rank, steps=step)
    return stalled, healthy, who


@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize(
    ("cause", "taken_s", "named", "remedy"),
    [
        ("garbage_collection", 0.95, "collects garbage", "gc.collect()"),
        ("compilation", 0.9, "torch.compile", "TORCH_LOGS"),
        ("allocator_retries", None, "allocator", "expandable_segments"),
    ],
)
@pytest.mark.parametrize("times", [4, 16])
def test_ranks_that_stall_in_turn_for_a_recorded_cause(
    judge: Judge, times: int, cause: str, taken_s: float | None, named: str, remedy: str, where: str
) -> None:
    stalled, healthy, who = stalling_in_turn(where, times, 1.0)
    judged = judge(stalled, healthy, Recording(stalls=tuple((rank, step, cause, taken_s) for rank, step in who)))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert named in found.title
    assert remedy in found.remedy


@pytest.mark.parametrize("pauses", [(), tuple((0, step, "compilation", 1.0) for step in range(3, 120, 2))])
def test_ranks_that_stall_in_turn_without_a_recorded_cause(judge: Judge, pauses: tuple[Any, ...]) -> None:
    stalled, healthy, _ = stalling_in_turn("cpu", 16, 1.0)
    judged = judge(stalled, healthy, Recording(stalls=pauses))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert found.title.endswith("in forward")


@pytest.mark.parametrize(("written_bytes", "named"), [(900_000_000, True), (300_000, False)])
def test_files_that_ranks_write_in_turn_while_they_stall(judge: Judge, written_bytes: int, named: bool) -> None:
    stalled, healthy, who = stalling_in_turn("cpu", 16, 2.0)
    ends_s = {step: 0.0985 * (step + 0.3) + 2.0 * number for number, (_, step) in enumerate(who, 1)}

    def usage(rank: int, at: float) -> dict[str, Any]:
        """Each stall writes as much, evenly; training itself writes 0.1 MB/s."""
        mine = [ends_s[step] for one, step in who if one == rank]
        share = sum(min(1.0, max(0.0, (at - end + 2.0) / 2.0)) for end in mine)
        written = round(written_bytes * share + 100_000 * at)
        return {"processes": 1, "storage_read_bytes": 0, "storage_write_bytes": written}

    judged = judge(stalled, healthy, Recording(usage=usage, sample_s=0.25))
    found = judged.finding("rotating-imbalance", ranks=[])
    assert_priced(found, judged.truth, 0.03)
    assert ("write files" in found.title) is named


def test_four_stalls_in_a_short_run(judge: Judge) -> None:
    """In every ninth step, as a cache that is rebuilt or a file that is reopened."""
    healthy = even(steps=40)
    stalled = healthy.later("optimizer", 2.0, rank=ALL, steps=slice(7, None, 9))
    judged = judge(stalled, healthy)
    assert_priced(judged.finding("common-stall", ranks=[]), judged.truth, 0.03)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_all_ranks_slow_down_little_by_little(judge: Judge, where: str) -> None:
    """As a machine that heats up: at the end they take 1.6 times as long as at first."""
    healthy = place(even(steps=62), where)
    slower = healthy
    for phase in ("forward", "backward"):
        now = getattr(healthy.passes[0], phase)
        slower = slower.later(phase, now * np.linspace(0.0, 0.6, 62), rank=ALL)
    judged = judge(slower, healthy)
    assert_priced(judged.finding("drift", ranks=[]), judged.truth, 0.1)


@pytest.mark.parametrize("little_by_little", [False, True])
def test_all_ranks_that_become_faster_are_a_note(judge: Judge, *, little_by_little: bool) -> None:
    """What is over costs nothing any more, but rates and times of the window are means of two levels."""
    healthy = even(steps=122)
    shape = np.linspace(0.6, 0.0, 122) if little_by_little else np.where(np.arange(122) < 42, 0.6, 0.0)
    longer = healthy
    for phase in ("forward", "backward"):
        longer = longer.later(phase, getattr(healthy.passes[0], phase) * shape, rank=ALL)
    judged = judge(longer)
    assert not judged.priced, judged.said()
    said = "All ranks become faster little by little" if little_by_little else "Up to step 41 all ranks compute "
    assert said in judged.notes()
    assert "all ranks become faster" not in judge(healthy).notes().lower()
    assert "all ranks compute" not in judge(healthy).notes()


def test_a_few_short_steps_at_first_are_no_drift(judge: Judge) -> None:
    """Eight steps whose mean is 1.4 standard deviations below that of the others: four standard errors of their own."""
    noise_s = 0.010 * np.random.default_rng(7).standard_normal(102)
    noise_s[10:] -= noise_s[10:].mean()
    noise_s[2:10] += -0.014 - noise_s[2:10].mean()
    judged = judge(
        even(steps=102, forward_s=0.050, jitter=0.002, device=Device()).later("forward", noise_s, rank=slice(None))
    )
    assert not judged.priced, judged.said()


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_one_rank_that_pauses_in_every_twentieth_step(judge: Judge, where: str) -> None:
    """As one that logs or saves; four times are too few to blame it for their number alone."""
    healthy = place(even(ranks=2, steps=92), where)
    judged = judge(healthy.later("other", 0.6, rank=0, steps=slice(12, None, 20)), healthy)
    found = judged.finding("slow-rank", ranks=[0])
    assert "once in 20 steps" in found.title
    assert_priced(found, judged.truth, 0.03)
    assert not [one for one in judged.priced if one is not found], judged.said()


@pytest.mark.parametrize(("share", "named"), [(0.9, True), (0.3, False)])
def test_work_between_phases_that_is_garbage_collection_is_named(judge: Judge, share: float, named: bool) -> None:
    """As of a program that calls ``gc.collect()`` in each step."""
    healthy = even(ranks=2, steps=60)
    busy = healthy.later("other", 0.1, rank=ALL)
    pauses = tuple((rank, step, "garbage_collection", share * 0.1) for rank in range(2) for step in range(60))
    judged = judge(busy, healthy, Recording(stalls=pauses))
    found = judged.finding("between-phases", ranks=[])
    if named:
        assert_priced(found, (0.0985 + 0.1) / (0.0985 + 0.01), 0.02)  # 90 ms of 100 are garbage collection
    else:
        assert_bound(found, judged.truth)
    assert ("garbage" in found.title) == named
    assert ("gc.freeze()" in found.remedy) == named


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_collections_in_each_step_that_differ_between_ranks(judge: Judge, where: str) -> None:
    """All ranks collect garbage, for 0.2 to 0.8 s: what one takes longer than another is gone, too, without them."""
    healthy = place(even(ranks=4, steps=62, forward_s=0.010, backward_s=0.020), where)
    collected_s = np.random.default_rng(1).uniform(0.2, 0.8, (4, 62))
    pauses = tuple(
        (rank, step, "garbage_collection", float(collected_s[rank, step])) for rank in range(4) for step in range(62)
    )
    judged = judge(healthy.later("other", collected_s, rank=ALL), healthy, Recording(stalls=pauses))
    assert judged.truth > 12
    found = judged.finding("between-phases", ranks=[])
    assert_priced(found, judged.truth, 0.02)
    assert judged.priced[0] is found, judged.said()
