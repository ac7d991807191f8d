"""One rank computes longer than the others, step after step, and all of them wait for it.

What it is
    Synchronous training runs at the pace of its slowest rank. A processor with a lower clock, shared memory or cores,
    or work that the other ranks do not have (logging, saving, debugging) delays all of them.

How it is found
    By its own work: copies, forward, backward without the collectives in it, optimizer and time between phases,
    compared with that of the other ranks in each step. It stands out if that is more than its own steps vary by
    (Student's t, one false alarm in ten thousand runs of independent steps), if its mean excess is larger than the
    largest one when ranks are relabelled at random, if it pauses in every n-th step, at least four times and more
    often than chance explains, or if it is late for a while: in nine of ten of 16 steps or more, and
    not before or after them. One that pauses, and is late in each step, too, has two findings. The waiting of the
    others is not used, so a delay inside backward is not mistaken for a slow network, nor a slow network for a late
    rank. Lateness that more samples, a slow loader or CPU contention explain is reported by their own rules, and so
    is a host on which all ranks are slow. Ranks record how long Python collects garbage and torch.compile compiles,
    and in which step CUDA's allocator retries: where these stalls are half of a rank's lateness, as far as the
    others do not have them in the same step, they are a finding of their own, and what the rank waited for a CPU
    meanwhile is part of it; the rest of its work is compared without them. Three or more ranks that are late by
    nearly the same time in the same phase are one finding. Where CPUs compute, a slow rank must cost at least 8 %
    of the step: interrupts and other activity make cores differ by nearly that much, and different ones in each
    run. A rank sleeps, rather than computes, where its process neither ran nor waited for a CPU for most of the
    time by which it is late.

What it costs
    The replay with this rank's work equal to the median of the others, and varying as theirs does; of stalls, without
    these. That is less than the excess where a busy network hides part of it. Ranks that are late at the same time hide
    each other: where a fifth of what one costs is hidden so, it is priced with the others corrected. Where a rank hands
    on to the others what it computes, by broadcasts in the optimizer or by scattering, it works for all, and the price
    is an upper bound: somebody has to do that work. A sharded optimizer's can at most be shared out evenly. So can work
    between `all_to_all` calls in forward and backward, on tokens that came to the experts of this rank: the evidence
    says what that would save if the calls took no longer, but ranks that arrive together may exchange more slowly, so
    no part of it is certain. If the rank is slow, all of it is.

What to do
    If the finding names what stalls the rank: as in `common-stall`, on this rank; it stays with the rank on any host,
    because it comes from its data or its part of the program. If it says that the rank sleeps, it waited for something
    other than a CPU in its own code: `py-spy dump` names the line, as it does where an accelerator waits for a rank
    that is late between its phases. If it may run on far fewer CPUs than the others, let it run on as many. Otherwise
    check what differs on that host: clocks and temperature (`nvidia-smi -q -d CLOCK,PERFORMANCE`), other processes
    (`top`), binding to cores and memory. Until it is repaired, exclude it (`sbatch --exclude=HOST`, or without it in
    the hosts file). If it is rank 0, and late outside of forward and backward, look for what only rank 0 does: logging,
    metrics, saving. A sharded optimizer that hands out whole tensors (`ZeroRedundancyOptimizer`) cannot divide a large
    one: split that tensor, or shard evenly (`fully_shard`). Where experts or embedding tables of one rank get more than
    their share, balance the router (a loss for it, a capacity of each expert), or place them otherwise.

When it is wrong
    Where the data of one rank are harder, such as longer sentences or larger images, the rank is slow because of its
    share of the work, not because of its host: move ranks to other hosts, and see whether the lateness stays with the
    rank. Where its samples are known to be larger, the finding says so, and its price is an upper bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, Removal, as_recorded, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.hosts.binding import fewer_cpus
from allpull.explain.evidence.late.cpu_waiting import (
    COMPUTING,
    is_known_per_step,
    is_work,
    per_step,
    ran_per_step_s,
    shortened,
    slept_s,
)
from allpull.explain.evidence.late.grouping import Group, groups, named
from allpull.explain.evidence.late.lateness import BY_SAMPLE, sample_shares
from allpull.explain.evidence.late.outliers import Outlier
from allpull.explain.evidence.late.whiles import hull
from allpull.explain.evidence.late_phases import excess_by_phase, in_each_step, in_pauses
from allpull.explain.rank_remedy import BETWEEN, Does, of_many, of_one
from allpull.explain.remedy import joined, program, sentence
from allpull.explain.remedy_text import WHERE
from allpull.explain.rules.common_stall import CAUSES, against
from allpull.replay.engine import replay
from allpull.replay.whatif.balanced import like_median, not_above_median
from allpull.replay.whatif.work import by_excess, evenly, scaled, shorter_by
from allpull.replay.window import Window
from allpull.schema.explained import Evidence
from allpull.units import counted

LAST = "collectives, of {:,}, at which it arrived last"
SLEPT = "of that, time in which its process neither ran nor waited for a CPU, at least"
MOSTLY = 0.5  # of the lateness: a rank that slept for that long does not compute longer
RAN = 0.75  # of the lateness: a rank that ran so much longer computes longer; after sleep, too, it finds cold caches
BEFORE_ITS_OWN = " before one of their collectives"
LARGER = 1.05  # times the elements of the others' samples: less than that, they vary by chance
SIZES = "sizes of batches"
LARGER_SAMPLES = "elements per sample of {} divided by those of the others"
IF_SHARED = "saved if ranks shared the work of forward and backward evenly, and exchanged as fast as now"
REPLAYED = "replay"
LIKE_LENGTHS = sentence(
    "its samples are larger than the others' (longer texts, larger images): give all ranks as much of each size"
)
HANDED_ON: Mapping[str, tuple[frozenset[str], ...]] = {
    "optimizer": (frozenset({"broadcast in optimizer"}),),
    BETWEEN: (
        frozenset({"scatter"}),
        frozenset({"scatter_object_list"}),
        frozenset({"gather", "broadcast"}),
        frozenset({"gather_object", "broadcast_object_list"}),
    ),
}
"""Phase → the calls, all of one set, by which a rank hands on to the others what it computes there."""
HANDS_ON = {
    "optimizer": ", whose results it broadcasts to the others",
    BETWEEN: ", where it scatters or broadcasts data to the others",
}
SHARE_OUT = {
    "optimizer": sentence(
        "share out the optimizer's work evenly: ",
        program("ZeroRedundancyOptimizer"),
        " hands out whole tensors, so split the largest one of this rank, or shard all of them evenly (",
        program("fully_shard(model)"),
        ")",
    ),
    BETWEEN: sentence(
        "if it makes there what it hands on, let each rank make its own part, or make it ahead, in a thread or the "
        "workers of a loader"
    ),
}


PASSES = ("forward", "backward")
EXCHANGES = tuple(f"{call} in {phase}" for call in ("all_to_all", "all_to_all_single") for phase in PASSES)
"""The calls by which ranks work on parts of each other's batches, in experts or embedding tables of their own."""
BALANCE = sentence(
    "if more of the exchanged data comes to this rank than to others (tokens to its experts, rows of its tables): "
    "balance that, by a loss for the router, a capacity of each expert or another placement"
)


