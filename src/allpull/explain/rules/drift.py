"""All ranks compute more slowly from some step on, or more and more slowly, and no rank waits for another.

What it is
    Processors lower their clocks as they become hot or reach a power limit, memory fills up, sequences become longer,
    a list grows with every step. All ranks slow down alike, so no wait shows the loss.

How it is found
    By the work that all ranks have in common in a step, that of the lower median rank: its level before and after the
    step at which it changes most, or a line through all steps where that fits better, or a level of each epoch where
    these fit far better than both. It must become longer by 5 %, or by 15 % where CPUs compute, and by more than the
    noise. Clocks, power and temperature of accelerators on both sides are in the evidence where they were sampled.
    Where steps have more samples then, or larger ones, by at least half of that, it is no drift, and a note says so;
    nor where ranks reduce the gradients of another network in DDP from that step on.

What it costs
    The replay in which phases take no longer after that step than before it, or no longer than at first. Each rank is
    compared with itself: the constant delay of a late rank, stalls and pauses stay as they are. The interval allows two
    standard errors of the levels of each rank.

What to do
    Where clocks fell: cooling and power limits, `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE`. Otherwise see what
    grows in the program: memory (`torch.cuda.memory_allocated()`), lengths of sequences, lists that keep tensors. Where
    other programs keep CPUs busy, the evidence says so: see whether they came meanwhile.

When it is wrong
    Where the work itself changes by design, such as images that grow during training, or other tasks from epoch to
    epoch, later steps are longer by right. Other programs that come to all hosts at once look the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import MIN_POINTS, change_point, long_run_variance
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.common_work import common_phases, common_s, most_grown
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import all_wait, per_step
from allpull.explain.remedy import Action, sentence
from allpull.explain.remedy_text import WHERE, clocks
from allpull.replay.whatif.levels import Cuts, as_before, levels, without_stalls
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools, Window
from allpull.schema.explained import Evidence
from allpull.units import percent

SLOWER, SLOWER_ON_CPUS = 0.05, 0.15  # of the level before: healthy levels wander by less
DEVIATIONS = 5.0  # standard errors of the difference: the change point is the best of many
SURE = 2.0  # standard errors of a rank's change of level: the price is that of changes within them
SENSORS = {
    "clock_hz": ("clock of the accelerators", "Hz"),
    "power_w": ("power of an accelerator", "W"),
    "temperature_c": ("temperature of the accelerators", "°C"),
}
NEAR = 2  # steps: noise moves where a level seems to change
STAIRS = 0.5  # of the squares that one change or a line leaves: levels of epochs that leave no less are no better
OF_DATA = 0.5  # of the change: if the data of a step change by that much, it is theirs
OF_CLOCK = 0.5  # of the change: less by the clock, and it is that ranks waited for a CPU beside their work, not in it
FELL = 0.97  # of the clock before: below it the clock is the likely cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """All ranks compute for ``first_s`` per step at first, and ``last_s`` in the end, from row ``since`` of the steps.

    ``cuts``: the rows at which the level changes, the last of them ``since``; None: little by little, over all steps.
    ``clock``: the ratio of these times with the waiting for a CPU, last to first. ``data``: how many times as many
    elements, or else samples, a step has in the end; 1: it is not known.
    """

    first_s: float
    last_s: float
    since: int
    cuts: Cuts
    clock: float
    data: float = 1.0

    @property
    def at_once(self) -> bool:
        """Whether there are two levels, neither those of many epochs nor a line."""
        return self.cuts is not None and len(self.cuts) == 1

    @property
    def by_data(self) -> bool:
        """Whether steps take another time because they have more data, or less."""
        longer, more = self.last_s / self.first_s - 1, self.data - 1
        return longer * more > 0 and abs(more) >= OF_DATA * abs(longer)


def find(facts: Facts) -> list[Candidate]:
    """The job, where all ranks slow down together."""
    window, change = facts.window, change_of_level(facts)
    if change is None or change.by_data or by_program(facts, change) or change.last_s < change.first_s:
        return []
    first_s, last_s, since, phases = change.first_s, change.last_s, change.since, common_phases(facts)
    after = np.arange(window.steps.size) >= since
    when, longer = f"From step {window.steps[since]:,} on", f"{percent(last_s / first_s - 1)} longer"
    if change.cuts is None:
        when = "Little by little"
    elif not change.at_once:
        when, longer = "From epoch to epoch", f"longer, in the last one {percent(last_s / first_s - 1)}"
    compute = facts.all_ranks("compute").lower()
    without = partial(as_before, cuts=change.cuts, phases=phases)
    grown = most_grown(facts, phases, after & ~window.odd, ~after & ~window.odd)
    sensed = _sensed(facts, after)
    clock_before, clock_after = sensed.get("clock_hz", (0.0, 0.0))
    return [
        Candidate(
            rule="drift",
            kind="job",
            title=f"{when} {compute} {longer}, most of it {WHERE[grown]}",
            remedy=_remedy(facts, fell=clock_after < FELL * clock_before),
            evidence=(
                seconds("computation that all ranks have in common, at first", first_s, facts.span),
                seconds("the same, at the end", last_s, facts.span),
                *_sensor_evidence(facts, sensed),
                *(
                    share(f"share of the CPUs of {host} that other programs keep busy", busy, "counters of the hosts")
                    for host, busy in facts.machine.disturbed(facts.machine.host_names).items()
                ),
            ),
            without=without,
            bounds=(partial(without, errors=-SURE), partial(without, errors=SURE)),
        )
    ]


def by_program(facts: Facts, change: Change) -> bool:
    """Whether the level changes at a step from which on the program trains other networks than before."""
    step = int(facts.window.steps[change.since])
    return change.at_once and any(abs(step - begins) <= NEAR for begins in facts.new_networks)


def change_of_level(facts: Facts) -> Change | None:
    """How the work that all ranks have in common becomes longer, or shorter; None: it does not, beyond its noise."""
    phases, rows = common_phases(facts), np.flatnonzero(~facts.window.odd)
    if not phases or all_wait(facts.window, facts.machine):
        return None
    taken_s = without_stalls(common_s(facts, phases)[rows])
    cut = change_point(taken_s)
    if cut is None:
        return None
    models: dict[Cuts, Floats] = {cuts: levels(taken_s, cuts) for cuts in ((cut,), None)}
    missed = {cuts: float(((taken_s - level_s) ** 2).sum()) for cuts, level_s in models.items()}
    at = min(missed, key=lambda cuts: missed[cuts])
    stairs = _epochs(facts, rows)
    if len(stairs) > 1 and ((taken_s - levels(taken_s, stairs)) ** 2).sum() < STAIRS * missed[at]:
        models[stairs], at = levels(taken_s, stairs), stairs
    first_s, last_s = float(models[at][0]), float(models[at][-1])
    low_s, high_s = sorted((first_s, last_s))
    least = SLOWER_ON_CPUS if facts.on_cpus else SLOWER
    if not high_s > (1 + least) * low_s > 0 or high_s - low_s < DEVIATIONS * _error_s(taken_s - models[at], at):
        return None
    first_by_clock_s, last_by_clock_s = levels(lower_median(per_step(facts.window, phases))[rows], at)[[0, -1]].tolist()
    if (last_by_clock_s - first_by_clock_s) / (last_s - first_s) < OF_CLOCK:
        return None
    data = _data_of_steps(facts.window)[rows]
    ends = levels(data, at)[[0, -1]] if np.isfinite(data).all() else np.ones(2)
    return Change(
        first_s=first_s,
        last_s=last_s,
        since=int(rows[cut if at is None else at[-1]]),
        cuts=None if at is None else tuple(int(rows[row]) for row in at),
        clock=last_by_clock_s / first_by_clock_s,
        data=float(ends[1] / ends[0]) if ends.min() > 0 else 1.0,
    )


def _epochs(facts: Facts, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """Where in ``rows`` of the steps another epoch begins, if each has enough of them for a level."""
    begins = np.unique(np.searchsorted(rows, np.flatnonzero(facts.first)))
    begins = begins[(begins > 0) & (begins < rows.size)]
    lengths = np.diff([0, *begins, rows.size])
    return tuple(begins.tolist()) if lengths.min() >= MIN_POINTS else ()


def _data_of_steps(window: Window) -> Floats:
    """The elements of each step, over all ranks, or its samples where samples do not differ in size, (steps,)."""
    known = window.elements is not None and np.isfinite(window.elements).all()
    data: Floats = (window.elements if window.elements is not None and known else window.samples).sum(axis=1)
    return data


def two_levels(facts: Facts) -> list[str]:
    """A note where means are of two levels, and no finding says so: ranks become faster, or have other batches."""
    change, both = change_of_level(facts), "rates, times and gains are means of both"
    if change is None or not (change.by_data or by_program(facts, change) or change.last_s < change.first_s):
        return []
    if by_program(facts, change):
        longer, step = f"{change.clock:.2g} times", facts.window.steps[change.since]
        what = f"from step {step:,} on the program trains another network, or another part of it"
        return [f"{what}, and steps compute {longer} as long: {both}"]
    if change.by_data:
        data, longer = (f"{ratio:.2g} times" for ratio in (change.data, change.clock))
        when = f"from step {facts.window.steps[change.since]:,} on" if change.cuts is not None else "in the end"
        return [f"{when} steps have {data} as much data as at first, and take {longer} as long: {both}"]
    longer, step = percent(1 / change.clock - 1), facts.window.steps[change.since - 1]
    if not change.at_once:
        become = facts.all_ranks("become").lower()
        return [f"{become} faster little by little: at first a step computes {longer} longer than in the end"]
    return [f"up to step {step:,} {facts.all_ranks('compute').lower()} {longer} longer than after it: {both}"]


def _error_s(noise: Floats, cuts: Cuts) -> float:
    """Standard error of the change, around which ``noise`` (steps,) is: between the first level and the last.

    Of the ends of a line it is that of its slope times its length (Draper & Smith 1998, §1.4).
    """
    steps = noise.size
    per_variance = 12 / steps if cuts is None else 1 / cuts[0] + 1 / (steps - cuts[-1])
    return math.sqrt(per_variance * long_run_variance(noise))


def _sensed(facts: Facts, after: Bools) -> dict[str, tuple[float, float]]:
    """Sensor → its median before and after, of those that were sampled on both sides."""
    sensed = {}
    for name, values in facts.machine.sensors.items():
        sides = [values[side & np.isfinite(values)] for side in (~after, after)]
        if all(side.size for side in sides):
            sensed[name] = (float(np.median(sides[0])), float(np.median(sides[1])))
    return sensed


def _sensor_evidence(facts: Facts, sensed: Mapping[str, tuple[float, float]]) -> Iterator[Evidence]:
    """What the sensors of accelerators showed, the ratio of clocks first."""
    for name, (what, unit) in SENSORS.items():
        if name not in sensed:
            continue
        before, after = sensed[name]
        if name == "clock_hz" and before > 0:
            yield share(f"{what}, after ÷ before", after / before, facts.span)
        for when, value in (("before", before), ("after", after)):
            yield Evidence(what=f"{what}, {when}", value=value, unit=unit, source="samples of the accelerators")


def _remedy(facts: Facts, *, fell: bool) -> Action:
    if fell:
        return sentence("check cooling and power limits: ", clocks(facts.machine))
    came = "whether other programs came meanwhile (top), " if facts.machine.disturbed(facts.machine.host_names) else ""
    return sentence(
        f"see {came}what grows in the program (memory, lengths of sequences, lists that keep tensors), and whether "
        "processors lower their clocks: ",
        clocks(facts.machine),
    )
