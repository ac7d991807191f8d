"""A different rank is late in each step, and the others wait for it.

What it is
    No rank is slow, but in every step some rank is: the work of samples differs, the machine disturbs its ranks in
    turn, garbage is collected, a shared file system stalls. The more ranks there are, the more likely it is that one of
    them is delayed in any step, so this cost grows with the job.

How it is found
    By how much each rank deviates from its own usual step. In at least half of the steps the last rank must be behind
    the median rank by 3 % of a step, and by 6 % where CPUs compute, whose own jitter is 1.5 to 3 %. Or ranks pause in
    turn: in at least eight steps some rank is behind by a quarter of a step, not always the same one, and these pauses
    add up to that share of the time. Fewer pauses, however long, do not count. Where ranks wait for CPUs, that makes
    them late in turn, and is `cpu-contention`; what goes with the size of their batches is `uneven-batches`. Ranks
    record how long Python collects garbage: if that covers half of the lateness, the title names it.

What it costs
    The replay in which every rank deviates from its usual step as little as an undisturbed rank, estimated from the
    fastest ranks of that step, after persistently slow ranks are corrected.

What to do
    Give samples equal work (sort by length, pad to buckets), keep the machine quiet (`--set launch.bind=cores`,
    `sbatch --exclusive`, `export OMP_NUM_THREADS=…`), collect garbage in all ranks at the same step (`gc.freeze()`, and
    `gc.collect()` every N steps).

When it is wrong
    Any two equal ranks are last in turn; with two ranks only the deviation of one from the other can be seen.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, count, seconds, share
from allpull.explain.evidence.batch_work import batch_work
from allpull.explain.evidence.cpu_waiting import COMPUTING, all_wait, held_up, per_step
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loader import common_input
from allpull.explain.evidence.outliers import mean_interval
from allpull.explain.evidence.stalls import COLLECTION, explained_shares
from allpull.explain.remedy_text import WHERE
from allpull.replay.whatif.work import shortened_by_step
from allpull.replay.window import Bools, Window
from allpull.units import show_time

OF_CPUS = 0.06  # where CPUs compute, whose jitter is 1.5 to 3 % in healthy runs (benchmarks/real_faults.py)
ROTATES = 0.03  # of a step, in the median step: below it, jitter of any machine looks the same
PAUSE = 0.25  # of a step: longer than any jitter
MIN_RANKS = 2
COLLECT_TOGETHER = (
    "collect garbage at the same step on all ranks: gc.disable(), and gc.collect() every N steps; gc.freeze() after "
    "the first steps makes collections short"
)
QUIET = (
    "give samples equal work (sort by length, pad), and ranks a quiet machine: --set launch.bind=cores, sbatch "
    "--exclusive, gc.freeze() after the first epoch"
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
    own_s = per_step(window, phases) - (0.0 if held_s is None else held_s)
    work = batch_work(window, facts.machine)
    own_s = own_s if work is None else own_s - work.excess_s
    deviations = _deviations(own_s)[ordinary][:, equal]
    behind = deviations.max(axis=1) - np.median(deviations, axis=1)
    last_rank = np.array(equal)[deviations.argmax(axis=1)]
    least_s = (OF_CPUS if facts.on_cpus else ROTATES) * facts.step_s
    pauses = behind >= PAUSE * facts.step_s
    in_each = float(np.median(behind)) >= least_s
    in_turn = pauses.sum() >= MIN_POINTS and np.unique(last_rank[pauses]).size >= MIN_RANKS
    if not in_each and not (in_turn and float(behind[pauses].sum()) >= least_s * behind.size):
        return []
    last = np.bincount(last_rank, minlength=window.ranks)
    spread = {name: float(_deviations(window.per_step(name))[ordinary].std()) for name in phases if name in window.work}
    where = max(spread, key=lambda name: spread[name])
    size = mean_interval(behind)
    collected_s = facts.stalls.seconds.get(COLLECTION, np.zeros((window.steps.size, window.ranks)))
    covered = explained_shares(behind, {COLLECTION: collected_s[ordinary, last_rank]})
    collects = tuple(share("the part of it in garbage collection", part, facts.span) for part in covered.values())
    return [
        Candidate(
            rule="rotating-imbalance",
            kind="rest",
            title=f"{_often(behind, pauses, in_each=in_each)}, most of it {WHERE[where]}"
            + (": Python collects garbage" if collects else ""),
            remedy=COLLECT_TOGETHER if collects else QUIET,
            options=() if collects else ("launch.bind",),
            evidence=(
                seconds("lateness of the last rank of a step against the median rank", size, facts.span),
                seconds("the same in the median step", float(np.median(behind)), facts.span),
                count(
                    f"ranks that were last in at least one of {int(ordinary.sum()):,} steps",
                    int((last > 0).sum()),
                    facts.span,
                ),
                *collects,
            ),
            without=partial(undisturbed, phases=phases),
        )
    ]


def _often(behind_s: Floats, pauses: Bools, *, in_each: bool) -> str:
    """In which steps a rank is late, and by how much; both (steps,)."""
    if in_each:
        return f"A different rank is late in each step, by {show_time(float(behind_s.mean()))}"
    often = f"{int(pauses.sum()):,} of {pauses.size:,} steps"
    return f"Ranks pause in turn: in {often} one of them is late, by {show_time(float(behind_s[pauses].mean()))}"


def undisturbed(window: Window, phases: tuple[str, ...]) -> Window:
    """Every rank deviates from its own usual step as little as an undisturbed rank does in that step.

    That is below the least deviation of N ranks: where delays have a lower end, it lies below the least of them by
    about the distance to the next one (Robson & Whitlock 1964, Biometrika 51; for exponential delays (N−1)/N of that).
    """
    work_s = per_step(window, phases)
    usual_s = np.median(work_s, axis=0)
    deviation_s = np.sort(work_s - usual_s, axis=1)
    least_s = deviation_s[:, :1]
    if window.ranks > MIN_RANKS:  # of two, the deviation of one mirrors that of the other
        least_s = least_s - (deviation_s[:, 1:2] - least_s) * (window.ranks - 1) / window.ranks
    target_s = np.minimum(np.maximum(usual_s + least_s, work_s.min(axis=0, initial=np.inf)), work_s)
    kept = np.divide(target_s, work_s, out=np.ones_like(work_s), where=work_s > 0)
    return shortened_by_step(window, dict.fromkeys(phases, kept))


def _deviations(work_s: Floats) -> Floats:
    """By how much each step of each rank exceeds its median step, shape (steps, ranks)."""
    deviations: Floats = work_s - np.median(work_s, axis=0)
    return deviations


def _equal_ranks(facts: Facts) -> list[int]:
    """Ranks that do not stand out."""
    out = facts.late.computing | facts.late.loading
    return [rank for rank in range(facts.window.ranks) if rank not in out]
