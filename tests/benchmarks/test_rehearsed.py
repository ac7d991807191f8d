"""Forecasts of rehearsals are judged by arithmetic that this file repeats; every rehearsal is a valid cluster file."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.rehearse.cluster.file import load_cluster


@pytest.fixture(scope="module")
def scripts() -> Any:
    """The script, its cases, its truths and its rivals."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        names = ("predict_rehearsed", "rehearsed_cases", "rehearsed_truth", "scaling_baselines")
        return SimpleNamespace(**{name: import_module(name) for name in names})
    finally:
        sys.path[:] = before


def row(scripts: Any, *, truth_s: float = 2.0, forecast_s: float | None = 2.1, low_s: float = 2.0) -> Any:
    asked = {"case": "one", "group": "a", "quantity": "step", "ranks": 4}
    interval = {} if forecast_s is None else {"forecast_s": forecast_s, "low_s": low_s, "high_s": 2.2}
    rivals = {"linear scaling": 1.0}
    return scripts.predict_rehearsed.Row(
        **asked, truth_s=truth_s, truths_s=(truth_s,), as_recorded_s=truth_s, baselines_s=rivals, **interval
    )


def test_a_refusal_has_no_error_and_holds_nothing(scripts: Any) -> None:
    rows = [row(scripts), row(scripts, forecast_s=None)]
    judged = scripts.predict_rehearsed.summary(rows)
    assert judged == {
        "cases": 2,
        "refused": 1,
        "mean_error": 0.05,
        "largest_error": 0.05,
        "coverage": 0.5,
        "half_width": round(0.1 / 2.1, 4),
    }
    assert scripts.predict_rehearsed.met(judged) == {
        "mean_error": False,
        "largest_error": True,
        "coverage": False,
        "half_width": True,
    }
    assert scripts.predict_rehearsed.rivals(rows)["linear scaling"]["mean_error"] == 0.5


def test_only_an_interval_around_the_truth_holds_it(scripts: Any) -> None:
    assert row(scripts).held
    assert not row(scripts, low_s=2.01).held


@pytest.mark.parametrize(("ranks", "expected_s"), [(1, 0.0), (2, 1.0), (4, 1.5), (16, 1.875)])
def test_a_ring_sends_twice_what_others_have(scripts: Any, ranks: int, expected_s: float) -> None:
    assert scripts.scaling_baselines.ring_s(1e6, ranks, 1e6) == expected_s


def test_extrap_is_not_asked_with_fewer_sizes_than_it_needs(scripts: Any) -> None:
    with pytest.raises(ValueError, match="needs 5 sizes, and there are 2"):
        scripts.scaling_baselines.extrap("python", {1: 1.0, 2: 1.5}, [8])


def test_every_rehearsal_is_a_cluster_and_has_one_name(scripts: Any, tmp_path: Path) -> None:
    cases = scripts.rehearsed_cases.cases()
    jobs = [job for case in cases for job in (case.truth, *case.calibration)]
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        assert by_name[job.name] == job
        path = tmp_path / "cluster.toml"
        path.write_text(job.toml(seed=3))
        cluster = load_cluster(path)
        assert cluster.ranks == job.ranks
        assert job.steps > scripts.rehearsed_cases.WARMUP
        link_bytes_per_s = cluster.hosts[0].link_bytes_per_s / cluster.table.shrink
        assert link_bytes_per_s == pytest.approx(job.mbit * 1e6 / 8)
    assert {job.ranks for case in cases for job in case.calibration} == {1, 2}


def test_no_two_jobs_draw_the_same_jitter(scripts: Any) -> None:
    jobs = scripts.predict_rehearsed.rehearsals(scripts.rehearsed_cases.cases(), calibrations=True)
    jittered = [job for job in jobs if "jitter" in job.name]
    texts = [job.toml(scripts.predict_rehearsed.seed(job, turn)) for job in jittered for turn in (0, 1)]
    assert len({re.search("seed = ([0-9]+)", text)[1] for text in texts}) == len(texts) == 8  # type: ignore[index]


def test_cpu_time_is_that_of_the_named_processes_and_of_interrupts(scripts: Any) -> None:
    truth = scripts.rehearsed_truth
    moments = [(0.0, {1: 1.0}, 5.0), (2.0, {1: 1.5, 2: 0.25}, 5.25), (4.0, {1: 1.5}, 5.25)]
    samples = [truth.Sample(t_s=t_s, processes_s=used, interrupts_s=kernel_s) for t_s, used, kernel_s in moments]
    cores = truth.psutil.cpu_count()
    assert truth.cpu_share(samples, 0.0, 2.0) * cores == pytest.approx(0.5)
    assert truth.cpu_share(samples, 0.0, 4.0) * cores == pytest.approx(0.25)


def test_a_step_that_waited_for_a_cpu_counts_as_the_others_and_one_with_an_evaluation_as_it_is(
    scripts: Any, tmp_path: Path
) -> None:
    """12 steps of 100 ms in epochs of 4; step 6 is disturbed, and step 8 begins with an evaluation of 1 s."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "events").mkdir()
    lines, now_ns = ['{"schema": "allpull.steps/1.6", "rank": 0}'], 0
    for step in range(12):
        lasted_ns = {6: 150, 8: 1100}.get(step, 100) * 10**6
        record = {"step": step, "begin_ns": now_ns, "end_ns": now_ns + lasted_ns, "queued_ns": 0}
        now_ns += lasted_ns
        record |= {6: {"queued_ns": 50 * 10**6}, 8: {"evaluation_ns": 10**9}}.get(step, {})
        lines.append(json.dumps(record))
    (tmp_path / "steps" / "rank-00000.jsonl").write_text("\n".join(lines))
    epochs = [{"kind": "epoch", "epoch": number, "step": 4 * number, "t_ns": 0} for number in range(3)]
    events = [*epochs, {"kind": "buckets", "sizes_bytes": [8, 4]}]
    (tmp_path / "events" / "rank-00000.jsonl").write_text("\n".join(map(json.dumps, events)))
    machine = {"cpu_share": 0.1, "load": 1.0, "commit": "0" * 40}
    truth = scripts.rehearsed_truth.read(tmp_path, machine, loads=False)
    assert truth.step_s == pytest.approx((6 * 0.1 + 1.1) / 7)
    assert truth.epoch_s == pytest.approx(0.4)
    assert truth.as_recorded_s == pytest.approx(((6 * 0.1 + 0.05 + 1.1) / 7, 0.45))
    assert (truth.steps, truth.undisturbed, truth.bucket_bytes) == (6, 5, (8, 4))
    assert scripts.rehearsed_truth.read(tmp_path, machine, loads=True).epoch_s == pytest.approx(0.45)


def test_passes_count_by_their_undisturbed_steps(scripts: Any) -> None:
    quiet, busy = SimpleNamespace(undisturbed=9), SimpleNamespace(undisturbed=1)
    assert scripts.predict_rehearsed.pooled([quiet, busy], [1.0, 2.0]) == pytest.approx(1.1)
    busy.undisturbed = quiet.undisturbed = 0
    assert scripts.predict_rehearsed.pooled([quiet, busy], [1.0, 2.0]) == pytest.approx(1.5)
