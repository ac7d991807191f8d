"""A different rank is late in each step, and the others wait for it.

What it is
    No rank is slow, but in every step some rank is: the work of samples differs, the machine disturbs its ranks in
    turn, garbage is collected, a shared file system stalls. The more ranks there are, the more likely it is that one of
    them is delayed in any step, so this cost grows with the job.

How it is found
    By how much each rank deviates from its own usual step. In at least half of the steps the last rank must be behind
    the median rank by 3 % of a step, and by 6 % where CPUs compute, whose own jitter is 1.5 to 3 %. The last of more
    than eight equal ranks is later by chance alone: what it is later by than the last of eight does not count. Or ranks
    pause in turn: in at least eight steps some rank is behind by a quarter of a step, or by twice these shares and
    eight standard deviations of the jitter, not always the same one, and these pauses add up to that share of the time.
    Fewer pauses, two or more, count only where their cause was recorded. Where ranks wait for CPUs, that makes them
    late in turn, and is `cpu-contention`; what goes with the size of their batches is `uneven-batches`. Causes are
    those of `common-stall`, recorded by the rank that is last: garbage collection, compilation, retries of CUDA's
    allocator, which have to cover half of the lateness, or files. Of accelerators that their hosts pace, the time in
    which these issue a step counts, not that in which the device passes over it.

What it costs
    What is left of it once those slow ranks are mended that are findings, too; the title names them where that makes a
    difference. Where one rank at a time is far behind all others, the replay in which it deviates from its usual step
    as the other ranks do. Otherwise the one in which every rank deviates as little as an undisturbed rank, estimated
    from the fastest ranks of that step; with three ranks or more whose deviations have no lower end, as normal numbers
    and unlike equally distributed ones, ranks keep the jitter of a usual machine, or get equal work where it varies by
    more than that. Where a rank is late in every step, and nothing says why, the interval begins where the work of each
    step is shared out equally, or only the last rank of a step is no longer delayed. Where hosts pace their
    accelerators, that is an upper bound.

What to do
    Give samples equal work (sort by length, pad to buckets), keep the machine quiet (`--set launch.bind=cores`, `sbatch
    --exclusive`, `export OMP_NUM_THREADS=…`), collect garbage in all ranks at the same step (`gc.freeze()`, and
    `gc.collect()` every N steps). If the title names a cause: as in `common-stall`. If it says that ranks pause every
    so many steps, look for what the program does then: logging, plots, saving.

When it is wrong
    Any two equal ranks are last in turn; with two ranks only the deviation of one from the other can be seen. The
    price is that of deviations which end. Work that is only shared out equally stays, and that gain is the lower end
    of the interval: of two ranks whose work varies by an exponential law, equal work gained 1.28 where 1.50 was said,
    and no variation at all 1.92.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, Removal, as_recorded, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.batch_work import batch_work
from allpull.explain.evidence.late.cpu_waiting import COMPUTING, all_wait, held_up, per_step
from allpull.explain.evidence.late.jitter import LEAST_RANKS, Jitter, jitter
from allpull.explain.evidence.late.outliers import mean_interval, regular_pauses
from allpull.explain.evidence.late.pacing import at_own_pace, paced_ranks
from allpull.explain.evidence.late.single_delays import LEAST_RANKS as LEAST_TO_COMPARE
from allpull.explain.evidence.late.single_delays import are_single, without_delays
from allpull.explain.evidence.late.stalls import COLLECTION, explained_shares
from allpull.explain.evidence.loader import common_input
from allpull.explain.evidence.start import Start
from allpull.explain.remedy import Action, joined, program, sentence, within
from allpull.explain.remedy_text import WHERE, exclusive, own_cores
from allpull.explain.rules.common_stall import CAUSES, against, of_files
from allpull.replay.whatif.balanced import shared_out
from allpull.replay.whatif.work import lower_median, shortened_by_step
from allpull.replay.window import Bools, Window
from allpull.schema.explained import Evidence
from allpull.schema.gap import named_ranks
from allpull.units import show_time

OF_CPUS = 0.06  # where CPUs compute, whose jitter is 1.5 to 3 % in healthy runs (benchmarks/real_faults.py)
ROTATES = 0.03  # of a step, in the median step: below it, jitter of any machine looks the same
PAUSE = 0.25  # of a step: longer than any jitter
CLEAR, PAUSE_SDS = 2.0, 8.0  # times the least share, and standard deviations: a shorter pause that is no jitter either
MIN_RANKS = 2
WAITED = 0.4  # of what others would wait if they met the last rank in each step: less is lateness that mostly evens out
MOSTLY = 0.75  # of the pauses, or of their time: a rank that has more is named, though chance may have chosen it
NOW_AND_THEN = sentence(
    "look for what the program does on these ranks once in so many steps (logging, plots, saving, metrics): do it less "
    "often, in a thread, or on all of them at the same step"
)
COLLECT_TOGETHER = sentence(
    "collect garbage at the same step on all ranks: ",
    *(program("gc.disable()"), ", and ", program("gc.collect()"), " every N steps; ", program("gc.freeze()")),
    " after the first steps makes collections short",
)


def find(facts: Facts) -> list[Candidate]:
    """The job, where a different rank is late in each step."""
    window = facts.window
    ordinary = ~window.odd
    equal = _equal_ranks(facts)
    if ordinary.sum() < MIN_POINTS or len(equal) < MIN_RANKS or all_wait(window, facts.machine):
        return []
    phases = COMPUTING if common_input(facts) is not None else (*COMPUTING, "input")
    held_s = held_up(window, facts.machine)
    own_s = at_own_pace(window, per_step(window, phases)) - (0.0 if held_s is None else held_s)
    work = batch_work(window, facts.machine)
    own_s = own_s if work is None else own_s - work.excess_s
    deviations = _deviations(own_s)[ordinary][:, equal]
    usual = jitter(deviations)
    behind = deviations.max(axis=1) - np.median(deviations, axis=1)
    if not _is_waited_for(facts, behind, ordinary):
        return []
    by_chance_s = max(0.0, usual.last_s(len(equal)) - usual.last_s(LEAST_RANKS))
    last_rank = np.array(equal)[deviations.argmax(axis=1)]
    least_s = (OF_CPUS if facts.on_cpus else ROTATES) * facts.step_s
    paused_s = deviations.max(axis=1) - lower_median(deviations)  # of two ranks the median is half way
    pauses = paused_s >= min(PAUSE * facts.step_s, max(CLEAR * least_s, PAUSE_SDS * usual.sd_s))
    in_each = float(np.median(behind)) - by_chance_s >= least_s
    causes, cause_evidence = _causes(facts, behind if in_each else np.where(pauses, behind, 0.0), last_rank, pauses)
    few = not in_each and bool(causes)  # what is recorded is no accident
    in_turn = pauses.sum() >= (MIN_RANKS if few else MIN_POINTS) and np.unique(last_rank[pauses]).size >= MIN_RANKS
    if not in_each and not (in_turn and float(paused_s[pauses].sum()) >= least_s * behind.size):
        return []
    varies = usual.last_s(LEAST_RANKS) >= least_s
    spread = {name: float(_deviations(window.per_step(name))[ordinary].std()) for name in phases if name in window.work}
    where = max(spread, key=lambda name: spread[name])
    without: Removal = partial(undisturbed, phases=phases, usual=usual, keeps_jitter=not varies)
    if are_single(deviations) and not paced_ranks(window).any():  # where hosts pace, the price is an upper bound
        without = partial(undelayed, phases=phases)
    shown_s = paused_s if len(equal) == MIN_RANKS else behind
    often = _in_each(shown_s) if in_each else _in_turn(paused_s[pauses], last_rank[pauses], behind.size)
    regular = "" if in_each or causes else _regularly(own_s[:, equal], equal, _rows(ordinary, pauses), window.steps)
    remedy = joined("; ", *(_against(cause, facts.start) for cause in causes)) or _quiet(facts)
    return [
        Candidate(
            rule="rotating-imbalance",
            kind="rest",
            title=f"{often}{regular}, most of it {WHERE[where]}"
            + "".join(f"{', and' if place else ':'} {CAUSES[cause]}" for place, cause in enumerate(causes)),
            remedy=NOW_AND_THEN if regular else remedy,
            evidence=(*_evidence(shown_s, usual, last_rank, facts), *cause_evidence),
            without=without,
            bounds=_bounds(window, without, phases, is_work=bool(in_each) and not causes),
            rare=_rows(ordinary, pauses) + 2 * window.odd_kinds if few or regular else None,
        )
    ]


def _is_waited_for(facts: Facts, behind_s: Floats, ordinary: Bools) -> bool:
    """Whether others wait for most of what the last rank of ``ordinary`` steps is ``behind_s``, (steps,).

    Ranks that meet in few steps only may each be late in turn in between, and arrive together.
    """
    if facts.blame is None:
        return True
    others = (facts.window.ranks - 1) / facts.window.ranks
    return float(facts.blame.delay_s[ordinary].mean()) >= WAITED * others * float(behind_s.mean())


def _rows(ordinary: Bools, chosen: Bools) -> Bools:
    """Those of all steps that are ``chosen`` among the ``ordinary`` ones."""
    steps = np.zeros_like(ordinary)
    steps[np.flatnonzero(ordinary)[chosen]] = True
    return steps


def _causes(
    facts: Facts, lost_s: Floats, last_rank: NDArray[np.intp], pauses: Bools
) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """What ranks recorded of their stalls, where it explains ``lost_s``.

    All are of ordinary steps, and ``pauses`` are the steps of which one rank is late by far. As of all ranks at once in
    ``common-stall``, but of the last rank of each step.
    """
    ordinary = ~facts.window.odd
    recorded = {cause: paused_s[ordinary, last_rank] for cause, paused_s in facts.stalls.seconds.items()}
    covered = explained_shares(lost_s, recorded)
    if covered:
        evidence = (share(f"the part of it in which {CAUSES[one]}", part, facts.span) for one, part in covered.items())
        return tuple(covered), tuple(evidence)
    held = np.zeros((ordinary.size, facts.window.ranks), dtype=np.bool_)
    held[np.flatnonzero(ordinary)[pauses], last_rank[pauses]] = True
    return of_files(facts, held)


def _against(cause: str, start: Start) -> Action:
    """As against stalls of all ranks; what each rank does in its own time is done by all at once."""
    return COLLECT_TOGETHER if cause == COLLECTION else against(cause, start)


def _bounds(
    window: Window, without: Removal, phases: tuple[str, ...], *, is_work: bool
) -> tuple[Removal, Removal] | None:
    """From when on the gain is certain; ``is_work``: what varies may be work, which is not gone where it is equal.

    Where all ranks vary, only the last one of each step may be delayed, among ranks that vary anyhow.
    """
    if paced_ranks(window).any():
        return as_recorded, without
    least = partial(undelayed, phases=phases) if window.ranks >= LEAST_TO_COMPARE else partial(without)
    return (partial(shared_out, phases=phases), least) if is_work else None


def _quiet(facts: Facts) -> Action:
    """Equal work, and ranks that nothing disturbs."""
    collected = Action() if facts.start.starter == "train" else program("gc.freeze()")
    own = own_cores(facts.start, facts.machine), exclusive(facts.start), within("", collected, " after the first epoch")
    return sentence(
        "give samples equal work (sort by length, pad), and ranks a quiet machine", within(": ", joined(", ", *own))
    )


def _in_each(behind_s: Floats) -> str:
    """By how much the last rank of each step is late, (steps,)."""
    return f"A different rank is late in each step, by {show_time(float(behind_s.mean()))}"


def _in_turn(paused_s: Floats, last_rank: NDArray[np.intp], steps: int) -> str:
    """In which of ``steps`` steps a rank is late, by how much, and which one; both (pauses,).

    >>> _in_turn(np.full(9, 0.4), np.array([0] * 8 + [1]), 175)
    'Ranks pause: in 9 of 175 steps one of them, mostly rank 0, is late, by 400 ms'
    >>> _in_turn(np.full(9, 0.4), np.array([0] * 5 + [1] * 4), 175)
    'Ranks pause in turn: in 9 of 175 steps one of them is late, by 400 ms'
    >>> _in_turn(np.array([0.34, 0.01, 0.01]), np.array([1, 0, 0]), 175)
    'Ranks pause: in 3 of 175 steps one of them, mostly rank 1, is late, by 120 ms'
    """
    often, by = f"in {paused_s.size:,} of {steps:,} steps one of them", show_time(float(paused_s.mean()))
    by_rank_s = np.bincount(last_rank, weights=paused_s)
    if by_rank_s.max() > MOSTLY * paused_s.sum():
        return f"Ranks pause: {often}, mostly rank {int(by_rank_s.argmax())}, is late, by {by}"
    return f"Ranks pause in turn: {often} is late, by {by}"


def _regularly(own_s: Floats, ranks: list[int], pauses: Bools, steps: NDArray[np.int64]) -> str:
    """Which of ``ranks`` pause every how many steps, for a title; "" where these are not most of the ``pauses``.

    ``own_s`` (steps, ranks) is the work of these ranks, ``pauses`` (steps,) says in which of ``steps`` one does.
    """
    regular, intervals = regular_pauses(own_s)
    if (regular.any(axis=1) & pauses).sum() < MOSTLY * pauses.sum():
        return ""
    of_interval: dict[int, list[int]] = {}
    for place, every in intervals.items():
        first = int(np.flatnonzero(regular[:, place])[0])
        of_interval.setdefault(int(steps[first + every] - steps[first]), []).append(ranks[place])
    return ": " + ", ".join(f"{named_ranks(each)} every {every:,} steps" for every, each in of_interval.items())


def _evidence(behind_s: Floats, usual: Jitter, last_rank: NDArray[np.intp], facts: Facts) -> Iterator[Evidence]:
    """How late the last rank of each step is, (steps,), and of many equal ranks is expected to be."""
    other = "other" if len(_equal_ranks(facts)) == MIN_RANKS else "median"
    what = f"lateness of the last rank of a step against the {other} rank"
    yield seconds(what, mean_interval(behind_s), facts.span)
    yield seconds("the same in the median step", float(np.median(behind_s)), facts.span)
    if usual.symmetric and usual.sd_s > 0:
        ranks = len(_equal_ranks(facts))
        what = f"lateness of the last of {ranks:,} equal ranks that is expected of the jitter of most steps"
        yield seconds(what, usual.last_s(ranks), facts.span)
    what = f"ranks that were last in at least one of {behind_s.size:,} steps"
    yield count(what, np.unique(last_rank).size, facts.span)


def undisturbed(window: Window, phases: tuple[str, ...], usual: Jitter, *, keeps_jitter: bool) -> Window:
    """Every rank deviates from its own usual step as little as an undisturbed rank does in that step.

    That is below the least deviation of N ranks: where delays have a lower end, it lies below the least of them by
    about the distance to the next one (Robson & Whitlock 1964, Biometrika 51; for exponential delays (N−1)/N of that).
    Where deviations are symmetric, it is their middle, above the least of them by what is expected of N ranks, or with
    ``keeps_jitter`` the expected largest, as far above.
    """
    work_s = per_step(window, phases)
    usual_s = np.median(work_s, axis=0)
    deviation_s = np.sort(work_s - usual_s, axis=1)
    least_s = deviation_s[:, :1]
    if window.ranks > MIN_RANKS:  # of two, the deviation of one mirrors that of the other
        apart_s = (deviation_s[:, 1:2] - least_s) * (window.ranks - 1) / window.ranks
        least_s = least_s - (1 - usual.symmetric) * apart_s
    least_s = least_s + (2 if keeps_jitter else 1) * usual.symmetric * usual.last_s(window.ranks)
    target_s = np.minimum(np.maximum(usual_s + least_s, work_s.min(axis=0, initial=np.inf)), work_s)
    return shortened_by_step(window, _kept(window, phases, work_s - target_s))


def undelayed(window: Window, phases: tuple[str, ...]) -> Window:
    """The one rank that is delayed in a step deviates from its usual step as the other ranks do; these stay."""
    work_s = per_step(window, phases)
    deviations_s = _deviations(work_s)
    return shortened_by_step(window, _kept(window, phases, deviations_s - without_delays(deviations_s)))


def _kept(window: Window, phases: tuple[str, ...], gone_s: Floats) -> dict[str, Floats]:
    """Phase → the share of it that is left without ``gone_s`` (steps, ranks), by what each is above its least."""
    each_s = {name: window.per_step(name) for name in phases if name in window.work}
    more_s = {name: seconds - seconds.min(axis=0, initial=np.inf) for name, seconds in each_s.items()}
    total_s = sum(more_s.values(), start=np.zeros_like(gone_s))
    part = np.divide(gone_s, total_s, out=np.zeros_like(gone_s), where=total_s > 0)
    left_s = {name: np.maximum(seconds - part * more_s[name], 0.0) for name, seconds in each_s.items()}
    return {
        name: np.divide(left_s[name], seconds, out=np.ones_like(seconds), where=seconds > 0)
        for name, seconds in each_s.items()
    }


def _deviations(work_s: Floats) -> Floats:
    """By how much each step of each rank exceeds its median step, shape (steps, ranks)."""
    deviations: Floats = work_s - np.median(work_s, axis=0)
    return deviations


def _equal_ranks(facts: Facts) -> list[int]:
    """Ranks that do not stand out."""
    out = facts.late.computing | facts.late.loading
    return [rank for rank in range(facts.window.ranks) if rank not in out]
