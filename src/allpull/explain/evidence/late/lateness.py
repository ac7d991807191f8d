"""The ranks whose work makes the others wait, each assigned to one cause.

Late ranks are distinguished from slow networks by their own work: it is longer, whatever the others wait for. Of the
additional work

- the part of additional samples is ``uneven``, and what goes with the size of batches is nobody's;
- waiting for a CPU, by the kernel's own count, is ``contended``: step by step, where it is known of the training thread
  (a rank may then be both contended and slow), otherwise by the share of its lateness that it explains. When in a step
  it waited is not known: a rank is slow only if it is so wherever the waiting fell;
- stalls that a rank recorded are ``stalled`` where they are most of its lateness; what it waited for a CPU meanwhile is
  part of them;
- what a rank computes longer because it is paced by a host that issues as fast as the others is nobody's, and what its
  device may have waited for its host after late batches is its loader's;
- what all ranks of one host have, and no rank of another host, belongs to ``slow_hosts``;
- the remaining computation belongs to ``slow`` ranks, and that of the loader to ``loaders``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.batch_work import batch_work
from allpull.explain.evidence.late.cpu_waiting import COMPUTING, held_up, is_crowded, is_work, per_step, surely_held_up
from allpull.explain.evidence.late.meetings import before_meetings
from allpull.explain.evidence.late.outliers import Outlier, is_correlated, mean_interval, outliers, without_pauses
from allpull.explain.evidence.late.pacing import for_host_s, may_be_starved, not_only_paced
from allpull.explain.evidence.late.stalls import HeldUp, Stalls, held_up_alone
from allpull.replay.blame import Blame
from allpull.replay.leave_one_out import beyond_others
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools, Window
from allpull.schema.results import Interval

BY_SAMPLE = ("forward", "backward")
"""Work that grows with the samples of a step."""
UNEVEN = 0.01  # of the samples of the median rank: less is the rounding of shards
BY_SAMPLES_SHARE = 0.5  # of the time that more samples should take: a rank that takes less is not late because of them
NEGLIGIBLE = 0.005  # of a step: smaller lateness explains nothing
FEW_RANKS = 8  # of fewer, more than half may have faults of their own
OF_TWO = 0.05  # of a step: two equal ranks may differ by less in any phase
OF_PHASE = 0.5  # of its lateness in a phase: a rank that is that much late in total does not only cut phases otherwise
CERTAIN = 0.5  # of its lateness before a meeting, without queueing, has to be waited for
HELD = 0.05  # of a step without a CPU, beyond the others: cores differ by a few percent
SURELY = 0.25  # of the largest possible time without a CPU
CONTENDED_SHARE = 0.5  # of its lateness: a rank that waited that long for a CPU is late because of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """One rank with ``share`` times the samples of the median rank, which take ``size`` longer, s per step."""

    rank: int
    share: float
    size: Interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LateRanks:
    """All ranks that stand out, each kind largest first; ``floor_s``: the noise floor, s per step.

    ``unsure``: late ranks for which waiting for a CPU may be the cause, or not. ``is_correlated``: as in ``outliers``.
    ``own_meetings``: where ``slow`` ranks are late before different meetings of a step, and early before others, the
    numbers of these meetings for each rank; otherwise empty. ``own_phases``: the same of phases.
    """

    slow: tuple[Outlier, ...] = ()
    slow_hosts: tuple[tuple[str, tuple[Outlier, ...]], ...] = ()
    contended: tuple[Outlier, ...] = ()
    loaders: tuple[Outlier, ...] = ()
    uneven: tuple[Uneven, ...] = ()
    unsure: tuple[Outlier, ...] = ()
    stalled: HeldUp = field(default_factory=HeldUp)
    floor_s: float = float("inf")
    own_meetings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    own_phases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    is_correlated: bool = False

    @property
    def computing(self) -> frozenset[int]:
        """All ranks that compute longer, whatever the cause: not part of the median of others."""
        slow = (self.slow, self.contended, self.stalled.ranks, *(ranks for _, ranks in self.slow_hosts))
        return frozenset(one.rank for kind in slow for one in kind) | {one.rank for one in self.uneven}

    def computing_in(self, during: tuple[int, int] | None) -> frozenset[int]:
        """Those of ``computing`` that are late in some rows ``during``, the first and last; None: all of them."""
        if during is None:
            return self.computing
        late = (*self.slow, *(one for _, ranks in self.slow_hosts for one in ranks))
        apart = {one.rank for one in late if one.rows and (one.rows[0] > during[1] or one.rows[1] < during[0])}
        return self.computing - apart

    @property
    def loading(self) -> frozenset[int]:
        """All ranks whose loaders are behind."""
        return frozenset(one.rank for one in self.loaders)


def late_ranks(
    window: Window,
    machine: Machine,
    blame: Blame | None = None,
    stalls: Stalls | None = None,
    first: Bools | None = None,
) -> LateRanks:
    """Every rank of ``window`` whose work stands out; ``blame``: who waited for whom, None: not known.

    ``first`` (steps,): the first batches of epochs, for which loaders are not compared: they have a rule of their own.
    """
    uneven, own_s = _own_work(window, machine)
    held_s, surely_s = held_up(window, machine), surely_held_up(window, machine)
    least_s = NEGLIGIBLE * step_s(window)
    stalled = held_up_alone(own_s, stalls or Stalls(), least_s)
    if stalled.seconds is not None:
        held_s, surely_s = (None if one is None else stalled.beside(own_s, one) for one in (held_s, surely_s))
        own_s = own_s - stalled.seconds
    computing = outliers(own_s if held_s is None else np.maximum(own_s - held_s, 0.0))
    own = not_only_paced(window)
    is_whole = bool(uneven or stalled.ranks)
    own_meetings = {} if is_whole else _before_different_meetings(window, machine, blame)
    own_phases: dict[Outlier, tuple[str, ...]] = {}
    if not own_meetings and not stalled.ranks:
        own_phases = _in_different_phases(window, own_s, np.zeros_like(own_s) if held_s is None else held_s)
    hidden = tuple(sorted(own_meetings or own_phases, key=lambda one: -one.size.value))
    out = [
        one
        for one in hidden or computing.ranks
        if one.size.value >= least_s
        and own[one.rank]
        and not may_be_starved(window, one.rank, one.size.value - least_s)
    ]
    unsure: list[Outlier] = []
    if held_s is None or surely_s is None:
        contended = [one for one in out if _is_contended(one, window, machine)]
        slow = [one for one in out if one not in contended]
    else:
        contended = _held(held_s, surely_s, window)
        slow = [one for one in out if hidden or _beyond_queues(one, own_s - held_s, own_s - surely_s) >= least_s]
        named = {one.rank for one in (*slow, *contended)}
        unsure = [one for one in outliers(own_s).ranks if one.rank not in named and one.size.value >= least_s]
    hosts = _whole_hosts(slow, machine)
    of_hosts = {one.rank for _, ranks in hosts for one in ranks}
    return LateRanks(
        slow=tuple(one for one in slow if one.rank not in of_hosts),
        slow_hosts=hosts,
        contended=tuple(contended),
        loaders=tuple(one for one in _loaders(window, least_s, first) if one.size.value >= least_s),
        uneven=uneven,
        unsure=tuple(unsure),
        stalled=stalled,
        floor_s=computing.floor_s,
        own_meetings={one.rank: places for one, places in own_meetings.items()},
        own_phases={one.rank: names for one, names in own_phases.items()},
        is_correlated=is_correlated(own_s),
    )


def _own_work(window: Window, machine: Machine) -> tuple[tuple[Uneven, ...], Floats]:
    """The ranks with more samples, and the work of each rank, (steps, ranks), without what these take, or its batches.

    Waiting for a CPU is part of it.
    """
    share = sample_shares(window)
    by_sample = per_step(window, BY_SAMPLE)
    rest = per_step(window, [name for name in COMPUTING if name not in BY_SAMPLE and is_work(window, name)])
    fastest_s = by_sample[:, [int(by_sample.sum(axis=0).argmin())]]
    uneven = _uneven(by_sample, fastest_s, share)
    has_more = np.array([rank in {one.rank for one in uneven} for rank in range(window.ranks)], dtype=np.bool_)
    own_s = np.where(has_more, np.maximum(by_sample / share, np.minimum(by_sample, fastest_s)), by_sample) + rest
    batches = batch_work(window, machine)
    return uneven, own_s if batches is None else own_s - batches.excess_s


def _loaders(window: Window, least_s: float, first: Bools | None) -> tuple[Outlier, ...]:
    """The ranks that wait longer for their loaders, by ``least_s`` or more: on devices, those whose hosts do.

    Of equal hosts one is the last to issue each step. Its device waits longest for each batch, and the others' for it.
    """
    waits_s = per_step(window, ("input",))
    if first is not None and first.any() and not first.all():
        waits_s = np.where(first[:, None], np.median(waits_s[~first], axis=0), waits_s)
    late = outliers(waits_s, least_s=least_s).ranks
    if window.fetched_s is None:
        return late
    behind = {one.rank for one in outliers(window.fetched_s).ranks}
    return tuple(one for one in late if one.rank in behind)


def _in_different_phases(window: Window, own_s: Floats, held_s: Floats) -> dict[Outlier, tuple[str, ...]]:
    """The late ranks, where these are more than half of all, but not in any one phase; otherwise none.

    With each of them the phases in which it is late.

    In total they hide each other: of three ranks two are late, or one is fast; of two, each is in another phase. In
    each phase half of the ranks or more are not late. Of two ranks, one that waits earlier for its device, or computes
    its loss elsewhere, cuts forward and backward otherwise: they are not compared so on a device, or in these alone.

    The work ``own_s`` of a rank is compared with that of a rank that is in each phase like the median of those that are
    not late in it, both without what they waited for a CPU, ``held_s``; (steps, ranks).
    """
    least_s = OF_TWO * step_s(window) if window.ranks == 2 else 0.0
    if not 1 < window.ranks < FEW_RANKS or (window.ranks == 2 and window.on_device):
        return {}
    names = [name for name in COMPUTING if name in window.work and is_work(window, name)]
    phases = {name: without_pauses(window.per_step(name)) for name in names}
    late_in = {name: outliers(seconds).ranks for name, seconds in phases.items()}
    computed_s, usual_s = without_pauses(own_s - held_s), -lower_median(held_s)
    queued_s = -float(usual_s.mean())  # when in a step the others waited is not known
    for name, seconds in phases.items():
        # at most half of all: those that are late throughout
        late_there = [one.rank for one in late_in[name] if not one.pauses and one.rows is None]
        usual_s += np.median(np.delete(seconds, late_there, axis=1), axis=1)
    late: dict[int, Outlier] = {}
    where: dict[int, list[str]] = {}
    for name, standing_out in late_in.items():
        for one in standing_out:
            more = mean_interval(computed_s[:, one.rank] - usual_s)
            if one.steady and more.value - queued_s >= max(OF_PHASE * one.size.value, least_s):
                late[one.rank] = Outlier(rank=one.rank, size=more, steady=True)
                where.setdefault(one.rank, []).append(name)
    if len(late) <= window.ranks // 2:
        return {}
    if window.ranks == 2 and {name for names in where.values() for name in names} <= set(BY_SAMPLE):
        return {}
    return {one: tuple(where[one.rank]) for one in late.values()}


def _before_different_meetings(window: Window, machine: Machine, blame: Blame | None) -> dict[Outlier, tuple[int, ...]]:
    """The late ranks, where more than half of all are, each before another meeting of a step; otherwise none.

    With each of them the numbers of the meetings of a step before which it is late.

    In the total of a step they hide each other, but the others wait for each at its own meeting. Waiting for a CPU may
    fall before any of them. Where ranks have more samples, or stalls, all are compared as a whole, not so.
    """
    if blame is None or not 1 < window.ranks < FEW_RANKS:
        return {}
    held_s = held_up(window, machine)
    queued_s = np.zeros(window.ranks) if held_s is None else held_s.mean(axis=0)
    late: dict[int, dict[int, Floats]] = {}
    for place, before_s in enumerate(before_meetings(window, [name for name in COMPUTING if is_work(window, name)])):
        more_s = beyond_others(before_s)
        for one in outliers(before_s, least_s=NEGLIGIBLE * step_s(window)).ranks:
            if one.steady or one.split is not None:
                late.setdefault(one.rank, {})[place] = more_s[:, one.rank]
    caused_s = blame.caused_s.max(axis=1) / max(1, window.steps.size)
    out = {}
    for rank, series in late.items():
        size = mean_interval(sum(series.values(), start=np.zeros(1)))
        sure_s = min(float(caused_s[rank]), size.value - float(queued_s[rank]))
        if sure_s >= CERTAIN * size.value >= CERTAIN * NEGLIGIBLE * step_s(window):
            out[Outlier(rank=rank, size=size, steady=True)] = tuple(series)
    return out if len(out) > window.ranks // 2 else {}


def sample_shares(window: Window) -> Floats:
    """Samples of each rank over those of the lower median rank, shape (ranks,); 1 where they are not known."""
    samples = window.samples.mean(axis=0)
    median = float(lower_median(samples)) if window.ranks else 0.0
    if not np.isfinite(samples).all() or median <= 0 or not (samples > 0).all():
        return np.ones(window.ranks)
    shares: Floats = samples / median
    return shares


def _uneven(by_sample: Floats, fastest_s: Floats, share: Floats) -> tuple[Uneven, ...]:
    """Ranks with more samples than the lower median rank that take longer than the fastest, ``fastest_s`` (steps, 1).

    Some work is the same for any number of samples, so that more samples take at most what exceeds the fastest.
    """
    if by_sample.shape[0] == 0:
        return ()
    uneven = []
    for rank in np.flatnonzero(share > 1 + UNEVEN):
        own_s, in_proportion = by_sample[:, rank], 1 - 1 / share[rank]
        beyond_s = own_s - fastest_s[:, 0]
        if beyond_s.mean() >= BY_SAMPLES_SHARE * in_proportion * own_s.mean() > 0:
            more_s = beyond_s if beyond_s.mean() < in_proportion * own_s.mean() else in_proportion * own_s
            uneven.append(Uneven(rank=int(rank), share=float(share[rank]), size=mean_interval(more_s)))
    return tuple(sorted(uneven, key=lambda one: -one.size.value))


def _beyond_queues(one: Outlier, least_s: Floats, most_s: Floats) -> float:
    """By how much a rank computes longer if it waited for a CPU as much as possible, and the others as little.

    ``least_s`` and ``most_s`` (steps, ranks) are the least and the largest computation of ranks themselves. Pauses are
    compared in their steps, as is a while in which one is late, and what else makes ranks late without the pauses of
    others.
    """
    others_s = np.delete(without_pauses(most_s), one.rank, axis=1)
    if one.pauses or one.rows is not None:
        first, last = one.rows or (0, len(least_s) - 1)
        rows = list(one.pauses) if one.pauses and one.split is None else list(range(first, last + 1))
        return float((least_s[rows, one.rank] - np.median(others_s[rows], axis=1)).sum() / len(least_s))
    return float(without_pauses(least_s)[:, one.rank].mean() - np.median(others_s.mean(axis=0)))


def _held(held_s: Floats, surely_s: Floats, window: Window) -> list[Outlier]:
    """The ranks that wait for a CPU more than the others, by ``held_s`` and ``surely_s`` (steps, ranks).

    A good part of it must certainly fall into their computation: a rank that returns late from its loader, or that
    polls for the others while it waits for them, is not late because of that.
    """
    sure_s, least_s = surely_s.mean(axis=0), HELD * step_s(window)
    return [
        one
        for one in outliers(held_s, least_s=least_s).ranks
        if one.size.value >= least_s and sure_s[one.rank] >= SURELY * one.size.value
    ]


def _is_contended(one: Outlier, window: Window, machine: Machine) -> bool:
    """Whether ``one`` waited for a CPU far more than the others, and for most of the time that it is late.

    A device is late because of that only as far as it waited for its host.
    """
    if machine.queued_s is None or not is_crowded(one.rank, machine.queued_s):
        return False
    waits_s = for_host_s(window)
    delayed_s = _beyond(one.rank, machine.queued_s) * step_s(window)
    if waits_s is not None:
        delayed_s = min(delayed_s, _beyond(one.rank, waits_s.mean(axis=0)))
    return delayed_s >= CONTENDED_SHARE * one.size.value


def _beyond(rank: int, each: Floats) -> float:
    """By how much ``each`` (ranks,) of ``rank`` is above the median of the others."""
    return float(each[rank] - np.median(np.delete(each, rank)))


def step_s(window: Window) -> float:
    """The mean step of the job, as recorded."""
    return window.measured_s / max(1, window.steps.size)


def _whole_hosts(slow: list[Outlier], machine: Machine) -> tuple[tuple[str, tuple[Outlier, ...]], ...]:
    """Hosts of several ranks that are all slow at a time, while another host has no slow rank."""
    late = {one.rank: one for one in slow}
    slow_hosts = []
    clean = [host for host in machine.host_names if not any(rank in late for rank in machine.ranks_of(host))]
    for host in machine.host_names:
        ranks = machine.ranks_of(host)
        whiles = [one.rows for rank in ranks if (one := late.get(rank)) is not None and one.rows is not None]
        at_a_time = not whiles or max(first for first, _ in whiles) <= min(last for _, last in whiles)
        if clean and len(ranks) > 1 and all(rank in late for rank in ranks) and at_a_time:
            slow_hosts.append((host, tuple(late[rank] for rank in ranks)))
    return tuple(sorted(slow_hosts, key=lambda one: -sum(each.size.value for each in one[1]) / len(one[1])))
