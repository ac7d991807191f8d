"""Windows made of nothing but numbers: say what each rank does in a step, and what is planted in it.

    window(ranks=4, steps=20, forward=0.01, backward=0.02 + late(4, 20, rank=3, by_s=0.04), bucket_s=[0.002, 0.004])

Every quantity is a number or an array that broadcasts to (steps, ranks), so faults are added like numbers: ``late``,
``rotating``, ``jitter`` and ``only`` make such arrays. What the ranks "recorded", ``wall_s`` and ``measured_s``, comes
from the event-driven simulation of ``oracle``, or from ``recorded_s``: never from the engine under test.

A step is: evaluation, checkpoint, [calls "begin"], input, copy, [calls "forward"], forward, backward, host, [the
reduction], optimizer, other, [calls "end"], [the end of the step].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from tests.replay.oracle import simulate

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import CALL, REDUCE, STEP, WORK, Reductions, Window

BEFORE = {
    "begin": ("evaluation", "checkpoint"),
    "forward": ("input", "copy"),
    "reduce": ("forward", "backward", "host"),
    "end": ("optimizer", "other"),
}
"""What is done on the way to each place of a step, in the order of a step."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective that the program calls in ``steps`` (None: all): a barrier or all-reduce, or with ``root`` a
    broadcast. ``transfer_s`` and ``early_s`` broadcast to (steps, ranks)."""

    use: str
    at: Literal["begin", "forward", "end"] = "forward"
    transfer_s: ArrayLike = 0.0
    early_s: ArrayLike = 0.0
    root: int | None = None
    steps: Sequence[int] | None = None


def window(
    ranks: int = 4,
    steps: int = 20,
    *,
    bucket_s: ArrayLike = 0.0,
    lead_s: ArrayLike | None = None,
    tail_s: ArrayLike = 0.0,
    sizes: Sequence[int] | None = None,
    calls: Sequence[Call] = (),
    reduces: bool = True,
    begin_s: ArrayLike = 0.0,
    samples: ArrayLike = 32.0,
    odd: ArrayLike | None = None,
    bound_s: float = 0.0,
    recorded_s: ArrayLike | None = None,
    **work: ArrayLike,
) -> Window:
    """A window of ``steps`` steps of ``ranks`` ranks.

    Args:
        ranks: how many.
        steps: how many.
        bucket_s: what each bucket takes; one number, (buckets,) or (steps, buckets). One number: one bucket.
        lead_s: (buckets,), (buckets, ranks) or (steps, buckets, ranks): how long before its arrival a rank has each
            bucket ready. None: buckets become ready in even parts of the rank's backward.
        tail_s: what each rank takes from the end of the last bucket until it goes on.
        sizes: bytes of the buckets; None: in proportion to ``bucket_s``, 1 GB/s, where that is the same in all steps.
        calls: collectives of the program.
        reduces: whether gradients are reduced.
        begin_s: when each rank begins, (ranks,).
        samples: of each step and rank.
        odd: (steps,); None: the steps with an evaluation or a checkpoint.
        bound_s: how wrong moments of two ranks compare.
        recorded_s: ends of steps to take as the recorded ones; None: what the oracle says, which takes its time.
        work: seconds of each phase of ``replay.window.WORK``; with none: forward 10 ms, backward 20, optimizer 2.
    """
    assert set(work) <= set(WORK), set(work) - set(WORK)
    done = {name: grid(value, steps, ranks) for name, value in (work or _USUAL).items()}
    places = _places(steps, calls, reduces=reduces)
    kind = np.array([CALL if isinstance(place, Call) else _KIND[place] for _, place in places], dtype=np.int8)
    step_of = np.array([step for step, _ in places], dtype=np.intp)
    uses = tuple(dict.fromkeys(call.use for call in calls))
    made = Window(
        steps=np.arange(100, 100 + steps, dtype=np.int64),
        odd=_odd(done, steps) if odd is None else np.broadcast_to(np.asarray(odd, dtype=np.bool_), (steps,)).copy(),
        samples=grid(samples, steps, ranks),
        begin_s=np.broadcast_to(np.asarray(begin_s, dtype=np.float64), (ranks,)).copy(),
        wall_s=np.zeros((steps, ranks)),
        kind=kind,
        step_of=step_of,
        use=np.array([uses.index(one.use) if isinstance(one, Call) else -1 for _, one in places], dtype=np.intp),
        uses=uses,
        work=_laid_out(done, places, ranks),
        **_meetings(places, steps, ranks),
        reductions=_reductions(bucket_s, lead_s, tail_s, sizes, done, steps, ranks) if reduces else None,
        measured_s=0.0,
        level="bucket" if reduces and np.size(bucket_s) > 1 else "step",
        bound_s=bound_s,
    )
    return recorded(made, simulate(made) if recorded_s is None else grid(recorded_s, steps, ranks))


def recorded(made: Window, end_s: Floats) -> Window:
    """``made`` as if ``end_s`` (steps, ranks) had been recorded for the ends of its steps."""

    wall_s = np.diff(end_s, axis=0, prepend=made.begin_s[None, :])
    return replace(made, wall_s=wall_s, measured_s=float(end_s[-1].max()) if end_s.size else 0.0)


def grid(value: ArrayLike, steps: int, ranks: int) -> Floats:
    """``value`` as an array of its own, shape (steps, ranks)."""
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (steps, ranks)).copy()


def late(ranks: int, steps: int, *, rank: int, by_s: float, every: int = 1) -> Floats:
    """``by_s`` more on ``rank``, in every step or every so many."""
    more = np.zeros((steps, ranks))
    more[::every, rank] = by_s
    return more


def rotating(ranks: int, steps: int, *, by_s: float) -> Floats:
    """``by_s`` more on another rank in each step, in turn."""
    more = np.zeros((steps, ranks))
    more[np.arange(steps), np.arange(steps) % ranks] = by_s
    return more


def only(ranks: int, steps: int, *, seconds: float, rank: int | None = None, every: int = 1, first: int = 0) -> Floats:
    """``seconds`` in every so many steps, on one rank (None: on all): an evaluation or a checkpoint."""
    more = np.zeros((steps, ranks))
    more[first::every, slice(None) if rank is None else rank] = seconds
    return more


def jitter(ranks: int, steps: int, *, sd_s: float, seed: int = 0, shared: bool = False) -> Floats:
    """|Gaussian| noise of ``sd_s``, each rank's own or ``shared`` by all."""
    drawn = np.abs(np.random.default_rng(seed).normal(0.0, sd_s, (steps, 1 if shared else ranks)))
    return grid(drawn, steps, ranks)