def find(facts: Facts) -> list[Candidate]:
    """The ranks that compute longer than the others."""
    return [*_stalled(facts), *_slow(facts)]


def _slow(facts: Facts) -> list[Candidate]:
    """The ranks whose own work is longer, whatever it is."""
    if not facts.late.slow:
        return []
    pausing = any(one.pauses for one in facts.late.slow)
    excess = {pauses: excess_by_phase(facts, pauses=pauses) for pauses in {False, pausing}}
    more = _with_other_causes(facts)
    faults = sorted((fault for one in facts.late.slow for fault in one.faults), key=lambda one: -one.size.value)

    def where(one: Outlier) -> str:
        phases = excess[bool(one.pauses)]
        return max(phases, key=lambda name: float(phases[name][one.rank]))

    def fault_of(one: Outlier) -> Hashable:
        during = None if one.rows is None else tuple(round(row / MIN_POINTS) for row in one.rows)
        return where(one), one.steady, one.every, during, one.rank if one.rank in more else None

    same_fault = groups(faults, fault_of)
    latest = [(group, group.members[0]) for group in same_fault]
    return [_suspect(group, facts, excess[bool(one.pauses)], where(one)) for group, one in latest]


def _stalled(facts: Facts) -> list[Candidate]:
    """The ranks that their own stalls make late."""
    stalled = facts.late.stalled
    if stalled.seconds is None:
        return []
    of_fault = groups(stalled.ranks, lambda one: (tuple(stalled.causes[one.rank]), one.steady))
    return [_held_up(group, facts, stalled.seconds) for group in of_fault]


