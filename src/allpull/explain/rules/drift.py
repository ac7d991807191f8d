"""From some step on all ranks compute more slowly, and no rank waits for another.

What it is
    Processors lower their clocks as they become hot or reach a power limit, memory fills up, sequences become longer,
    a list grows with every step. All ranks slow down alike, so no wait shows the loss.

How it is found
    By the work that all ranks have in common in a step, that of the lower median rank: its level before and after the
    step at which it changes most. The later level must be higher by 5 %, or by 15 % where CPUs compute, and by more
    than the noise of either side. Clocks, power and temperature of accelerators on both sides are in the evidence where
    they were sampled.

What it costs
    The replay in which phases take no longer after that step than before it.

What to do
    Where clocks fell: cooling and power limits, `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE`. Otherwise see what
    grows in the program: memory (`torch.cuda.memory_allocated()`), lengths of sequences, lists that keep tensors.

When it is wrong
    Where the work itself changes by design, such as images that grow during training, later steps are longer by
    right. Other programs that come to all hosts at once look the same.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from allpull.analyse.statistics import change_point, long_run_variance
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.common_work import common_phases, common_s, most_grown
from allpull.explain.evidence.cpu_waiting import all_wait
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy_text import WHERE, clocks
from allpull.replay.whatif.work import as_before
from allpull.replay.window import Bools
from allpull.schema.explained import Evidence
from allpull.units import percent

SLOWER, SLOWER_ON_CPUS = 0.05, 0.15  # of the level before: healthy levels wander by less
DEVIATIONS = 5.0  # standard errors of the difference: the change point is the best of many
USUAL = 1.5  # times the median: stalls beyond it do not move a level
SENSORS = {
    "clock_hz": ("clock of the accelerators", "Hz"),
    "power_w": ("power of an accelerator", "W"),
    "temperature_c": ("temperature of the accelerators", "°C"),
}
FELL = 0.97  # of the clock before: below it the clock is the likely cause


def find(facts: Facts) -> list[Candidate]:
    """The job, where all ranks slow down together."""
    window = facts.window
    phases = common_phases(facts)
    rows = np.flatnonzero(~window.odd)
    if not phases or all_wait(window, facts.machine):
        return []
    taken_s = common_s(facts, phases)[rows]
    taken_s = np.minimum(taken_s, USUAL * np.median(taken_s)) if rows.size else taken_s
    cut = change_point(taken_s)
    if cut is None:
        return []
    before_s, after_s = float(np.median(taken_s[:cut])), float(np.median(taken_s[cut:]))
    least = SLOWER_ON_CPUS if facts.on_cpus else SLOWER
    if not after_s > (1 + least) * before_s > 0 or after_s - before_s < DEVIATIONS * _error_s(taken_s, cut):
        return []
    since = int(rows[cut])
    after = np.arange(window.steps.size) >= since
    sensed = tuple(_sensed(facts, after))
    fell = any(one.what.startswith(SENSORS["clock_hz"][0]) and one.value < FELL for one in sensed)
    return [
        Candidate(
            rule="drift",
            kind="job",
            title=f"From step {window.steps[since]:,} on all ranks compute {percent(after_s / before_s - 1)} longer, "
            f"most of it {WHERE[most_grown(facts, phases, after & ~window.odd, ~after & ~window.odd)]}",
            remedy=_remedy(facts, fell=fell),
            evidence=(
                seconds("computation that all ranks have in common, before", before_s, facts.span),
                seconds("the same, after", after_s, facts.span),
                *sensed,
            ),
            without=partial(as_before, since=since, phases=phases),
        )
    ]


def _error_s(series: Floats, cut: int) -> float:
    """Standard error of the difference of the levels before and after ``cut``."""
    return math.sqrt(sum(long_run_variance(part) / part.size for part in (series[:cut], series[cut:])))


def _sensed(facts: Facts, after: Bools) -> list[Evidence]:
    """What the sensors of accelerators showed before and after, where both were sampled; the ratio of clocks first."""
    evidence: list[Evidence] = []
    for name, (what, unit) in SENSORS.items():
        values = facts.machine.sensors.get(name)
        if values is None or np.isfinite(values[after]).sum() < 1 or np.isfinite(values[~after]).sum() < 1:
            continue
        before_value, after_value = float(np.nanmedian(values[~after])), float(np.nanmedian(values[after]))
        if name == "clock_hz" and before_value > 0:
            evidence.append(share(f"{what}, after ÷ before", after_value / before_value, facts.span))
        evidence += [
            Evidence(what=f"{what}, {when}", value=value, unit=unit, source="samples of the accelerators")
            for when, value in (("before", before_value), ("after", after_value))
        ]
    return evidence


def _remedy(facts: Facts, *, fell: bool) -> str:
    if fell:
        return f"check cooling and power limits: {clocks(facts.machine)}"
    return (
        "see what grows in the program (memory, lengths of sequences, lists that keep tensors), and whether processors "
        f"lower their clocks: {clocks(facts.machine)}"
    )
