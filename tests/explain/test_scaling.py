"""Sentences on scaling: what they say follows from the numbers, and adds up."""

from __future__ import annotations

import re

import pytest

from allpull.analyse.scaling import table
from allpull.explain.scaling import caveats, sentences
from allpull.schema.base import tag
from allpull.schema.host import HostRecord
from allpull.schema.reading import Io
from allpull.schema.results import Interval, Overhead, RunDetail, RunMetrics, Steady, StepTime
from allpull.schema.run import Exit


def metrics(ranks: int, rate: float, phases_ms: dict[str, float], *, samples: float = 64, batch: int | None = None):
    times = {name: value / 1000 for name, value in phases_ms.items()}
    step_s = sum(times.values())
    return RunMetrics(
        run=f"run-{ranks}-{rate:g}",
        name="made",
        directory="runs/made",
        status="completed",
        ranks=ranks,
        hosts=1,
        global_batch=batch or int(samples * ranks),
        samples_per_rank_step=samples,
        steady=Steady(used=200, left_out={}),
        throughput=Interval(value=rate, low=rate * 0.99, high=rate * 1.01),
        step_s=StepTime(median=step_s, p95=step_s),
        phases=times,
        closure_error=0.0,
        io=Io(read_bytes_per_s=None, reads_per_s=None, storage_read_bytes_per_s=None),
        overhead=Overhead(share=0.001),
        accuracy=0.98,
        accuracy_top5=None,
        speedup=None,
        speedup_interval=None,
        efficiency=None,
        efficiency_interval=None,
        gaps=[],
    )


def detail(run: RunMetrics, exit_: Exit | None = None) -> RunDetail:
    return RunDetail(
        metrics=run, created_utc="", command=[], seed=0, threads_per_rank=1, versions={}, git=None, environment={},
        hosts=[], step_times_s=[], curves=[], exit=exit_,
    )  # fmt: skip


def said(*runs: RunMetrics, facts: list[dict[str, str]] | None = None) -> list[str]:
    show = table(list(runs), facts or [{} for _ in runs])
    return sentences(show, [detail(run) for run in show.runs])


def milliseconds(sentence: str) -> list[float]:
    return [float(value) for value in re.findall(r"([\d.]+) ms", sentence)]


def test_what_is_lost_is_the_sum_of_its_parts():
    """10 ms of compute become 12 ms, and 3 ms of waiting appear; 1 ms of the optimizer goes."""
    one = metrics(1, 5000, {"forward": 10.0, "optimizer": 2.0})
    two = metrics(2, 7500, {"forward": 12.0, "optimizer": 1.0, "wait": 3.0})
    sentence = next(line for line in said(one, two) if "lost against the ideal" in line)
    step, lost, wait, forward, saved = milliseconds(sentence)
    assert step == 16
    assert lost == wait + forward - saved == 4
    assert "3 ms to waiting for the slowest rank and 2 ms to forward passes that take longer, minus 1 ms" in sentence


def test_strong_scaling_is_held_against_its_own_smaller_share():
    """Half of the samples should take half of the time."""
    one = metrics(1, 5000, {"forward": 10.0}, samples=64, batch=64)
    two = metrics(2, 8000, {"forward": 5.0, "transfer": 2.0}, samples=32, batch=64)
    sentence = next(line for line in said(one, two) if "lost against the ideal" in line)
    assert milliseconds(sentence) == [7.0, 2.0, 2.0]


def test_perfect_scaling_loses_nothing():
    lines = said(metrics(1, 5000, {"forward": 10.0}), metrics(4, 20000, {"forward": 10.0}))
    assert "4 ranks train 4.00 ± 0.06 times as fast as 1: 100 % of the ideal 4 (weak scaling, 200" in lines[0]
    assert not any("lost" in line for line in lines)


def test_an_interval_around_one_is_no_speed_up():
    slow, fast = metrics(1, 5000, {"forward": 10.0}), metrics(2, 5100, {"forward": 20.0})
    wide = fast.model_copy(update={"throughput": Interval(value=5100, low=3000, high=7000)})
    assert said(slow, wide)[0].startswith(
        "2 ranks show no speed-up over 1: 1.02 times as fast, and 0.60 to 1.40 with 95 %"
    )
    assert said(slow, metrics(2, 2500, {"forward": 40.0}))[0].startswith("2 ranks are slower than 1: 0.500 ±")


def test_a_busy_machine_and_a_short_run_are_caveats():
    show = table([metrics(2, 5000, {"forward": 10.0})], [{}])
    host = HostRecord.model_validate(
        {"schema": tag("host"), "host": "a", "os": "", "kernel": "", "cpu": {"architecture": "", "usable": 4}}
        | {"fingerprint": "", "load_1min": 3.0}
    )
    busy = caveats(show, [detail(show.runs[0]).model_copy(update={"hosts": [host]})])
    assert any("busy when the run began (load 3.0)" in line for line in busy)
    assert any(line.startswith("The run is short (") for line in busy)


def test_other_programs_are_counted_during_the_run_where_they_are():
    """A demo that raised the load average itself is not warned of its own load; a single rank is warned, too."""
    host = HostRecord.model_validate(
        {"schema": tag("host"), "host": "a", "os": "", "kernel": "", "cpu": {"architecture": "", "usable": 4}}
        | {"fingerprint": "", "load_1min": 3.0}
    )
    for ranks in (1, 2):
        show = table([metrics(ranks, 5000, {"forward": 10.0})], [{}])
        alone = detail(show.runs[0]).model_copy(update={"hosts": [host], "other_cpu_share": 0.03})
        assert not any("busy" in line for line in (*caveats(show, [alone]), *sentences(show, [alone])))
        beside = alone.model_copy(update={"other_cpu_share": 0.6})
        for lines in (caveats(show, [beside]), sentences(show, [beside])):
            assert sum("other programs kept 60 % of its CPUs busy" in line for line in lines) == 1


def test_the_largest_run_is_spoken_of_first():
    runs = [metrics(ranks, 5000 * ranks**0.9, {"forward": 10.0 * ranks**0.1}) for ranks in (1, 2, 8, 4)]
    assert said(*runs)[0].startswith("8 ranks train")


def test_repeats_of_one_size_are_no_scaling():
    lines = said(metrics(2, 5000, {"forward": 10.0}), metrics(2, 3000, {"forward": 16.0}))
    assert not any("times as fast" in line for line in lines)


def test_runs_of_other_work_get_no_speed_up():
    lines = said(
        metrics(1, 5000, {"forward": 10.0}),
        metrics(2, 90000, {"forward": 1.0}),
        facts=[{"model.width": "32"}, {"model.width": "4"}],
    )
    assert "2 ranks (made) cannot be compared: a sample is different work there." in lines
    assert not any("times as fast" in line for line in lines)


@pytest.mark.parametrize("gaps", [1, 500])
def test_what_is_missing_is_listed_beside_the_sentences_and_in_none_of_them(gaps: int):
    run = metrics(2, 5000, {"forward": 10.0}).model_copy(update={"throughput": None})
    missing = [f"gap {number}" for number in range(gaps)]
    assert said(run)[0] == "made on 2 ranks has no throughput: nothing was recorded."
    assert said(run.model_copy(update={"gaps": missing}))[0] == "made on 2 ranks has no throughput."


def test_a_run_that_failed_says_how():
    run = metrics(2, 5000, {"forward": 10.0})
    ended = Exit(code=137, rank=1, host="n1", signal="SIGKILL")
    assert any(
        "rank 1 on n1 was ended by SIGKILL" in line for line in sentences(table([run], [{}]), [detail(run, ended)])
    )