def _held_up(group: Group, facts: Facts, stalled_s: Floats) -> Candidate:
    ranks, causes = list(group.ranks), facts.late.stalled.causes[group.members[0].rank]
    phases = {name: facts.window.per_step(name) for name in COMPUTING if name in facts.window.work}
    phases = {name: seconds for name, seconds in phases.items() if is_work(facts.window, name)}
    mine_s = np.where(np.isin(np.arange(facts.window.ranks), ranks), stalled_s, 0.0)
    gone_s = by_excess(phases, mine_s)
    where = WHERE[max(gone_s, key=lambda name: float(gone_s[name].sum()))]
    is_one = len(ranks) == 1
    stall = f"{facts.on(ranks[0])} stalls" if is_one else f"{named(ranks, facts.machine)} stall"
    held = np.asarray((mine_s > 0).any(axis=1), dtype=np.bool_)
    often = f"{int(held.sum()):,} of {counted(held.size, 'step')}"
    which = f"rank {ranks[0]}" if is_one else "the latest of them"
    return Candidate(
        rule="slow-rank",
        kind="late",
        title=f"{stall} in {often}, while the others do not, {group.span()} per step on average, most of it {where}: "
        + ", and ".join(CAUSES[cause] for cause in causes),
        remedy=joined("; ", *(against(cause, facts.start) for cause in causes)),
        evidence=(
            seconds(f"stalls of {which}, spread over all steps", group.size, facts.span),
            *(
                share(f"share of the lateness of {which} in which {CAUSES[cause]}", part, facts.span)
                for cause, part in causes.items()
            ),
            *waiting_evidence(ranks, facts),
        ),
        without=partial(shorter_by, gone_s=gone_s),
        ranks=group.ranks,
        rare=held,
    )


def _suspect(group: Group, facts: Facts, excess: Mapping[str, Floats], where: str) -> Candidate:
    ranks = list(group.ranks)
    is_one = len(ranks) == 1
    slept = _slept_s(group, facts)
    verb = _verb(group, facts, slept)
    compute = f"{facts.on(ranks[0])} {verb}s" if is_one else f"{named(ranks, facts.machine)} {verb}"
    one = group.members[0]
    often = _often(one, facts)
    pauses = np.isin(np.arange(facts.window.steps.size), one.pauses)
    before = BEFORE_ITS_OWN if facts.late.own_meetings else ""
    which = f"rank {ranks[0]}" if is_one else "the latest of them"
    each = _within(group.size.value, {name: float(seconds_[ranks].mean()) for name, seconds_ in excess.items()})
    hands_on = any(calls <= {*facts.window.uses} for calls in HANDED_ON.get(where, ()))
    hands_on &= slept is None or where == BETWEEN  # sleep is no work that others could do a part of
    larger = _size_of_samples(ranks, facts) if where in BY_SAMPLE else 1.0
    exchanges = where in PASSES and not set(EXCHANGES).isdisjoint(facts.window.uses)
    without = _without(group, facts)
    shared = partial(_shared_out, phases=PASSES, removal=without)  # whether its data make it late, or its host
    bounds: tuple[Removal, Removal] | None = (shared, without) if larger >= LARGER else None
    if exchanges:  # ranks that arrive together may exchange more slowly: even that is not certain
        bounds = (as_recorded, without)
    remedy = of_one(ranks[0], facts, where, does=verb) if is_one else of_many(ranks, facts)
    if hands_on:
        remedy = joined("; if not, ", SHARE_OUT[where], remedy) if where == BETWEEN else SHARE_OUT[where]
    if larger >= LARGER:
        remedy = joined("; if its time does not go with that: ", LIKE_LENGTHS, remedy)
    if exchanges:
        remedy = joined("; if not, ", BALANCE, remedy)
    if hands_on:
        if where != BETWEEN:  # somebody has to do it, while data may be made ahead
            without = partial(_shared_out, phases=(where,), removal=without)
        bounds = (as_recorded, without)
    return Candidate(
        rule="slow-rank",
        kind="late",
        title=f"{compute} {group.span()} per step longer than the others{often}{before}, most of it {WHERE[where]}"
        + (HANDS_ON[where] if hands_on else ", on data that ranks exchange (all_to_all)" if exchanges else ""),
        remedy=remedy,
        evidence=(
            seconds(f"time that {which} {verb}s beyond the median of the others{before}", group.size, facts.span),
            *((seconds(IF_SHARED, _saved_s(facts, shared), REPLAYED),) if exchanges else ()),
            *(() if slept is None else (seconds(SLEPT, min(slept, group.size.value), "CPU time of the ranks"),)),
            *(
                seconds(f"of that, {WHERE[name]}{'' if is_one else ', mean of all of them'}", value, facts.span)
                for name, value in sorted(each.items(), key=lambda one: -one[1])
                if value > (facts.floor_s or 0.0)
            ),
            *waiting_evidence(ranks, facts),
            *fewer_cpus(facts.machine, ranks),
            *((share(LARGER_SAMPLES.format(which), larger, SIZES),) if larger >= LARGER else ()),
        ),
        without=without,
        bounds=bounds,
        ranks=group.ranks,
        least_share=facts.slow_share,
        rare=pauses + 2 * facts.window.odd_kinds if one.pauses else None,
    )


