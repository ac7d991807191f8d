"""A tuning as a whole: gain from fresh runs, notes, resuming from its file; bottlenecks; what live records show."""

from __future__ import annotations

import math
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.study.tune.simulated import Simulated

from allpull.errors import RunDirError
from allpull.report.terminal.tune import tuned
from allpull.study.tune.bottleneck import bottlenecks
from allpull.study.tune.budget import Spent
from allpull.study.tune.confirm import gain
from allpull.study.tune.live_value import live_value
from allpull.study.tune.objective import GOALS
from allpull.study.tune.settings import read_settings
from allpull.study.tune.trial_log import FILE, read_trials
from allpull.study.tune.tuning import Subject, tune

pytest.importorskip("optuna")


def tuning(directory, *, noise=0.02, seed=0, simulated=None, on_trial=lambda *_: None, **table):
    settings = read_settings(
        {"trials": 14, "space": {"bucket": [25, 1, 5, 50], "workers": [1, 2, 4, 8, 16]}, **table}, "study"
    )
    subject = Subject(
        name="a", title="", directory=directory, command=lambda _: ["allpull", "run"], toml=lambda _: "a = 1\n"
    )
    if simulated is None:
        simulated = Simulated({"batch": 64}, noise=noise, seed=seed)
        simulated.runs = [{"batch": 64, **trial.parameters} for trial in read_trials(directory)]
    result = tune(subject, settings, settings.dimensions({}), simulated, seed=seed, on_trial=on_trial)
    return result, simulated


def test_the_gain_is_that_of_fresh_runs_and_holds_the_truth(tmp_path):
    held = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        result, simulated = tuning(folder, seed=seed)
        truth = simulated.rate(result.best) / simulated.rate(result.start)
        held += result.confirmation.gain.low <= truth <= result.confirmation.gain.high
        assert len(simulated.runs) == len(result.trials) + 6
    assert held >= 17, "of 20 intervals of 95 %"


def test_a_killed_tuning_goes_on_from_its_file(tmp_path):
    first, _ = tuning(tmp_path, trials=5, confirm=0)
    assert len(first.trials) == 5
    with (tmp_path / FILE).open("a") as file:
        file.write('{"number": 5, "par')  # the line that a kill cut
    settings = {"trials": 9, "confirm": 0}
    second, _ = tuning(tmp_path, **settings)
    assert second.trials[:5] == first.trials
    assert [one.number for one in read_trials(tmp_path)] == list(range(9))
    (tmp_path / FILE).write_text("no trial\n")
    with pytest.raises(RunDirError, match="line 1 is no trial"):
        read_trials(tmp_path)


class KilledError(BaseException):
    """As by SIGKILL: nothing is cleaned up."""


def killed_after(count):
    def look(trial, _):
        if trial.number == count - 1:
            raise KilledError

    return look


BUDGET = {"trials": 0, "budget": "200 s"}  # runs take 10 s each, 3 + 3 of them confirm


def test_what_a_killed_tuning_had_spent_counts_and_the_confirmation_fits(tmp_path):
    with pytest.raises(KilledError):
        _, simulated = tuning(tmp_path, on_trial=killed_after(4), **BUDGET)
    simulated = Simulated({"batch": 64}, noise=0.02, seed=0)
    simulated.runs = [{"batch": 64, **trial.parameters} for trial in read_trials(tmp_path)]
    simulated.took = {trial.run: Spent(seconds=10.0, rank_s=160.0) for trial in read_trials(tmp_path)}
    simulated.took["killed"] = Spent(seconds=57.0, rank_s=912.0)  # a trial that hung until the kill
    result, simulated = tuning(tmp_path, simulated=simulated, **BUDGET)
    assert result.ended == "time"
    assert 57 + 10 * len(result.trials) + 60 <= 200 < 57 + 10 * (len(result.trials) + 1) + 60
    assert len(result.confirmation.best) == 3
    assert result.seconds == pytest.approx(sum(one.seconds for one in simulated.took.values()))
    assert result.seconds <= 200
    assert any("57 s went into runs that were interrupted" in note for note in result.notes)