def anything(seed: int, *, steps: int | None = None) -> Window:
    """A window of up to 6 steps, or so many, in which everything happens that can: for what must hold of all."""
    rng = np.random.default_rng(seed)
    ranks, drawn, buckets = (int(most) for most in rng.integers(1, (6, 7, 5)))
    steps = steps or drawn
    shape = (steps, ranks)

    def now_and_then(most_s: float) -> Floats:
        return rng.uniform(0, most_s, shape) * (rng.random(shape) < rng.random())

    phases = {name: now_and_then(0.03) for name in WORK if rng.random() < 0.8}
    phases["backward"] = backward = rng.uniform(0.001, 0.03, shape)
    if rng.random() < 0.5:  # all of them score the model
        phases["evaluation"] = only(ranks, steps, seconds=0.05, every=2) * rng.uniform(0.9, 1.1, shape)
    shares = np.sort(rng.random((steps, buckets, ranks)), axis=1)[:, ::-1].copy()
    shares[:, -1] = 0.0
    calls = [
        Call(use="all_reduce", at="begin", transfer_s=now_and_then(0.004), steps=list(range(0, steps, 2))),
        Call(use="broadcast", transfer_s=now_and_then(0.004), root=int(rng.integers(ranks))),
        Call(use="barrier", at="end", early_s=now_and_then(1.0) * phases.get("optimizer", np.zeros(shape))),
    ]
    return window(
        ranks,
        steps,
        bucket_s=rng.uniform(0, 0.02, (steps, buckets)) * (rng.random((steps, buckets)) < 0.8),
        lead_s=shares * backward[:, None, :],
        tail_s=now_and_then(0.003),
        sizes=rng.integers(1, 10**8, buckets).tolist(),
        calls=[call for call in calls if rng.random() < 0.5],
        reduces=bool(rng.random() < 0.9),
        begin_s=rng.uniform(0, 0.01, ranks) * (np.arange(ranks) > 0),
        samples=rng.integers(1, 64, shape),
        **phases,
    )


def relabelled(one: Window, order: Sequence[int]) -> Window:
    """``one`` with rank ``order[r]`` called r."""
    by = list(order)
    lane = one.reductions
    return replace(
        one,
        samples=one.samples[:, by],
        begin_s=one.begin_s[by],
        wall_s=one.wall_s[:, by],
        work={name: seconds[:, by] for name, seconds in one.work.items()},
        meets=one.meets[:, by],
        waits=one.waits[:, by],
        early_s=one.early_s[:, by],
        transfer_s=one.transfer_s[:, by],
        reductions=None if lane is None else replace(lane, lead_s=lane.lead_s[:, :, by], tail_s=lane.tail_s[:, by]),
    )


