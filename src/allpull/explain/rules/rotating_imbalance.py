"""Another rank is late in each step, and the others wait for whichever it is.

What it is
    No rank is slow, but in every step some rank is: the work of samples differs, the machine disturbs its ranks in
    turn, garbage is collected, a shared file system stalls. The more ranks there are, the more surely one of them is
    held up in any step, so this cost grows with the job.

How it is found
    From how much each rank departs from its own usual step. In at least half of the steps the last rank must be behind
    the median one by 3 % of a step, and by 6 % where CPUs compute, whose own jitter is 1.5 to 3 %. Rare stalls, however
    long, are another matter. Where ranks wait for CPUs, that makes them late in turn, and is `cpu-contention`.

What it costs
    The replay in which every rank departs from its usual step as little as a rank does that nothing holds up, by what
    the luckiest ones of that step show, with ranks that are slow for good mended before.

What to do
    Give samples equal work (sort by length, pad to buckets), keep the machine quiet (`--set launch.bind=cores`,
    `sbatch --exclusive`, `export OMP_NUM_THREADS=…`), collect garbage in all ranks at the same step (`gc.freeze()`, and
    `gc.collect()` every so many steps).

When it is wrong
    Two ranks are last in turn in any pair of equal ones; with two ranks the departure of one is all there is to see.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.cpu_waiting import COMPUTING, all_wait, held_up, per_step
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loader import common_input
from allpull.explain.evidence.outliers import mean_interval
from allpull.explain.pricing.candidate import Suspect, count, seconds
from allpull.explain.rules.slow_rank import WHERE
from allpull.replay.window import REDUCE, Window
from allpull.units import show_time

OF_CPUS = 0.06  # where CPUs compute, of which two jitter by 1.5 to 3 % in healthy runs (benchmarks/real_faults.py)
ROTATES = 0.03  # of a step, in the median step: below it any machine's jitter looks alike
MIN_RANKS = 2


def find(facts: Facts) -> list[Suspect]:
    """The job, where a different rank is late in each step."""
    window = facts.window
    ordinary = ~window.odd
    equal = _equal_ranks(facts)
    if ordinary.sum() < MIN_POINTS or len(equal) < MIN_RANKS or all_wait(window, facts.machine):
        return []
    phases = COMPUTING if common_input(facts) is not None else (*COMPUTING, "input")
    held_s = held_up(window, facts.machine)
    own_s = per_step(window, phases) - (0.0 if held_s is None else held_s)
    departs = _departures(own_s)[ordinary][:, equal]
    behind = departs.max(axis=1) - np.median(departs, axis=1)
    if float(np.median(behind)) < (OF_CPUS if facts.on_cpus else ROTATES) * facts.step_s:
        return []
    last = np.bincount(np.array(equal)[departs.argmax(axis=1)], minlength=window.ranks)
    spread = {name: float(_departures(window.per_step(name))[ordinary].std()) for name in phases if name in window.work}
    where = max(spread, key=lambda name: spread[name])
    size = mean_interval(behind)
    return [
        Suspect(
            rule="rotating-imbalance",
            kind="rest",
            title=f"A different rank is late in each step, by {show_time(size.value)}, most of it {WHERE[where]}",
            remedy="give samples equal work (sort by length, pad), and ranks a quiet machine: --set launch.bind=cores, "
            "sbatch --exclusive, gc.freeze() after the first epoch",
            options=("launch.bind",),
            evidence=(
                seconds("how far the last rank of a step is behind the median one", size, facts.span),
                seconds("the same in the median step", float(np.median(behind)), facts.span),
                count(
                    f"ranks that were last in at least one of {int(ordinary.sum()):,} steps",
                    int((last > 0).sum()),
                    facts.span,
                ),
            ),
            without=partial(calmed, phases=phases),
        )
    ]


def calmed(window: Window, phases: tuple[str, ...]) -> Window:
    """Every rank departs from its own usual step as little as a rank that is not held up does in that step.

    That is less than what the luckiest of N ranks departs: where delays have an end, it lies below the least of them by
    about what the next one is above it (Robson & Whitlock 1964, Biometrika 51; for exponential delays (N−1)/N of that).
    """
    work_s = per_step(window, phases)
    usual_s = np.median(work_s, axis=0)
    departs_s = np.sort(work_s - usual_s, axis=1)
    least_s = departs_s[:, :1]
    if window.ranks > MIN_RANKS:  # of two, one is as lucky as the other is late
        least_s = least_s - (departs_s[:, 1:2] - least_s) * (window.ranks - 1) / window.ranks
    target_s = np.minimum(np.maximum(usual_s + least_s, work_s.min(axis=0, initial=np.inf)), work_s)
    kept = np.divide(target_s, work_s, out=np.ones_like(work_s), where=work_s > 0)
    work = {
        name: seconds_ * kept[window.step_of] if name in phases else seconds_ for name, seconds_ in window.work.items()
    }
    lane = window.reductions
    if lane is not None:
        reduces = window.step_of[window.kind == REDUCE]
        lane = replace(lane, lead_s=lane.lead_s * kept[reduces][:, None, :])
    return replace(window, work=work, reductions=lane)


def _departures(work_s: Floats) -> Floats:
    """How much longer each step is for each rank than its median step, shape (steps, ranks)."""
    departs: Floats = work_s - np.median(work_s, axis=0)
    return departs


def _equal_ranks(facts: Facts) -> list[int]:
    """Ranks that do not stand out."""
    out = facts.late.computing | facts.late.loading
    return [rank for rank in range(facts.window.ranks) if rank not in out]