def test_nothing_that_a_killed_tuning_completed_is_measured_again(tmp_path):
    """Killed between the end of a trial and its line, and again in the middle of the confirmation."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, _ = tuning(tmp_path / "whole", noise=0.0, **BUDGET)
    simulated = Simulated({"batch": 64}, noise=0.0, seed=0)
    made = simulated.run
    limit = 0

    def run(*arguments):
        measured = made(*arguments)
        if len(simulated.runs) == limit:
            raise KilledError  # completed, and nobody knows of it
        return measured

    simulated.run = run
    ended = [number for number, one in enumerate(whole.trials, 1) if one.state == "completed"]
    for limit in (ended[1], ended[5], len(whole.trials) + 4):  # noqa: B007  read in run
        with pytest.raises(KilledError):
            tuning(tmp_path / "killed", simulated=simulated, **BUDGET)
    limit = 0
    result, _ = tuning(tmp_path / "killed", simulated=simulated, **BUDGET)
    assert [one.parameters for one in result.trials] == [one.parameters for one in whole.trials]
    assert result.confirmation.gain == whole.confirmation.gain
    assert len(simulated.runs) == len(whole.trials) + 6
    assert result.seconds == pytest.approx(whole.seconds)


def test_a_confirmation_without_room_is_shorter_and_says_so(tmp_path):
    with pytest.raises(KilledError):
        tuning(tmp_path, on_trial=killed_after(6), **BUDGET)
    kept = read_trials(tmp_path)
    simulated = Simulated({"batch": 64}, noise=0.02, seed=0)
    simulated.runs = [{"batch": 64, **trial.parameters} for trial in kept]
    simulated.took = {"killed": Spent(seconds=110.0, rank_s=1760.0)}
    result, _ = tuning(tmp_path, simulated=simulated, **BUDGET)
    assert len(result.trials) == 6
    assert len(result.confirmation.start) == 1
    assert any("room for 1 of 3 pairs" in note for note in result.notes)


def test_no_gain_is_claimed_where_there_is_none(tmp_path):
    result, _ = tuning(
        tmp_path, noise=0.05, space={"workers": [8], "bucket": [25], "hook": ["none", "also none"]}, trials=2
    )
    if result.confirmation is not None:
        assert any("the gain is not shown" in note for note in result.notes)
    else:
        assert result.best == result.start


def test_the_terminal_shows_every_trial_and_the_best(tmp_path):
    result, _ = tuning(tmp_path)
    console = Console(width=160, record=True, file=StringIO())
    console.print(tuned(result))
    text = console.export_text()
    assert "confirmed by 3 + 3 fresh runs in alternation" in text
    assert text.count("neighbour of the best") >= 5
    assert "    a = 1" in text


def test_gain_needs_a_run_on_each_side():
    goal = GOALS["throughput"]
    assert gain(goal, [100.0, None], [None, None]) is None
    alone = gain(goal, [100.0], [150.0])
    assert alone.value == pytest.approx(1.5)
    assert (alone.low, alone.high) == (None, None)


def explained(*, gains=(), findings=(), mean=None, efficiency=True):
    return SimpleNamespace(
        findings=[SimpleNamespace(rule=rule, loss_share=share) for rule, share in findings],
        efficiency=object() if efficiency else None,
        gains=dict(gains),
        phases=SimpleNamespace(mean=mean or {}),
    )


def test_bottleneck_is_the_largest_loss_and_computation_counts_half():
    work = {"forward": 0.02, "backward": 0.04, "optimizer": 0.0, "input": 0.03, "transfer": 0.01}
    assert bottlenecks(explained(gains={"input": 1.3, "transfer": 1.1}.items(), mean=work)) == [
        "compute",
        "input",
        "network",
    ]
    assert bottlenecks(explained(findings=[("input-bound", 0.5)], mean=work))[0] == "input"
    assert bottlenecks(explained(findings=[("cpu-contention", 0.4)], mean=work))[0] == "cpu"
    assert bottlenecks(explained(mean={"input": 0.09, "forward": 0.01}, efficiency=False))[0] == "input"
    assert bottlenecks(explained()) == []


def job(steps=40, wall_ms=100, ranks=2, **metrics):
    def step(number):
        begin = number * wall_ms * 10**6
        wobble = (number % 3) * 10**5
        return SimpleNamespace(
            step=number, begin_ns=begin, end_ns=begin + wall_ms * 10**6 + wobble, samples=16, is_tagged=number == 7
        )

    rank = SimpleNamespace(steps=[step(number) for number in range(steps)])
    return SimpleNamespace(ranks=[rank] * ranks, record=SimpleNamespace(ranks=2), metrics=metrics)


def test_live_rate_is_that_of_all_ranks_after_the_warm_up():
    value = live_value(GOALS["throughput"], job(), warmup_steps=5, seconds=4.0)
    assert value.value == pytest.approx(320, rel=0.01)
    assert value.low <= value.value <= value.high
    assert live_value(GOALS["throughput"], job(steps=20), warmup_steps=5, seconds=2.0) is None
    assert live_value(GOALS["throughput"], job(ranks=1), warmup_steps=5, seconds=2.0) is None


def test_live_epoch_is_its_training_and_needs_to_know_its_steps():
    assert live_value(GOALS["epoch_s"], job(), warmup_steps=5, seconds=4.0) is None
    value = live_value(GOALS["epoch_s"], job(steps_per_epoch=1000), warmup_steps=5, seconds=4.0)
    assert value.value == pytest.approx(100, rel=0.01)


def test_time_to_accuracy_is_at_least_the_time_that_passed():
    value = live_value(GOALS["time_to_accuracy_s"], job(steps=0), warmup_steps=5, seconds=40.0)
    assert (value.low, value.high) == (40.0, None)
    assert math.isfinite(value.value)