def stretched(one: Window, factor: float) -> Window:
    """``one`` with all its times ``factor`` times as long."""
    lane = one.reductions
    if lane is not None:
        times = (lane.lead_s * factor, lane.seconds * factor, lane.tail_s * factor)
        lane = replace(lane, lead_s=times[0], seconds=times[1], tail_s=times[2])
    return replace(
        one,
        begin_s=one.begin_s * factor,
        wall_s=one.wall_s * factor,
        work={name: seconds * factor for name, seconds in one.work.items()},
        early_s=one.early_s * factor,
        transfer_s=one.transfer_s * factor,
        reductions=lane,
        measured_s=one.measured_s * factor,
        bound_s=one.bound_s * factor,
    )


_USUAL = {"forward": 0.010, "backward": 0.020, "optimizer": 0.002}
_KIND = {"reduce": REDUCE, "step": STEP}
_Place = tuple[int, "str | Call"]


def _places(steps: int, calls: Sequence[Call], *, reduces: bool) -> list[_Place]:
    """The events in their order: (step, what)."""
    places: list[_Place] = []
    for step in range(steps):
        for at in ("begin", "forward", "reduce", "end"):
            if at == "reduce" and reduces:
                places.append((step, "reduce"))
            places += [(step, call) for call in calls if call.at == at and (call.steps is None or step in call.steps)]
        places.append((step, "step"))
    return places


def _laid_out(done: dict[str, Floats], places: Sequence[_Place], ranks: int) -> dict[str, Floats]:
    """Each phase at the first event after it."""
    order = list(BEFORE)
    work = {name: np.zeros((len(places), ranks)) for name in WORK if name in done}
    for name, seconds in done.items():
        stage = next(place for place, names in enumerate(BEFORE.values()) if name in names)
        waiting = set(range(len(seconds)))
        for event, (step, place) in enumerate(places):
            at = place.at if isinstance(place, Call) else place
            if step in waiting and (at == "step" or order.index(at) >= stage):
                work[name][event] = seconds[step]
                waiting.discard(step)
    return work


def _meetings(places: Sequence[_Place], steps: int, ranks: int) -> dict[str, np.ndarray]:
    shape = (len(places), ranks)
    meets, waits = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    early_s, transfer_s = np.zeros(shape), np.zeros(shape)
    for event, (step, call) in enumerate(places):
        if isinstance(call, Call):
            meets[event] = True if call.root is None else np.arange(ranks) == call.root
            waits[event] = True if call.root is None else np.arange(ranks) != call.root
            early_s[event] = grid(call.early_s, steps, ranks)[step]
            transfer_s[event] = grid(call.transfer_s, steps, ranks)[step]
    return {"meets": meets, "waits": waits, "early_s": early_s, "transfer_s": transfer_s}


def _reductions(
    bucket_s: ArrayLike,
    lead_s: ArrayLike | None,
    tail_s: ArrayLike,
    sizes: Sequence[int] | None,
    done: dict[str, Floats],
    steps: int,
    ranks: int,
) -> Reductions:
    each = np.atleast_1d(np.asarray(bucket_s, dtype=np.float64))
    buckets = each.shape[-1]
    if lead_s is None:
        left = (buckets - 1 - np.arange(buckets)) / buckets
        lead = left[None, :, None] * done.get("backward", np.zeros((steps, ranks)))[:, None, :]
    else:
        given = np.asarray(lead_s, dtype=np.float64)
        lead = given[:, None] if given.ndim == 1 else given
    if sizes is None and each.ndim == 1 and each.all():
        sizes = [round(seconds * 1e9) for seconds in each]
    return Reductions(
        lead_s=np.broadcast_to(lead, (steps, buckets, ranks)).copy(),
        seconds=np.broadcast_to(each, (steps, buckets)).copy(),
        tail_s=grid(tail_s, steps, ranks),
        size_bytes=None if sizes is None else np.asarray(sizes, dtype=np.int64),
    )


def _odd(done: dict[str, Floats], steps: int) -> np.ndarray:
    odd = np.zeros(steps, dtype=np.bool_)
    for name in ("evaluation", "checkpoint"):
        if name in done:
            odd |= done[name].any(axis=1)
    return odd
