"""How often `allpull compare` calls identical runs different, and how often it finds a planted slow-down.

    python benchmarks/identical_runs.py [--runs 40] [--slowed 8] [--slower 0.05] [--pairs 300] [--keep FOLDER]
        [--output FILE]

Real short runs of two kinds, with a seed of their own each: ``training`` is a small network on two ranks under
``allpull run``, whose slowed runs sleep for a set share of each step; ``rehearsal`` is a virtual accelerator with
jitter on two ranks, whose slowed runs have all their times longer by that share. Slowed and identical runs are made in
turn, in an order drawn once.

Of the identical runs are compared, by what `allpull compare` decides on throughput:

- ``groups``: three runs against three others, drawn at random;
- ``singles``: each run against each other one, with a stored figure from all the rest;
- ``blocks``: three runs against the three that were made next. What changes on the machine meanwhile is in these, so
  they are told and no promise is made of them; the documentation says to take turns.

A false alarm is a decision "faster" or "slower"; ``gate`` counts failures of ``--fail-if "throughput < -3%"``. Pairs
share runs, so they are fewer independent trials than their number says. ``planted`` are comparisons of three (one)
identical with three (one) slowed runs, and one of all with all.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.effect import effect
from allpull.compare.comparison import change
from allpull.compare.gate import judge, parse_gate
from allpull.compare.metrics import Measures, measures
from allpull.rundir.read.run import read_run
from allpull.schema.compared import Spread
from stored import ROOT, keep

METRIC = "throughput"
GATE = parse_gate("throughput < -3%")
GROUP = 3
ATTEMPTS = 3  # of one run: in hundreds of starts of ranks on a busy machine some fail
ALARMS = {"faster", "slower"}
CLUSTER = """
[cluster]
hosts = 1
ranks_per_host = 2
link = "10 Gbit/s"
shrink = 500

[accelerator]
model = "resnet50"
batch = 8
forward_ms = {forward}
backward_ms = {backward}
input_ms = {input}

