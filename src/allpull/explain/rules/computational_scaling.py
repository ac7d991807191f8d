"""The same samples take longer to compute than on fewer ranks, on all of them.

What it is
    Ranks of one host share memory bandwidth, caches, power and turbo clocks; a small batch per rank uses an accelerator
    less well; the optimizer's step does not shrink with the batch. POP calls the ratio computational scaling.

How it is found
    By computation per sample, forward, backward and optimizer, of the lower median rank against the reference run with
    the fewest ranks: less than 0.9 of the speed there. Where ranks wait for CPUs that is `cpu-contention`, and slow
    ranks alone do not move the lower median rank.

What it costs
    The replay in which each phase takes as long per sample as in the reference run. The interval includes how far the
    steps of both runs vary.

What to do
    Where the batch per rank is smaller than in the reference run, make it as large. Otherwise find what the ranks of a
    host share: run as many ranks on twice the hosts, and compare. For CPUs `--set launch.bind=cores`; for accelerators
    clocks and power limits, `nvidia-smi -q -d CLOCK,PERFORMANCE`.

When it is wrong
    The reference run was made on other hosts, with another build, or with other samples per step for a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts, useful_error, useful_per_sample
from allpull.explain.evidence.late.cpu_waiting import all_wait
from allpull.explain.remedy import Action, sentence, within
from allpull.explain.remedy_text import clocks, own_cores
from allpull.replay.whatif.work import scaled
from allpull.replay.window import Window
from allpull.units import counted, percent

LEAST = 0.9  # of the speed in the reference run: the limit below which POP asks for the reason
NAMED = 0.2  # of the growth: smaller parts are not named


def find(facts: Facts) -> list[Candidate]:
    """The job, where computation per sample grew with the ranks."""
    reference = min(facts.other_runs, key=lambda one: one.ranks, default=None)
    if reference is None or reference.ranks >= facts.window.ranks or all_wait(facts.window, facts.machine):
        return []
    here, there = useful_per_sample(facts.window), reference.useful_s
    if not here or not there or sum(there.values()) >= LEAST * sum(here.values()):
        return []
    samples = float(facts.window.samples.mean())
    grown = {name: (here[name] - there.get(name, 0.0)) * samples for name in here}
    whole_s = sum(grown.values())
    largest = [name for name in sorted(grown, key=lambda one: -grown[one]) if grown[name] > NAMED * whole_s]
    ratio = sum(there.values()) / sum(here.values())
    cores = own_cores(facts.start, facts.machine) if facts.on_cpus else Action()
    error = math.hypot(reference.useful_error, useful_error(facts.window))
    least, without, most = (partial(_as_there, there=_times(there, 1 + by)) for by in (error, 0.0, -error))
    return [
        Candidate(
            rule="computational-scaling",
            kind="job",
            title=f"Each rank computes at {percent(ratio)} of its speed on {counted(reference.ranks, 'rank')}: "
            f"{' and '.join(largest)} {'takes' if len(largest) == 1 else 'take'} longer per sample",
            remedy=_remedy(facts, cores),
            evidence=(
                seconds("computation per step beyond that of the reference run", whole_s, facts.span),
                *(seconds(f"of that, {name}", grown[name], facts.span) for name in largest),
                share("computational scaling of the lower median rank", ratio, f"{facts.span}, and {reference.run}"),
            ),
            without=without,
            bounds=(least, most),
        )
    ]


def _times(there: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: factor * seconds_ for name, seconds_ in there.items()}


def _as_there(window: Window, there: Mapping[str, float]) -> Window:
    """``window`` with phases that take as long per sample as ``there``, on the lower median rank."""
    for name, here_s in useful_per_sample(window).items():
        if 0 < there.get(name, here_s) < here_s:
            window = scaled(window, (name,), there[name] / here_s)
    return window


def _remedy(facts: Facts, cores: Action) -> Action:
    hosts, batch = (
        "as many ranks on twice the hosts; ",
        " for clocks; a batch per rank as large as in the reference run",
    )
    return sentence("find what ranks share: ", within("", cores, ", and "), hosts, clocks(facts.machine), batch)
