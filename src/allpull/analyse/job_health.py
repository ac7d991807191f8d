"""Assess a running job from one snapshot: ranks that are dead, hung or slow.

A rank hangs if no rank has made progress and it is not in the collective that the others wait in: they wait for it.
A rank is slow if its own work, a step without its waiting, takes longer than that of the others by more than noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allpull.rundir.live.snapshot import JobSnapshot, RankSnapshot, StepSnapshot
from allpull.schema.base import tag
from allpull.schema.results import RankWatched, Trouble, WatchResult
from allpull.schema.run import UNENDED

STILL_S = 5.0  # without progress for this long, and for ten of its steps, a job may hang
STILL_STEPS = 10
STILL_FIRST_S = 60.0  # before a step time is known and while no rank waits: first steps compile or read cold data
STILL_PAUSE_S = 300.0  # in an evaluation or checkpoint, which take long while other ranks wait
PAUSES = ("evaluation", "checkpoint")
SLOW_SHARE = 0.1  # of a step, from which a rank is called slow
SLOW_SPREADS = 3.0  # times the median absolute deviation of steps
LEAST_STEPS = 5


@dataclass(frozen=True, slots=True)
class _Pace:
    """The last steady steps of a rank, medians in seconds."""

    step_s: float
    own_s: float
    spread_s: float


def assess(job: JobSnapshot) -> WatchResult:
    """The state of ``job`` in numbers and in words, as of this snapshot."""
    paces = {rank.rank: pace for rank in job.ranks if (pace := _pace(rank.steps)) is not None}
    step_s = float(np.median([pace.step_s for pace in paces.values()])) if paces else None
    done = min((_steps_done(rank) for rank in job.ranks), default=0)
    total = _total(job)
    running = job.record.status in UNENDED
    goes_on = running and not job.is_over
    fastest_s = min((pace.own_s for pace in paces.values()), default=0.0)
    return WatchResult(
        schema=tag("watch"),
        run=job.record.id,
        status=job.record.status,
        is_over=job.is_over,
        ranks_expected=job.record.ranks,
        steps_done=done,
        steps_total=total,
        epoch=max((rank.steps[-1].epoch for rank in job.ranks if rank.steps), default=None),
        left_s=None if total is None or step_s is None or not goes_on else max(0, total - done) * step_s,
        step_s=step_s,
        samples_per_s=_samples_per_s(job.ranks),
        phases=_phases(job.ranks),
        ranks=[_watched(rank, paces.get(rank.rank), fastest_s) for rank in job.ranks],
        troubles=list(_troubles(job, paces, step_s)) if running else [],
    )


def _pace(steps: Sequence[StepSnapshot]) -> _Pace | None:
    steady = [step for step in steps if not step.is_tagged]
    if len(steady) < LEAST_STEPS:
        return None
    walls = np.array([step.end_ns - step.begin_ns for step in steady]) / 1e9
    own = walls - np.array([step.blocked_ns for step in steady]) / 1e9
    middle = float(np.median(own))
    return _Pace(float(np.median(walls)), middle, float(np.median(np.abs(own - middle))))


def _total(job: JobSnapshot) -> int | None:
    """Steps of the whole training, where it states them."""
    per_epoch = job.metrics.get("steps_per_epoch")
    train = job.record.spec.get("train")
    epochs = train.get("epochs") if isinstance(train, dict) else None
    if job.record.kind != "train" or per_epoch is None or not isinstance(epochs, int):
        return None
    return int(per_epoch) * epochs


def _samples_per_s(ranks: Sequence[RankSnapshot]) -> float | None:
    rates = []
    for rank in ranks:
        counted = [step for step in rank.steps if step.samples is not None]
        span_ns = counted[-1].end_ns - counted[0].begin_ns if counted else 0
        if span_ns <= 0:
            return None
        rates.append(sum(step.samples or 0 for step in counted) * 1e9 / span_ns)
    return sum(rates) if rates else None


def _phases(ranks: Sequence[RankSnapshot]) -> dict[str, float]:
    """Seconds per step of each recorded phase, over the last steady steps of all ranks; they sum to the step."""
    every = [step for rank in ranks for step in rank.steps]
    steps = [step for step in every if not step.is_tagged] or every
    names = dict.fromkeys(name for step in steps for name in step.phases_ns)
    means = {name: sum(step.phases_ns.get(name, 0) for step in steps) / len(steps) / 1e9 for name in names}
    wall_s = sum(step.end_ns - step.begin_ns for step in steps) / len(steps) / 1e9 if steps else 0.0
    other_s = wall_s - sum(means.values())
    return {**means, "other": other_s} if other_s > 0 else means


def _steps_done(rank: RankSnapshot) -> int:
    """Steps that ``rank`` has completed: by its live activity, or by its records, which are up to a second old."""
    recorded = rank.steps[-1].step + 1 if rank.steps else 0
    return recorded if rank.activity is None else max(recorded, rank.activity.step)


def _watched(rank: RankSnapshot, pace: _Pace | None, fastest_s: float) -> RankWatched:
    doing = rank.activity
    for_s = None
    if doing is not None and rank.now_ns is not None and rank.is_observed:
        for_s = max(0.0, (rank.now_ns - doing.since_ns) / 1e9)
    return RankWatched(
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid,
        alive=rank.alive,
        ended=rank.ended,
        steps_done=_steps_done(rank),
        step_s=None if pace is None else pace.step_s,
        own_s=None if pace is None else pace.own_s,
        phase=(None if doing is None else doing.phase) if rank.is_observed else "not observed now",
        operation=None if doing is None or not rank.is_observed else doing.operation,
        phase_for_s=for_s,
        phases=_phases([rank]),
        late_s=None if pace is None else pace.own_s - fastest_s,
    )


def _troubles(job: JobSnapshot, paces: dict[int, _Pace], step_s: float | None) -> Iterator[Trouble]:
    dead = [rank for rank in job.ranks if rank.alive is False and not rank.ended]
    for rank in dead:
        yield _trouble(rank, "dead", f"rank {rank.rank} ({rank.host}, process {rank.pid}) is dead")
    still_s = max(STILL_S, STILL_STEPS * (step_s or 0.0))
    live = [rank for rank in job.ranks if rank not in dead and not rank.ended]
    if not all(rank.is_observed for rank in live):
        return
    if live and all(_still_s(rank) > still_s for rank in live):
        yield from _hung(live, has_dead=bool(dead), has_pace=step_s is not None)
    else:
        yield from _slow(live, paces)


def _still_s(rank: RankSnapshot) -> float:
    """Time since ``rank`` last recorded a step or changed its phase."""
    if rank.activity is None or rank.now_ns is None:
        return rank.idle_s
    return min(rank.idle_s, max(0.0, (rank.now_ns - rank.activity.since_ns) / 1e9))


def _hung(live: Sequence[RankSnapshot], *, has_dead: bool, has_pace: bool) -> Iterator[Trouble]:
    waiting = [rank for rank in live if rank.activity is not None and rank.activity.is_waiting]
    elsewhere = [rank for rank in live if rank.activity is not None and not rank.activity.is_waiting]
    if any(rank.activity.phase in PAUSES and _still_s(rank) <= STILL_PAUSE_S for rank in elsewhere if rank.activity):
        return
    if not waiting and not has_pace and all(_still_s(rank) <= STILL_FIRST_S for rank in live):
        return
    if waiting and elsewhere:
        others = f"{len(waiting)} others wait" if len(waiting) > 1 else "1 other waits"
        for rank in elsewhere:
            yield _trouble(
                rank, "hung", f"rank {rank.rank} ({rank.host}) hangs {_where(rank)}; {others} {_where(waiting[0])}"
            )
    elif waiting and not has_dead and len(live) > 1:
        operations = {rank.activity.operation for rank in waiting if rank.activity is not None}
        place = "in different collectives: their order differs" if len(operations) > 1 else _where(waiting[0])
        yield _trouble(waiting[0], "hung", f"all ranks wait {place}; the network is stuck, or a rank left")
    elif elsewhere:
        for rank in elsewhere:
            yield _trouble(rank, "hung", f"rank {rank.rank} ({rank.host}) makes no progress: it is {_where(rank)}")


def _slow(live: Sequence[RankSnapshot], paces: dict[int, _Pace]) -> Iterator[Trouble]:
    known = [rank for rank in live if rank.rank in paces]
    if len(known) < 2:
        return
    for rank in known:
        pace = paces[rank.rank]
        other_paces = [paces[other.rank] for other in known if other is not rank]
        usual = float(np.median([other.own_s for other in other_paces]))
        spread = max(pace.spread_s, *(other.spread_s for other in other_paces))
        excess = pace.own_s - usual
        if excess > max(SLOW_SHARE * pace.step_s, SLOW_SPREADS * spread):
            phase = _slower_phase(rank, [other for other in known if other is not rank])
            message = (
                f"rank {rank.rank} ({rank.host}) is slow: its own work takes {excess * 1e3:.1f} ms per step longer"
            )
            yield _trouble(rank, "slow", f"{message} than that of the others{phase}")


def _slower_phase(rank: RankSnapshot, peers: Sequence[RankSnapshot]) -> str:
    own, theirs = _phases([rank]), _phases(peers)
    excess = {name: own[name] - theirs.get(name, 0.0) for name in own if name != "collective"}
    name = max(excess, key=lambda phase: excess[phase], default=None)
    return f", most of it in {name}" if name is not None and excess[name] > 0 else ", outside all phases"


def _where(rank: RankSnapshot) -> str:
    doing = rank.activity
    if doing is None:
        return "in an unknown place"
    for_s = "" if rank.now_ns is None else f" for {(rank.now_ns - doing.since_ns) / 1e9:.0f} s"
    if doing.operation is not None:
        return f"in {doing.operation}{for_s}"
    if doing.is_waiting and doing.phase == "backward":
        return f"in the all_reduce of their gradients{for_s}"
    return f"in {doing.phase}{for_s}" if doing.phase else f"between two phases{for_s}"


def _trouble(rank: RankSnapshot, kind: str, message: str) -> Trouble:
    return Trouble.model_validate(
        {"kind": kind, "rank": rank.rank, "host": rank.host, "pid": rank.pid, "words": message}
    )