[[faults]]
kind = "jitter"
std = "{jitter} ms"
seed = {seed}
"""

Side = Sequence[Measures]
Pair = tuple[Side, Side, Spread | None]
"""Runs before, runs after, and the stored figure to compare them by."""


def training(seed: int, slower: float, folder: Path) -> list[str]:
    """The command of one real training."""
    loop = [str(ROOT / "benchmarks" / "identical_loop.py"), "--seed", str(seed), "--slower", str(slower)]
    return ["run", "-n", "2", "--out", str(folder), "--", *loop]


def rehearsal(seed: int, slower: float, folder: Path) -> list[str]:
    """The command of one rehearsal."""
    times = {name: ms * (1 + slower) for name, ms in (("forward", 10), ("backward", 20), ("input", 2), ("jitter", 1))}
    cluster = folder / "cluster.toml"
    cluster.write_text(CLUSTER.format(**times, seed=seed))
    return ["rehearse", str(cluster), "--unshaped", "--steps", "150", "--out", str(folder)]


KINDS: dict[str, Callable[[int, float, Path], list[str]]] = {"training": training, "rehearsal": rehearsal}


def made(kind: str, seed: int, slower: float, folder: Path) -> Measures:
    """What was measured of one run, made now in ``folder``; one that fails is made again, and that is said."""
    for attempt in range(ATTEMPTS):
        place = folder / str(attempt)
        place.mkdir(parents=True)
        command = [sys.executable, "-m", "allpull", *KINDS[kind](seed, slower, place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            (directory,) = place.glob("*/")
            return measures(AlignedRun(read_run(directory)))
        print(f"{done.stderr}{' '.join(command)} ended with {done.returncode}", file=sys.stderr, flush=True)
    sys.exit(f"{kind}: no run in {ATTEMPTS} attempts")


def all_made(kind: str, options: argparse.Namespace, folder: Path) -> tuple[list[Measures], list[Measures]]:
    """The identical runs and the slowed ones, each in the order they were made in."""
    order = [0.0] * options.runs + [options.slower] * options.slowed
    random.Random(1).shuffle(order)
    found: dict[float, list[Measures]] = {0.0: [], options.slower: []}
    for seed, slower in enumerate(order):
        found[slower].append(made(kind, seed, slower, folder / f"{kind}-{seed:03d}"))
        print(f"{kind}: run {seed + 1} of {len(order)}", file=sys.stderr, flush=True)
    return found[0.0], found[options.slower]


def judged(pairs: Iterable[Pair]) -> dict[str, Any]:
    """What was decided on each pair, counted."""
    decisions, gates, smallest = [], [], []
    for before, after, figure in pairs:
        ours, theirs = ([one.values[METRIC] for one in side] for side in (before, after))
        found = change(METRIC, effect(ours, theirs, figure), before, after)
        decisions.append(found.decision)
        gates.append(judge(GATE, found).outcome)
        smallest.append(found.smallest or 0.0)
    return {
        "pairs": len(decisions),
        "decisions": {name: decisions.count(name) for name in sorted(set(decisions))},
        "gate": {name: gates.count(name) for name in sorted(set(gates))},
        "smallest_shown": round(statistics.median(smallest), 4),
    }


def alarms(found: dict[str, Any]) -> dict[str, Any]:
    """``found`` of identical runs with the share of false alarms and of false failures of the gate."""
    wrong = sum(found["decisions"].get(name, 0) for name in ALARMS)
    return {
        **found,
        "false_alarms": round(wrong / found["pairs"], 4),
        "false_failures": round(found["gate"].get("failed", 0) / found["pairs"], 4),
    }


def groups(one: Side, other: Side | None, pairs: int) -> list[Pair]:
    """So many groups of three against three others: of the same runs, or of ``other``."""
    rng = random.Random(2)
    drawn: list[Pair] = []
    for _ in range(pairs):
        if other is None:
            both = rng.sample(list(one), 2 * GROUP)
            drawn.append((both[:GROUP], both[GROUP:], None))
        else:
            drawn.append((rng.sample(list(one), GROUP), rng.sample(list(other), GROUP), None))
    return drawn


def singles(one: Side, other: Side | None) -> list[Pair]:
    """Each run against each other one, with the spread of the identical runs that are neither."""
    pairs = itertools.combinations(one, 2) if other is None else itertools.product(one, other)
    return [([a], [b], spread([run for run in one if run is not a and run is not b])) for a, b in pairs]


def blocks(runs: Side) -> list[Pair]:
    """Three runs against the three that were made next."""
    starts = range(len(runs) - 2 * GROUP + 1)
    return [(runs[at : at + GROUP], runs[at + GROUP : at + 2 * GROUP], None) for at in starts]


def spread(runs: Side) -> Spread:
    """How much ``runs`` vary from one to the next."""
    values = [run.values[METRIC] for run in runs]
    found = effect(values, values[:1]).spread
    assert found is not None  # there are several
    return found


def measured(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All comparisons of one kind of run."""
    same, slowed = all_made(kind, options, folder)
    within = [run.values[METRIC].error for run in same]
    everything = judged([(same, slowed, None)])
    return {
        "runs": len(same),
        "steps": round(statistics.median(run.steps for run in same)),
        "spread_between_runs": round(spread(same).sd, 5),
        "error_within_a_run": round(statistics.median(error for error in within if error is not None), 5),
        "identical": {
            "groups": alarms(judged(groups(same, None, options.pairs))),
            "singles": alarms(judged(singles(same, None))),
            "blocks": alarms(judged(blocks(same))),
        },
        "planted": {
            "slower": options.slower,
            "runs": len(slowed),
            "groups": judged(groups(same, slowed, options.pairs)),
            "singles": judged(singles(same, slowed)),
            "all": next(iter(everything["decisions"])),
        },
    }


def main() -> None:
    """Make the runs, compare them, and print or keep what was decided."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="identical runs of each kind")
    parser.add_argument("--slowed", type=int, default=8, help="slowed runs of each kind")
    parser.add_argument("--slower", type=float, default=0.05, help="share by which their steps take longer")
    parser.add_argument("--pairs", type=int, default=300, help="groups of three to compare")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of runs, with commas")
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if options.runs < 2 * GROUP or options.slowed < GROUP or set(kinds) - set(KINDS):
        parser.error(f"at least {2 * GROUP} identical and {GROUP} slowed runs, of the kinds {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() if options.keep is None else nullcontext(options.keep) as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        result = {
            "metric": METRIC,
            "gate": GATE.text,
            **{kind: measured(kind, options, Path(folder)) for kind in kinds},
        }
    keep(options.output, result)


if __name__ == "__main__":
    main()
