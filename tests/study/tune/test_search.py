"""The search: near the optimum at a third of the grid, resumable, and what it does with failures and limits."""

from __future__ import annotations

import pytest
from tests.study.tune.simulated import Simulated, optimum

from allpull.schema.tuned import Trial
from allpull.study.tune.budget import Budget
from allpull.study.tune.objective import GOALS
from allpull.study.tune.search import Search
from allpull.study.tune.space import configurations, dimension

pytest.importorskip("optuna")

BUCKETS = dimension("bucket", [1, 2, 5, 10, 25, 50, 100], default=25)
WORKERS = dimension("workers", [1, 2, 4, 8, 16])
HOOKS = dimension("hook", ["none", "fp16"])
BATCHES = dimension("batch", [16, 32, 64, 128, 256, 512])
SPACES = {"three": (BUCKETS, WORKERS, HOOKS), "batch": (BUCKETS, WORKERS, BATCHES)}
RATE = GOALS["throughput"]


def searched(space, simulated, *, trials, seed=0, known=()) -> Search:
    search = Search(space, RATE, simulated, trials=known, seed=seed)
    search.run(Budget(trials=trials), lambda _: None)
    return search


@pytest.mark.parametrize("name", SPACES)
def test_within_3_percent_of_the_optimum_at_a_third_of_the_grid_confirmation_included(name):
    space = SPACES[name]
    size = configurations(space)
    missed = 0
    for seed in range(3):
        simulated = Simulated({"batch": 64}, noise=0.01, seed=seed)
        search = searched(space, simulated, trials=size // 3 - 6, seed=seed)
        best = simulated.rate(search.best.parameters)
        missed += best < 0.97 * optimum(space, simulated)
        assert sum(trial.seconds for trial in search.trials) + 60 <= 10 * size / 3
    assert missed == 0


def test_the_bottleneck_comes_first():
    simulated = Simulated({"batch": 64}, noise=0.0, seed=0)
    search = searched(SPACES["three"], simulated, trials=4)
    start, *then = search.trials
    assert start.parameters == {"bucket": 25, "workers": 1, "hook": "none"}
    assert start.proposed_by == "start"
    assert search.kinds_of(start)[0] == "input"  # one worker for a batch of 64
    assert (then[0].parameters["workers"], then[0].bottleneck) == (2, "input")
    assert then[1].bottleneck == "network"  # two workers are enough for that


class TwoLimits(Simulated):
    """Its link and its loaders limit it alike at first, and it computes for most of the time, which nothing tunes."""

    def rate(self, parameters):
        return min(68 if parameters["hook"] == "none" else 104, 34 * parameters["workers"])

    def bottlenecks(self, run):
        hook, workers = (self.runs[int(run)][name] for name in ("hook", "workers"))
        return ["compute", "network" if hook == "none" and workers > 1 else "input"]


def test_two_limits_that_tie_are_both_relieved_beside_one_that_nothing_tunes():
    space = (BUCKETS, dimension("workers", [2, 3, 4]), HOOKS)
    search = searched(space, TwoLimits({"batch": 64}, noise=0.0, seed=0), trials=14)
    found = next(trial for trial in search.trials if trial.value.value == 102)
    assert found.parameters == {"bucket": 25, "workers": 3, "hook": "fp16"}
    assert (found.proposed_by, found.bottleneck) == ("bottleneck", "input")
    assert search.best.parameters["workers"] == 4


def test_a_failure_is_a_row_with_its_reason_and_never_the_best():
    simulated = Simulated({"bucket": 25}, noise=0.0, seed=0)
    search = searched((dimension("batch", [256, 512]), WORKERS), simulated, trials=10)
    failed = [trial for trial in search.trials if trial.state == "failed"]
    assert failed
    assert all(trial.reason == "out of memory" and trial.value is None for trial in failed)
    assert search.best.parameters["batch"] == 256


def test_a_clearly_worse_run_is_stopped_and_never_the_best():
    simulated = Simulated({"batch": 64, "bucket": 25}, noise=0.001, seed=0)
    search = searched((dimension("workers", [1, 8, 16], default=8),), simulated, trials=5)
    states = {trial.parameters["workers"]: trial.state for trial in search.trials}
    assert states[8] == "completed"
    assert states[1] == "stopped"
    assert search.best.parameters == {"workers": 8}


@pytest.mark.parametrize("killed_after", [5, 15])
def test_a_search_that_was_killed_proposes_what_it_would_have(killed_after):
    space = SPACES["three"]
    whole = searched(space, Simulated({"batch": 64}, noise=0.0, seed=0), trials=18)
    first = searched(space, Simulated({"batch": 64}, noise=0.0, seed=0), trials=killed_after)
    kept = [Trial.model_validate_json(trial.model_dump_json()) for trial in first.trials]
    simulated = Simulated({"batch": 64}, noise=0.0, seed=0)
    simulated.runs = [{"batch": 64, **trial.parameters} for trial in kept]
    resumed = searched(space, simulated, trials=18, known=kept)
    assert len(simulated.runs) == 18
    assert [one.parameters for one in resumed.trials] == [one.parameters for one in whole.trials]
    assert [one.proposed_by for one in whole.trials[13:]].count("optuna") >= 3


def test_no_configuration_is_run_twice_and_a_small_space_ends():
    simulated = Simulated({"batch": 64, "bucket": 25}, noise=0.0, seed=0)
    search = Search((WORKERS, HOOKS), RATE, simulated)
    assert search.run(Budget(trials=100), lambda _: None) == "space"
    assert len({tuple(trial.parameters.items()) for trial in search.trials}) == len(search.trials) == 10


def test_time_is_left_for_the_confirmation():
    simulated = Simulated({"batch": 64}, noise=0.0, seed=0)
    search = Search(SPACES["three"], RATE, simulated)
    assert search.run(Budget(seconds=150, confirm=3), lambda _: None) == "time"
    assert 60 <= sum(trial.seconds for trial in search.trials) <= 90
    assert simulated.within[0].seconds == 150  # of the first trial: what confirms it is not known before
    assert simulated.within[1].seconds == 150 - 10 - 6 * 10
    other = Simulated({"batch": 64}, noise=0.0, seed=0)
    assert Search(SPACES["three"], RATE, other).run(Budget(rank_s=1600), lambda _: None) == "rank-hours"


def test_a_range_is_searched_too():
    simulated = Simulated({"bucket": 25, "hook": "none"}, noise=0.0, seed=0)
    space = (dimension("workers", {"low": 1, "high": 16}), dimension("batch", {"low": 16, "high": 256, "log": True}))
    search = searched(space, simulated, trials=25)
    assert simulated.rate(search.best.parameters) > 0.97 * simulated.rate({"workers": 8, "batch": 256})


def test_nothing_follows_a_start_that_fails():
    simulated = Simulated({"bucket": 25, "workers": 4}, noise=0.0, seed=0)
    search = Search((dimension("batch", [512, 1024]),), RATE, simulated)
    assert search.run(Budget(trials=5), lambda _: None) == "start failed"
    assert len(search.trials) == 1
