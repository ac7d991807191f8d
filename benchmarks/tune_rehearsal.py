"""Does `allpull tune` find the optimum of a rehearsal at a third of the cost of trying everything?

    python benchmarks/tune_rehearsal.py [--keep DIR] [--seeds 200] [--tuned 1] [--output FILE]

1. `tuned_program.py` trains with every configuration (bucket size × loader workers × communication hook, 60 in all) on
   two hosts behind shaped links, in a shuffled order and some of them twice, and times its steps itself: the optimum,
   from outside.
2. The search, from a start drawn at random for each seed, measures on that table: what a run of it gave, times the
   spread between runs. It has a third of the cost of the table, the confirmation included. A run costs what a
   real one takes to start, and its steps. No run is ended early there, so a real tuning costs less.
3. `allpull tune` itself, on the same cluster, from the default configuration.
4. What it chose and the best of the table run again in turns: of 60 configurations that ran once, the best was lucky.

``--keep`` keeps the table and the runs: the same command goes on. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allpull.explain.evidence.loading.deliveries import LEAST
from allpull.schema.results import Interval
from allpull.schema.studied import Parameters
from allpull.schema.tuned import BottleneckKind
from allpull.study.directory import locked
from allpull.study.file import load_study
from allpull.study.point_run import StudyPlace
from allpull.study.tune.bottleneck import RECOVERABLE
from allpull.study.tune.budget import UNLIMITED, Budget, Spent
from allpull.study.tune.jobs_evaluate import JobsEvaluate
from allpull.study.tune.objective import GOALS, Hopeless, Measured
from allpull.study.tune.search import Search
from allpull.study.tune.space import Dimension, start_of
from allpull.study.tune.study_tuning import Prepared, prepare, tune_study
from stored import ROOT, keep

PROGRAM = ROOT / "benchmarks" / "tuned_program.py"
RANKS, BATCH, STEPS, WIDTH = 2, 16, 20, 160
WORK_S = 40 * 6e-3  # of a step: layers × their forward and backward
REPEATED = 15  # configurations that are measured twice, for the spread
GOAL = GOALS["throughput"]
NEAR = 0.03  # of the optimum
SHARE = 0.32  # of the cost of the table: under a third, though confirming runs may take a little longer than planned
CONFIRM = 3
RIVALS, AGAIN = 3, 5  # the best of the table, and how often each of them runs again

CLUSTER = """
[cluster]
hosts = 2
link = "100 Mbit/s"
latency = "1 ms"
"""

STUDY = """
[study]
name = "tuned-rehearsal"
launcher = "rehearse:{cluster}"
timeout = "3 min"

[run]
command = [
  "{program}", "--bucket-mb={{bucket_mb}}", "--workers={{workers}}", "--hook={{hook}}",
  "--steps={steps}", "--width={width}",
]

[axes]
ranks = [2]

[tune]
budget = "{budget:.0f} s"
confirm = {confirm}

