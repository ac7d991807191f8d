"""Does `allpull tune` find the optimum of a rehearsal at a third of the cost of trying everything?

    python benchmarks/tune_rehearsal.py [--keep DIR] [--points N] [--seeds 200] [--tuned 1] [--output FILE]

1. Every configuration of `tuned_program.py` (bucket size × loader workers × communication hook, 60 in all) runs on two
   hosts behind shaped links, and the fastest few run again: the optimum, from outside.
2. The search, from a start drawn at random for each seed, measures on that table: a recorded run of a configuration,
   times the spread between the runs that were repeated. It has a third of the cost of the table, in seconds of runs,
   with six runs of confirmation in it. No run is ended early there, so a real tuning costs less.
3. `allpull tune` itself, on the same cluster, from the default configuration.

``--keep`` keeps the runs: the same command goes on, and ``--points`` runs at most so many of the table. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allpull.schema.results import Interval
from allpull.schema.studied import Parameters
from allpull.schema.tuned import BottleneckKind
from allpull.study.directory import locked
from allpull.study.file import load_study
from allpull.study.point_run import StudyPlace
from allpull.study.tune.jobs_evaluate import JobsEvaluate
from allpull.study.tune.objective import GOALS, Measured
from allpull.study.tune.search import Budget, Search
from allpull.study.tune.space import Dimension
from allpull.study.tune.study_tuning import prepare, tune_study
from stored import ROOT, keep

GOAL = GOALS["throughput"]
NEAR = 0.03  # of the optimum
SHARE = 1 / 3  # of the cost of the table
CONFIRM = 3
AGAIN, AGAIN_RUNS = 4, 2  # the fastest so many configurations run so often again

CLUSTER = """
[cluster]
hosts = 2
link = "1 Gbit/s"
latency = "1 ms"
"""

STUDY = """
[study]
name = "tuned-rehearsal"
launcher = "rehearse:{cluster}"
timeout = "3 min"

[run]
command = [
  "{program}", "--bucket-mb={{bucket_mb}}", "--workers={{workers}}", "--hook={{hook}}", "--steps=40",
]

[axes]
ranks = [2]

[tune]
budget = "{budget:.0f} s"
confirm = {confirm}

[tune.space]
bucket_mb = [25.0, 0.25, 0.5, 1.0, 2.5, 5.0]
workers = [1, 2, 3, 4, 6]
hook = ["none", "fp16"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration of the table: its runs, and the bottlenecks of the first."""

    parameters: Parameters
    rates: list[float]
    intervals: list[Interval]
    seconds: list[float]
    kinds: list[BottleneckKind]

    @property
    def rate(self) -> float:
        """Samples/s, over all its runs."""
        return statistics.fmean(self.rates)


class Table:
    """Measures configurations from the table, as `Evaluate` does; ``noise`` is the spread of the logarithms of runs."""

    def __init__(self, rows: Sequence[Row], noise: float, seed: int) -> None:
        self._rows = {_key(row.parameters): row for row in rows}
        self._noise, self._random = noise, random.Random(seed)
        self._runs: list[Row] = []

    def run(self, parameters: Parameters, repeat: int, hopeless: Callable[[Interval], str | None]) -> Measured:
        """One run of the table, with noise."""
        del repeat, hopeless
        row = self._rows[_key(parameters)]
        at = self._random.randrange(len(row.rates))
        factor = math.exp(self._random.gauss(0, self._noise))
        found = row.intervals[at]
        low, high = (None if bound is None else bound * factor for bound in (found.low, found.high))
        self._runs.append(row)
        return Measured(
            state="completed",
            value=Interval(value=row.rates[at] * factor, low=low, high=high),
            seconds=row.seconds[at],
            rank_s=2 * row.seconds[at],
            run=str(len(self._runs) - 1),
        )

    def bottlenecks(self, run: str) -> Sequence[BottleneckKind]:
        """Those of the recorded run."""
        return self._runs[int(run)].kinds


def main() -> None:
    """Measure, search, tune, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the runs, which the next call goes on from")
    parser.add_argument("--points", type=int, default=10_000, help="run at most so many of the table now, then stop")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=1, help="how many times `allpull tune` itself runs")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(options, (options.keep or Path(temporary)).resolve())


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All three parts, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    study = load_study(str(study_file(folder, "grid", budget_s=1)))
    prepared = prepare(study)
    (folder / "grid" / "runs").mkdir(parents=True, exist_ok=True)
    with locked(folder / "grid") as lock:
        place = StudyPlace(directory=folder / "grid", lock=lock)
        rows = table(JobsEvaluate(study, GOAL, place, fixed=prepared.fixed), prepared.space, options.points)
    if rows is None:
        print("not all of the table is measured yet: the same command goes on")
        return
    cost_s = sum(row.seconds[0] for row in rows)
    best = max(rows, key=lambda row: row.rate)
    noise = spread(rows)
    searches = [searched(rows, prepared.space, noise, seed, SHARE * cost_s) for seed in range(options.seeds)]
    tuned = [tuned_once(folder, index, rows, SHARE * cost_s) for index in range(options.tuned)]
    shortfalls = sorted(one["shortfall"] for one in searches)
    keep(
        options.output,
        {
            "configurations": len(rows),
            "table_s": round(cost_s, 1),
            "optimum": {"parameters": best.parameters, "samples_per_s": round(best.rate, 1)},
            "slowest_samples_per_s": round(min(row.rate for row in rows), 1),
            "within_3_percent": sum(row.rate >= (1 - NEAR) * best.rate for row in rows),
            "spread_between_runs": round(noise, 4),
            "searches": {
                "seeds": len(searches),
                "missed": sum(shortfall > NEAR for shortfall in shortfalls),
                "median_shortfall": round(statistics.median(shortfalls), 4),
                "largest_shortfall": round(shortfalls[-1], 4),
                "mean_cost_share": round(statistics.fmean(one["cost_share"] for one in searches), 3),
                "largest_cost_share": round(max(one["cost_share"] for one in searches), 3),
                "mean_configurations": round(statistics.fmean(one["trials"] for one in searches), 1),
            },
            "tuned": tuned,
            "table": [
                {"parameters": row.parameters, "samples_per_s": [round(rate, 1) for rate in row.rates]} for row in rows
            ],
        },
    )