def _often(one: Outlier, facts: Facts) -> str:
    """When ``one`` is late, for a title; "" where it usually is."""
    if len(one.pauses) > 1:
        first, second = facts.window.steps[list(one.pauses[:2])]
        return f" on average, once in {second - first:,} steps"
    if one.rows is not None:
        first, last = (facts.window.steps[row] for row in one.rows)
        begins, ends = one.rows[0] > 0, one.rows[1] < facts.window.steps.size - 1
        when = f"from step {first:,} {f'to {last:,}' if ends else 'on'}" if begins else f"up to step {last:,}"
        return f" on average, {when}"
    return "" if one.steady else " in some steps"


def _size_of_samples(ranks: list[int], facts: Facts) -> float:
    """The elements of a sample of ``ranks``, divided by those of the median other rank, the least; 1: not known."""
    window = facts.window
    others = np.setdiff1d(np.arange(window.ranks), ranks)
    if window.elements is None or not others.size or not np.isfinite(window.elements).any(axis=0).all():
        return 1.0
    each = np.nanmean(window.elements, axis=0) / sample_shares(window)
    return float(each[ranks].min() / np.median(each[others]))


def _shared_out(window: Window, phases: Sequence[str], removal: Removal) -> Window:
    """``window`` after ``removal``, but for the work in ``phases``, which all ranks share evenly."""
    for phase in phases:
        window = evenly(window, phase)
    return removal(window)


def _saved_s(facts: Facts, removal: Removal) -> float:
    """What ``removal`` saves per step, s."""
    total_s = replay(facts.window).total_s - replay(removal(facts.window)).total_s
    return total_s / max(1, facts.window.steps.size)


def _within(size_s: float, excess_s: Mapping[str, float]) -> dict[str, float]:
    """The positive parts of a lateness of ``size_s``, shares of ``excess_s`` by phase; together they do not exceed it.

    They do before, where some of the excess has another cause, or the rank is faster in other phases.
    """
    parts = {name: value for name, value in excess_s.items() if value > 0}
    share_ = min(1.0, size_s / total) if (total := sum(parts.values())) > 0 else 0.0
    return {name: share_ * value for name, value in parts.items()}