[tune.space]
bucket_mb = [25.0, 0.1, 0.2, 0.4, 1.0, 2.0]
workers = [1, 2, 3, 4, 6]
hook = ["none", "fp16"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration: s per step that each pass gave, and how much of that was waiting for input."""

    parameters: Parameters
    steps_s: tuple[float, ...]
    waits_s: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Samples/s, over all its runs."""
        return RANKS * BATCH / statistics.fmean(self.steps_s)

    @property
    def kinds(self) -> list[BottleneckKind]:
        """Its bottlenecks, by the shares of the program's own times: loaders that are waited for set the pace."""
        step_s, wait_s = statistics.fmean(self.steps_s), statistics.fmean(self.waits_s)
        exposed_s = 0.0 if wait_s > LEAST * step_s else step_s - wait_s - WORK_S
        shares: dict[BottleneckKind, float] = {
            "input": wait_s / step_s,
            "network": exposed_s / step_s,
            "compute": RECOVERABLE * WORK_S / step_s,
        }
        return sorted(shares, key=lambda kind: -shares[kind])


class Table:
    """Measures configurations from the table, as `Evaluate` does; ``noise`` is the spread of the logarithms of runs."""

    def __init__(self, rows: Sequence[Row], noise: float, start_s: float, seed: int) -> None:
        self._rows = {_key(row.parameters): row for row in rows}
        self._noise, self._start_s, self._random = noise, start_s, random.Random(seed)
        self._runs: list[Row] = []

    def run(self, parameters: Parameters, repeat: int, hopeless: Hopeless, within: Spent) -> Measured:
        """One run of the table, with noise."""
        del repeat, hopeless, within
        row = self._rows[_key(parameters)]
        rate = RANKS * BATCH / self._random.choice(row.steps_s) * math.exp(self._random.gauss(0, self._noise))
        self._runs.append(row)
        seconds = cost_s(row, self._start_s)
        return Measured(
            state="completed",
            value=Interval(value=rate, low=rate * (1 - self._noise), high=rate * (1 + self._noise)),
            seconds=seconds,
            rank_s=RANKS * seconds,
            run=str(len(self._runs) - 1),
        )

    def is_completed(self, parameters: Parameters, repeat: int) -> bool:
        """No search of the table is ever killed."""
        del parameters, repeat
        return False

    def unlisted(self, runs: Collection[str]) -> Spent:
        """As above."""
        del runs
        return Spent()

    def bottlenecks(self, run: str) -> Sequence[BottleneckKind]:
        """Those of that configuration."""
        return self._runs[int(run)].kinds


def main() -> None:
    """Measure, search, tune, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the runs, which the next call goes on from")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=1, help="how many times `allpull tune` itself runs")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(options, (options.keep or Path(temporary)).resolve())


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All three parts, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    study = load_study(str(study_file(folder, "once", budget_s=1)))
    prepared = prepare(study)
    (folder / "once" / "runs").mkdir(parents=True, exist_ok=True)
    with locked(folder / "once") as lock:
        place = StudyPlace(directory=folder / "once", lock=lock)
        once = JobsEvaluate(study, GOAL, place, fixed=prepared.fixed).run(
            start_of(prepared.space), 0, lambda _: None, UNLIMITED
        )
    assert once.value is not None, once.reason
    rows = table(folder, prepared)
    start_s = once.seconds - STEPS * RANKS * BATCH / once.value.value
    whole_s = sum(cost_s(row, start_s) for row in rows)
    best = max(rows, key=lambda row: row.rate)
    noise = spread(rows)
    searches = [
        searched(rows, prepared.space, Table(rows, noise, start_s, seed), seed) for seed in range(options.seeds)
    ]
    tuned = [tuned_once(folder, index, rows, whole_s) for index in range(options.tuned)]
    shortfalls = sorted(one["shortfall"] for one in searches)
    keep(
        options.output,
        {
            "configurations": len(rows),
            "start_of_a_run_s": round(start_s, 1),
            "table_s": round(whole_s, 1),
            "optimum": {"parameters": best.parameters, "samples_per_s": round(best.rate, 1)},
            "start_samples_per_s": round(once.value.value, 1),
            "slowest_samples_per_s": round(min(row.rate for row in rows), 1),
            "within_3_percent": sum(row.rate >= (1 - NEAR) * best.rate for row in rows),
            "spread_between_runs": round(noise, 4),
            "searches": {
                "seeds": len(searches),
                "missed": sum(shortfall > NEAR for shortfall in shortfalls),
                "median_shortfall": round(statistics.median(shortfalls), 4),
                "largest_shortfall": round(shortfalls[-1], 4),
                "mean_cost_share": round(statistics.fmean(one["cost_s"] for one in searches) / whole_s, 3),
                "largest_cost_share": round(max(one["cost_s"] for one in searches) / whole_s, 3),
                "mean_configurations": round(statistics.fmean(one["trials"] for one in searches), 1),
            },
            "tuned": tuned,
            "table": [
                {**row.parameters, "samples_per_s": [round(RANKS * BATCH / step_s, 1) for step_s in row.steps_s]}
                for row in rows
            ],
        },
    )


def cost_s(row: Row, start_s: float) -> float:
    """Seconds of a run of a configuration."""
    return start_s + STEPS * statistics.fmean(row.steps_s)


def study_file(folder: Path, name: str, *, budget_s: float) -> Path:
    """The study, with its cluster, in ``folder``."""
    (folder / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
    text = STUDY.format(
        cluster=folder / "cluster.toml",
        program=PROGRAM,
        steps=STEPS,
        width=WIDTH,
        budget=max(1.0, budget_s),
        confirm=CONFIRM,
    )
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def table(folder: Path, prepared: Prepared) -> list[Row]:
    """Every configuration, in an order shuffled so that drift is no effect, then some again."""
    points = [
        dict(zip((one.name for one in prepared.space), levels, strict=True))
        for levels in itertools.product(*(one.levels for one in prepared.space))
    ]
    shuffled = random.Random(0)
    order = [*shuffled.sample(points, len(points)), *shuffled.sample(points, REPEATED)]
    lines = program_runs(folder, "table", order)
    rows = []
    for parameters in points:
        own = [line for line in lines if all(line[name] == value for name, value in parameters.items())]
        steps, waits = (tuple(line[name] for line in own) for name in ("step_s", "wait_s"))
        rows.append(Row(parameters=parameters, steps_s=steps, waits_s=waits))
    return rows


def program_runs(folder: Path, name: str, order: Sequence[Parameters]) -> list[dict[str, Any]]:
    """What the program measured of itself with each configuration of ``order``, in turn; what is kept counts."""
    results, settings = folder / f"{name}.jsonl", folder / f"{name}.json"
    done = len(results.read_text("utf-8").splitlines()) if results.exists() else 0
    if done < len(order):
        settings.write_text(json.dumps(order[done:]), encoding="utf-8")
        launcher = f"rehearse:{folder / 'cluster.toml'}"
        sizes = [f"--steps={STEPS}", f"--width={WIDTH}"]
        program = [str(PROGRAM), *sizes, "--settings", str(settings), "--output", str(results)]
        command = ["run", "-n", str(RANKS), "--launcher", launcher, "--out", str(folder / "runs"), "--", *program]
        subprocess.run([sys.executable, "-m", "allpull", *command], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in results.read_text("utf-8").splitlines()]


def spread(rows: Sequence[Row]) -> float:
    """Standard deviation of the logarithm between runs of one configuration, pooled."""
    repeated = [row.steps_s for row in rows if len(row.steps_s) > 1]
    return math.sqrt(statistics.fmean(statistics.variance(map(math.log, steps_s)) for steps_s in repeated))


def searched(rows: Sequence[Row], space: Sequence[Dimension], table_: Table, seed: int) -> Mapping[str, Any]:
    """One search on the table, from a random start."""
    drawn = random.Random(seed)
    space = [replace(one, start=drawn.randrange(len(one.levels))) for one in space]
    search = Search(space, GOAL, table_, seed=seed)
    whole_s = sum(table_.run(row.parameters, 0, lambda _: None, UNLIMITED).seconds for row in rows)
    search.run(Budget(seconds=SHARE * whole_s, confirm=CONFIRM), lambda _: None)
    assert search.best is not None
    confirmed_s = CONFIRM * (search.best.seconds + search.trials[0].seconds)
    return {
        "shortfall": shortfall(rows, search.best.parameters),
        "cost_s": sum(trial.seconds for trial in search.trials) + confirmed_s,
        "trials": len(search.trials),
    }


def tuned_once(folder: Path, index: int, rows: Sequence[Row], whole_s: float) -> Mapping[str, Any]:
    """`allpull tune` itself."""
    study = load_study(str(study_file(folder, f"tuned{index}", budget_s=SHARE * whole_s)))
    result = tune_study(study, folder / f"tuned{index}", on_trial=lambda trial, _: print(trial.parameters, trial.state))
    assert result.best is not None
    confirmation = result.confirmation
    again = run_again(folder, f"again{index}", rows, result.best)
    return {
        "best": result.best,
        "shortfall_by_table": round(shortfall(rows, result.best), 4),
        "shortfall": round(1 - again[0]["median"] / max(one["median"] for one in again), 4),
        "again": again,
        "cost_share": round(result.seconds / whole_s, 3),
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


def run_again(folder: Path, name: str, rows: Sequence[Row], best: Parameters) -> list[dict[str, Any]]:
    """Samples/s of ``best``, then of the best of the table, which ran in turns."""
    ranked = [row.parameters for row in sorted(rows, key=lambda row: -row.rate)]
    compared = [best, *[one for one in ranked[:RIVALS] if _key(one) != _key(best)]]
    lines = program_runs(folder, name, compared * AGAIN)
    rates = [
        [RANKS * BATCH / line["step_s"] for line in lines[index :: len(compared)]] for index in range(len(compared))
    ]
    return [
        {**one, "samples_per_s": [round(rate, 1) for rate in own], "median": round(statistics.median(own), 1)}
        for one, own in zip(compared, rates, strict=True)
    ]


def shortfall(rows: Sequence[Row], parameters: Parameters) -> float:
    """By how much a configuration is slower than the optimum, as a share of it."""
    best = max(row.rate for row in rows)
    return 1 - next(row.rate for row in rows if _key(row.parameters) == _key(parameters)) / best


def _key(parameters: Parameters) -> tuple[Any, ...]:
    return tuple(sorted(parameters.items()))


if __name__ == "__main__":
    main()
