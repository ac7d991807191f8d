"""A training whose cost is arithmetic: a ring, buckets that overlap with backward, loaders that share CPUs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from allpull.schema.results import Interval
from allpull.schema.tuned import BottleneckKind
from allpull.study.tune.budget import Spent
from allpull.study.tune.objective import Hopeless, Measured
from allpull.study.tune.space import Dimension

RANKS = 16
GRADIENTS_MB = 102.0
LINK_BYTES_PER_S = 1.25e9
LAUNCH_S = 2.5e-3  # of one all-reduce
CPUS = 8


def step_s(parameters: Mapping[str, Any], *, link: float = LINK_BYTES_PER_S) -> float:
    """Seconds of a step: what is slower, the loader or the ranks, whose buckets travel while the next is computed."""
    batch, workers, bucket = parameters["batch"], parameters["workers"], parameters["bucket"]
    forward = 0.004 + batch * 4e-4
    crowded = 1 + 0.15 * max(0, workers - CPUS)
    load = batch * 6e-3 / min(workers, CPUS) * crowded + 5e-4 * workers
    size = GRADIENTS_MB * 1e6 / (2 if parameters.get("hook") == "fp16" else 1)
    buckets = math.ceil(GRADIENTS_MB / bucket)
    end = 0.0
    for index in range(buckets):
        ready = forward + 2 * forward * (index + 1) / buckets
        end = max(end, ready) + LAUNCH_S + size / buckets * 2 * (RANKS - 1) / RANKS / link
    end += 3e-3 if parameters.get("hook") == "fp16" else 0.0
    return max(max(end, 3 * forward) + 2e-3, load)


class Simulated:
    """Runs of it, with noise; a batch of 512 or more does not fit into memory. ``kept`` are runs by repeat."""

    def __init__(self, fixed: Mapping[str, Any], *, noise: float, seed: int) -> None:
        self.fixed, self.noise, self.random = fixed, noise, random.Random(seed)
        self.runs: list[dict[str, Any]] = []
        self.took: dict[str, Spent] = {}
        self.kept: dict[tuple[int, str], Measured] = {}
        self.within: list[Spent] = []

    def rate(self, parameters: Mapping[str, Any]) -> float:
        """Samples/s of a rank, without noise."""
        whole = {**self.fixed, **parameters}
        return whole["batch"] / step_s(whole)

    def run(self, parameters: Mapping[str, Any], repeat: int, hopeless: Hopeless, within: Spent) -> Measured:
        self.within.append(within)
        known = self.kept.get(_place(parameters, repeat))
        measured = known or self._measured(parameters, hopeless)
        assert measured.run is not None
        self.took[measured.run] = Spent(seconds=measured.seconds, rank_s=measured.rank_s)
        if measured.state == "completed":
            self.kept[_place(parameters, repeat)] = measured
        return measured

    def is_completed(self, parameters: Mapping[str, Any], repeat: int) -> bool:
        return _place(parameters, repeat) in self.kept

    def unlisted(self, runs: Collection[str]) -> Spent:
        return sum((spent for run, spent in self.took.items() if run not in runs), Spent())

    def _measured(self, parameters: Mapping[str, Any], hopeless: Hopeless) -> Measured:
        whole = {**self.fixed, **parameters}
        self.runs.append(whole)
        run = str(len(self.runs) - 1)
        if whole["batch"] >= 512:
            return Measured(state="failed", value=None, seconds=3.0, rank_s=48.0, run=run, reason="out of memory")
        rate = self.rate(parameters) * math.exp(self.random.gauss(0, self.noise))
        reach = 2 * self.noise + 0.002
        value = Interval(value=rate, low=rate * (1 - reach), high=rate * (1 + reach))
        reason = hopeless(value)
        if reason is not None:
            return Measured(state="stopped", value=value, seconds=6.0, rank_s=96.0, run=run, reason=reason)
        return Measured(state="completed", value=value, seconds=10.0, rank_s=160.0, run=run)

    def bottlenecks(self, run: str) -> Sequence[BottleneckKind]:
        whole = self.runs[int(run)]
        full = step_s(whole)
        shares: dict[BottleneckKind, float] = {
            "input": 1 - step_s({**whole, "workers": CPUS}) / full,
            "network": 1 - step_s(whole, link=math.inf) / full,
            "compute": 0.4,
        }
        return sorted(shares, key=lambda kind: -shares[kind])


def _place(parameters: Mapping[str, Any], repeat: int) -> tuple[int, str]:
    return repeat, repr(sorted(parameters.items()))


def optimum(space: Sequence[Dimension], simulated: Simulated) -> float:
    """The best rate of all configurations that run, from outside."""
    configurations = (
        dict(zip((one.name for one in space), levels, strict=True))
        for levels in itertools.product(*(one.levels for one in space))
    )
    fitting = [one for one in configurations if {**simulated.fixed, **one}["batch"] < 512]
    return max(map(simulated.rate, fitting))