def study_file(folder: Path, name: str, *, budget_s: float) -> Path:
    """The study, with its cluster, in ``folder``."""
    (folder / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
    text = STUDY.format(
        cluster=folder / "cluster.toml",
        program=ROOT / "benchmarks" / "tuned_program.py",
        budget=max(1.0, budget_s),
        confirm=CONFIRM,
    )
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def table(evaluate: JobsEvaluate, space: Sequence[Dimension], at_most: int) -> list[Row] | None:
    """Every configuration, in an order shuffled so that drift is no effect; None where some are still missing."""
    points = [
        dict(zip((one.name for one in space), levels, strict=True))
        for levels in itertools.product(*(one.levels for one in space))
    ]
    random.Random(0).shuffle(points)
    counter = Counter(evaluate, at_most)
    first = [(parameters, counter.run(parameters, 0)) for parameters in points]
    if any(measured is None for _, measured in first):
        return None
    rows = [_row(evaluate, parameters, measured) for parameters, measured in first if measured is not None]
    for row in sorted(rows, key=lambda row: -row.rate)[:AGAIN]:
        for repeat in range(1, AGAIN_RUNS + 1):
            measured = counter.run(row.parameters, repeat)
            if measured is None:
                return None
            assert measured.value is not None, measured.reason
            row.rates.append(measured.value.value)
            row.intervals.append(measured.value)
            row.seconds.append(measured.seconds)
    return rows


class Counter:
    """Runs at most so many configurations that were not run yet."""

    def __init__(self, evaluate: JobsEvaluate, at_most: int) -> None:
        self._evaluate, self._left = evaluate, at_most

    def run(self, parameters: Parameters, repeat: int) -> Measured | None:
        """One run, now or from before; None where no more are to be started."""
        is_new = not self._evaluate.is_completed(parameters, repeat)
        if is_new and self._left == 0:
            return None
        self._left -= is_new
        measured = self._evaluate.run(parameters, repeat, lambda _: None)
        if is_new and measured.value is not None:
            print(parameters, repeat, f"{measured.value.value:.1f} samples/s in {measured.seconds:.1f} s", flush=True)
        return measured


def spread(rows: Sequence[Row]) -> float:
    """Standard deviation of the logarithm between runs of one configuration, pooled over those that ran again."""
    repeated = [[math.log(rate) for rate in row.rates] for row in rows if len(row.rates) > 1]
    return math.sqrt(statistics.fmean(statistics.variance(rates) for rates in repeated))


def searched(
    rows: Sequence[Row], space: Sequence[Dimension], noise: float, seed: int, budget_s: float
) -> Mapping[str, Any]:
    """One search on the table, from a random start."""
    drawn = random.Random(seed)
    space = [replace(one, start=drawn.randrange(len(one.levels))) for one in space]
    search = Search(space, GOAL, Table(rows, noise, seed), seed=seed)
    search.run(Budget(seconds=budget_s, reserved_runs=2 * CONFIRM), lambda _: None)
    assert search.best is not None
    cost_s = sum(trial.seconds for trial in search.trials)
    cost_s += CONFIRM * (search.best.seconds + search.trials[0].seconds)
    return {
        "shortfall": shortfall(rows, search.best.parameters),
        "cost_share": cost_s / sum(row.seconds[0] for row in rows),
        "trials": len(search.trials),
    }


def tuned_once(folder: Path, index: int, rows: Sequence[Row], budget_s: float) -> Mapping[str, Any]:
    """`allpull tune` itself."""
    study = load_study(str(study_file(folder, f"tuned{index}", budget_s=budget_s)))
    result = tune_study(study, folder / f"tuned{index}", on_trial=lambda trial, _: print(trial.parameters, trial.state))
    assert result.best is not None
    confirmation = result.confirmation
    return {
        "best": result.best,
        "shortfall": round(shortfall(rows, result.best), 4),
        "cost_share": round(result.seconds / sum(row.seconds[0] for row in rows), 3),
        "trials": [
            {
                "parameters": trial.parameters,
                "state": trial.state,
                "samples_per_s": None if trial.value is None else round(trial.value.value, 1),
                "by": trial.proposed_by,
                "bottleneck": trial.bottleneck,
                "seconds": round(trial.seconds, 1),
            }
            for trial in result.trials
        ],
        "gain_in_search": result.gain_in_search,
        "gain": None if confirmation is None or confirmation.gain is None else confirmation.gain.model_dump(),
    }


def shortfall(rows: Sequence[Row], parameters: Parameters) -> float:
    """By how much a configuration is slower than the optimum, as a share of it."""
    best = max(row.rate for row in rows)
    return 1 - next(row.rate for row in rows if _key(row.parameters) == _key(parameters)) / best


def _row(evaluate: JobsEvaluate, parameters: Parameters, measured: Measured) -> Row:
    assert measured.value is not None, measured.reason
    assert measured.run is not None
    return Row(
        parameters=parameters,
        rates=[measured.value.value],
        intervals=[measured.value],
        seconds=[measured.seconds],
        kinds=list(evaluate.bottlenecks(measured.run)),
    )


def _key(parameters: Parameters) -> tuple[Any, ...]:
    return tuple(sorted(parameters.items()))


if __name__ == "__main__":
    main()
