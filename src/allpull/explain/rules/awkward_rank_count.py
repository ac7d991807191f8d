"""This number of ranks is less efficient than its neighbours.

What it is
    Twelve ranks where eight and sixteen are both faster per rank: the ring does not fit the machine, hosts are partly
    filled, or a batch or a shard does not divide evenly. Dell's measurements of twelve V100s showed it.

How it is found
    From the runs given with `--reference`: samples per second and rank of this run, with fewer ranks and with more.
    Both neighbours must be better by 5 %, and by three times what such a comparison of single runs varies from run to
    run. Where there are several runs of one number of ranks, their spread shows that; otherwise it is taken as 2 % of a
    rate.

What it costs
    The replay does not price it, because it has only this run; the evidence gives the rates of the neighbours.

What to do
    Choose a number of ranks that fills whole hosts and switches, usually a power of two: `sbatch --nodes=…`,
    `--ntasks-per-node=…`.

When it is wrong
    Runs on other days and other hosts differ anyway: repeat all three (`allpull compare`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from allpull.explain.candidate import Candidate
from allpull.explain.evidence.facts import Facts, OtherRun
from allpull.explain.remedy import sentence
from allpull.explain.remedy_text import ranks_flag
from allpull.schema.explained import Evidence
from allpull.units import percent

WORSE = 0.05  # than interpolated between the neighbours: less is not worth another number of ranks
DEVIATIONS = 3.0
BETWEEN_RUNS = 0.02  # standard deviation of ln(samples/s) on quiet hosts of one day


def find(facts: Facts) -> list[Candidate]:
    """The job, where fewer and more ranks are both more efficient."""
    ranks, samples = facts.window.ranks, float(facts.window.samples.sum())
    rates: dict[int, list[OtherRun]] = {}
    for one in facts.other_runs:
        rates.setdefault(one.ranks, []).append(one)
    fewer = max((count for count in rates if count < ranks), default=None)
    more = min((count for count in rates if count > ranks), default=None)
    if fewer is None or more is None or not samples > 0:
        return []
    here = samples / facts.window.measured_s / ranks
    beside = {count: _geometric_mean(rates[count]) for count in (fewer, more)}
    way = math.log(ranks / fewer) / math.log(more / fewer)
    expected = beside[fewer] ** (1 - way) * beside[more] ** way
    spread = _spread(list(rates.values())) * math.sqrt(
        1 + (1 - way) ** 2 / len(rates[fewer]) + way**2 / len(rates[more])
    )
    if here >= (1 - max(WORSE, DEVIATIONS * spread)) * min(expected, beside[more]):
        return []
    return [
        Candidate(
            rule="awkward-rank-count",
            kind="advice",
            title=f"{ranks} ranks each train {percent(1 - here / expected)} fewer samples than expected "
            f"from {fewer} and {more} ranks",
            remedy=sentence(
                f"use {fewer} or {more} ranks, so that hosts and switches are full: ",
                ranks_flag(facts.start, facts.machine, fewer),
            ),
            evidence=(
                _rate(f"each of {ranks} ranks trains", here, facts.span),
                *(
                    _rate(f"each of {one.ranks} ranks trains", one.samples_per_s, f"run {one.run}")
                    for count in (fewer, more)
                    for one in rates[count]
                ),
            ),
        )
    ]


def _geometric_mean(runs: Sequence[OtherRun]) -> float:
    return math.exp(sum(math.log(one.samples_per_s) for one in runs) / len(runs))


def _spread(repeated: Sequence[Sequence[OtherRun]]) -> float:
    """The standard deviation of ln(samples/s) between runs of one number of ranks, pooled over all numbers."""
    squares, freedom = 0.0, 0
    for runs in repeated:
        mean = math.log(_geometric_mean(runs))
        squares += sum((math.log(one.samples_per_s) - mean) ** 2 for one in runs)
        freedom += len(runs) - 1
    return math.sqrt(squares / freedom) if freedom else BETWEEN_RUNS


def _rate(what: str, samples_per_s: float, source: str) -> Evidence:
    return Evidence(what=what, value=samples_per_s, unit="samples/s", source=source)