def _slept_s(group: Group, facts: Facts) -> float | None:
    """How long the ranks of ``group`` sleep beyond the others, where that is most of their lateness; otherwise None.

    Where all ranks are late, each before another meeting, none of them shows what is usual: all sleep counts.
    """
    slept = slept_s(facts.window, facts.machine)
    if slept is None or len(group.ranks) == facts.window.ranks:
        return None
    others = np.setdiff1d(np.arange(facts.window.ranks), [one.rank for one in facts.late.slow])
    others = others if facts.late.own_meetings else np.setdiff1d(np.arange(facts.window.ranks), group.ranks)
    usual_s = float(np.median(slept[others])) if others.size else 0.0
    more_s = float(slept[list(group.ranks)].min()) - usual_s
    return more_s if more_s >= MOSTLY * group.size.value else None


def _verb(group: Group, facts: Facts, slept: float | None) -> Does:
    """What the ranks of ``group`` do longer, as far as the CPU time of their processes shows it."""
    if slept is not None:
        return "sleep"
    if not is_known_per_step(facts.window, facts.machine) or len(group.ranks) == facts.window.ranks:
        return "compute"
    ran_s = ran_per_step_s(facts.window, facts.machine)
    if ran_s is None:
        return "take"
    others = np.setdiff1d(np.arange(facts.window.ranks), group.ranks)
    more_s = float(ran_s[list(group.ranks)].min() - np.median(ran_s[others]))
    return "compute" if more_s >= RAN * group.size.value else "take"


def waiting_evidence(ranks: list[int], facts: Facts) -> tuple[Evidence, ...]:
    """How long the others waited for ``ranks``; of one rank, also how often it was last."""
    if facts.blame is None or not facts.window.complete:  # they may have waited for a rank without records
        return ()
    others = np.setdiff1d(np.arange(facts.window.ranks), ranks)
    caused_s = float(facts.blame.caused_s[ranks][:, others].sum()) / max(1, facts.window.steps.size * others.size)
    source = f"collectives of {facts.span}"
    if len(ranks) > 1:
        return (seconds("time that each other rank waited for them", caused_s, source),)
    last = facts.blame.last[ranks[0]]
    return (
        seconds(f"time that each other rank waited for rank {ranks[0]}", caused_s, source),
        *((count(LAST.format(facts.blame.meetings), last, facts.span),) if last else ()),  # 0: clocks did not tell
    )


def _without(group: Group, facts: Facts) -> Removal:
    """Their work like that of the others; for a rank that has other causes too, less only what these do not explain."""
    one = group.members[0]
    if facts.late.own_meetings:
        return partial(not_above_median, ranks=group.ranks, phases=COMPUTING)
    everybody, during = len(facts.late.computing) == facts.window.ranks, hull([one.rows for one in group.members])
    more_s = sum(uneven.size.value for uneven in facts.late.uneven if uneven.rank == one.rank)
    both = {other.rank for other in facts.late.slow if other.split is not None}
    if both.intersection(group.ranks) or (one.pauses and (everybody or more_s)):
        late = in_pauses if one.pauses else in_each_step
        return partial(shorter_by, gone_s=late(facts, group.members))
    if more_s:  # the work of the rank without them, of which its size is that share
        own_s = float(per_step(facts.window, COMPUTING)[:, one.rank].mean()) - more_s
        factor = max(0.0, 1 - one.size.value / own_s) if own_s > 0 else 1.0
        return partial(scaled, phases=COMPUTING, factor=factor, ranks=group.ranks)
    if everybody and all(member.rank in facts.late.own_phases for member in group.members):
        phases = {name for member in group.members for name in facts.late.own_phases[member.rank]}
        return partial(like_median, ranks=group.ranks, phases=phases)
    if one.rank in _with_other_causes(facts) or (everybody and during is None):
        return partial(
            shortened,
            gone_s={member.rank: member.size.value for member in group.members},
            evenly=facts.late.stalled.late,
        )
    unlike = facts.late.computing_in(during)
    return partial(like_median, ranks=group.ranks, phases=COMPUTING, unlike=unlike, during=during)


def _with_other_causes(facts: Facts) -> set[int]:
    """Ranks that also have more samples, wait for a CPU, or have stalls."""
    late = facts.late
    return {one.rank for ranks in (late.uneven, late.contended, late.stalled.ranks) for one in ranks}
