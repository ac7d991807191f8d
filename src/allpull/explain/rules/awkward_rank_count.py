"""This number of ranks is less efficient than its neighbours.

What it is
    Twelve ranks where eight and sixteen are both faster per rank: the ring does not fit the machine, hosts are partly
    filled, or a batch or a shard does not divide evenly. Dell's measurements of twelve V100s showed it.

How it is found
    From the runs given with `--reference`: samples per second and rank of this run, with fewer ranks and with more.
    Both neighbours must be better by several percent.

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

from allpull.explain.candidate import Candidate
from allpull.explain.evidence.facts import Facts
from allpull.schema.explained import Evidence
from allpull.units import percent

WORSE = 0.05  # than interpolated between the neighbours: equal runs on one day differ by less


def find(facts: Facts) -> list[Candidate]:
    """The job, where fewer and more ranks are both more efficient."""
    ranks = facts.window.ranks
    samples = float(facts.window.samples.sum())
    fewer = max((one for one in facts.other_runs if one.ranks < ranks), key=lambda one: one.ranks, default=None)
    more = min((one for one in facts.other_runs if one.ranks > ranks), key=lambda one: one.ranks, default=None)
    if fewer is None or more is None or not samples > 0:
        return []
    here = samples / facts.window.measured_s / ranks
    way = math.log(ranks / fewer.ranks) / math.log(more.ranks / fewer.ranks)
    expected = fewer.samples_per_s ** (1 - way) * more.samples_per_s**way
    if here >= (1 - WORSE) * min(expected, more.samples_per_s):
        return []
    return [
        Candidate(
            rule="awkward-rank-count",
            kind="advice",
            title=f"{ranks} ranks each train {percent(1 - here / expected)} fewer samples than expected "
            f"from {fewer.ranks} and {more.ranks} ranks",
            remedy=f"use {fewer.ranks} or {more.ranks} ranks, so that hosts and switches are full: "
            "sbatch --nodes=… --ntasks-per-node=…",
            evidence=(
                _rate(f"each of {ranks} ranks trains", here, facts.span),
                *(
                    _rate(f"each of {one.ranks} ranks trains", one.samples_per_s, f"run {one.run}")
                    for one in (fewer, more)
                ),
            ),
        )
    ]


def _rate(what: str, samples_per_s: float, source: str) -> Evidence:
    return Evidence(what=what, value=samples_per_s, unit="samples/s", source=source)
