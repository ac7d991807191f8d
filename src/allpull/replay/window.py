"""The recorded window as a replay needs it: the work of each rank between events, and how long each event took.

A window is a series of steps that all ranks recorded one after the other, with the evaluations and checkpoints between
them. It is cut into events, the same for all ranks and in one order: the collectives that the program called
(``CALL``), the reduction of gradients in backward (``REDUCE``), and the end of each step (``STEP``). Between two events
a rank works: ``work`` is how long, by phase.

At a call, rank r is at t_r and counts as arrived at a_r = t_r − early_r. With L = max of a_r over the ranks that
``meets``::

    e_r = L + transfer_r          t_r = max(t_r, e_r)     where it ``waits``
    e_r = t_r + transfer_r        t_r = e_r               where it does not (the root of a broadcast, not blocked)

Of calls of one use that follow each other directly, as a program starts them together and waits for one after the
other, each begins on the network when the one before has ended: L is at least e_r of that one.

In a reduction the bucket b of rank r is ready at t_r − lead_br, and buckets follow each other on one lane::

    R_b = max_r (t_r − lead_br)        F_b = max(R_b, F_(b−1)) + seconds_b        t_r = max(t_r, F_last) + tail_r

(the reducer of PyTorch DDP, Li et al. 2020, VLDB 13(12), §4.2; one lane: NCCL's stream, or Gloo's where the link is
the limit). With one bucket that is DESIGN §4, "step level": lead 0, seconds = exposed transfer.

Workers of a loader that is at its limit make batches meanwhile, and no step is fast enough to get one sooner: with W of
them the batch k is there at the earliest, d_k being when the rank has it::

    d_k = max(d_k, d_(k−W) + period_k)

Where workers timed the batches that they made, the batch k is made at m_k, whoever waits for it: those of a step take
``step_s`` for all workers together, one takes ``batch_s``, and it is begun when the batch A steps before was taken::

    m_k = max(m_(k−1) + step_s, d_(k−A) + batch_s)        d_k = max(d_k, m_k)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.schema.gap import Gap

Bools = NDArray[np.bool_]
Kinds = NDArray[np.intp]
"""Of steps: a bit for each kind that they are of, 0 for ordinary ones."""
Level = Literal["step", "bucket"]

WORK = ("evaluation", "checkpoint", "input", "copy", "forward", "backward", "optimizer", "host", "other")
"""Phases of a rank between events, in the order of a step."""

CALL, REDUCE, STEP = 0, 1, 2
"""Kinds of events."""


def following_calls(kind: NDArray[np.int8], use: NDArray[np.intp], present: Bools) -> Bools:
    """Where the event of a rank is a call directly after a call of the same use and the same ranks, (events, ranks).

    ``kind`` and ``use`` (events,) as in ``Window``; ``present`` (events, ranks): who takes part in a call.
    """
    calls = kind == CALL
    if present[calls].all():
        of_all = calls.copy()
        of_all[1:] &= calls[:-1] & (use[1:] == use[:-1])
        of_all[:1] = False
        return np.broadcast_to(of_all[:, None], present.shape)
    its = present | ~calls[:, None]
    latest = np.maximum.accumulate(np.where(its, np.arange(kind.size)[:, None], -1), axis=0)
    before = np.concatenate([np.full_like(latest[:1], -1), latest[:-1]])
    group = np.unique(np.packbits(present, axis=1), axis=0, return_inverse=True)[1].ravel()
    alike = calls[before] & (use[before] == use[:, None]) & (group[before] == group[:, None])
    follows: Bools = present & calls[:, None] & (before >= 0) & alike
    return follows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reductions:
    """The reductions of a window in their order, with equally many buckets.

    ``lead_s`` (reductions, buckets, ranks): how long before the rank's own arrival each bucket was ready, ≥ 0 and 0 for
    the last. ``seconds`` (reductions, buckets): how long each bucket takes from its start to its end once all ranks
    have it ready. ``tail_s`` (reductions, ranks): from the end of the last bucket until the rank goes on.
    ``size_bytes`` (buckets,), None: not known, or not the same in all reductions. ``networks`` (reductions,): which
    networks are reduced, by a number for each set of them; one with fewer buckets has empty ones before its first.
    ``own`` (reductions, ranks): the share of backward before the reduction that is of its own backward pass, None: all;
    the remainder is of passes that do not reduce (``no_sync``).
    """

    lead_s: Floats
    seconds: Floats
    tail_s: Floats
    size_bytes: NDArray[np.int64] | None
    networks: NDArray[np.intp] | None = None
    own: Floats | None = None

    @property
    def buckets(self) -> int:
        """How many buckets a reduction has."""
        return int(self.seconds.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Making:
    """How fast workers make batches, as they timed it: ``batch_s`` and ``step_s`` (ranks,), ``ahead`` = A steps.

    ``fresh`` (steps,): steps for which loaders begin anew, and have made nothing before. ``lead_s`` (ranks,): how long
    before it is taken the first batch of the window is made.
    """

    batch_s: Floats
    step_s: Floats
    ahead: int
    fresh: Bools
    lead_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deliveries:
    """How fast loaders make batches in the background.

    ``workers``: of each rank, whose batches follow each other. ``period_s`` (steps, ranks): how long a worker takes for
    the batch of this step, after the one ``workers`` steps before (after the first begin, where the window has none);
    0: the loader is not at its limit. ``fetches``
    (events,): in the work before which event the batch of a step is fetched. ``input_s`` (events, ranks): how long that
    took as recorded; where it takes another time, somebody asks about the loader itself, and nothing limits it.
    ``making``: None, if workers did not time it.
    """

    workers: int
    period_s: Floats
    fetches: Bools
    input_s: Floats
    making: Making | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The window as arrays; see the head of this file. Times in s, none negative.

    ``steps`` (steps,): step numbers, ascending; consecutive, but for windows of a profiler that were joined. ``odd``
    (steps,): with an evaluation, a checkpoint or the first batch of an epoch in it; ``odd_tags`` (steps,): a bit for
    each of these, None: not told apart. ``samples`` (steps, ranks), NaN for not known. ``begin_s`` (ranks,): when each
    rank begins the window, after the first one to do so. ``wall_s`` (steps, ranks): as recorded.

    ``kind`` (events,), ``step_of`` (events,): row of ``steps``. ``use`` (events,): which of ``uses`` a call is, −1 for
    other events. ``work``: phase → (events, ranks), work since the event before; phases that no rank did are
    absent. ``meets``, ``waits``, ``early_s``, ``transfer_s`` (events, ranks) are of calls, and False or 0
    elsewhere. ``reductions`` go with the ``REDUCE`` events in their order; None: there are none.

    ``queued_s`` (steps, ranks): how long the training thread was runnable and had no CPU; None: not known of all steps.
    ``measured_s``: from the first begin to the last end, as recorded. ``level``: "bucket" where the buckets are known.
    ``bound_s``: how wrong the time between two ranks may be. ``gaps``: what could not be used. ``complete``:
    these are all ranks of the job; otherwise, ranks that were not recorded may have arrived later. ``on_device``: an
    accelerator computes, and the phases are its own. ``paced_s`` (steps, ranks): how much of forward, backward and
    optimizer passed while the host was still issuing them, the most that the device waited for it; ``issued_s`` and
    ``fetched_s`` (steps, ranks): how long the host issued them, and waited for its loader. ``elements`` (steps, ranks):
    of the batches, padding included, NaN for not known. None: not known. ``deliveries``: of loaders at their limit;
    None: a wait for a batch takes as long as recorded, whatever else becomes faster.
    """

    steps: NDArray[np.int64]
    odd: Bools
    samples: Floats
    begin_s: Floats
    wall_s: Floats
    kind: NDArray[np.int8]
    step_of: NDArray[np.intp]
    use: NDArray[np.intp]
    uses: tuple[str, ...]
    work: dict[str, Floats]
    meets: Bools
    waits: Bools
    early_s: Floats
    transfer_s: Floats
    reductions: Reductions | None
    measured_s: float
    level: Level
    bound_s: float
    queued_s: Floats | None = None
    gaps: tuple[Gap, ...] = ()
    complete: bool = True
    on_device: bool = False
    paced_s: Floats | None = None
    issued_s: Floats | None = None
    fetched_s: Floats | None = None
    elements: Floats | None = None
    deliveries: Deliveries | None = None
    odd_tags: Kinds | None = None

    @property
    def odd_kinds(self) -> Kinds:
        """What makes steps odd, (steps,), as far as it is told apart."""
        return self.odd.astype(np.intp) if self.odd_tags is None else self.odd_tags

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return int(self.samples.shape[1])

    @property
    def events(self) -> int:
        """How many events there are."""
        return int(self.kind.size)

    @property
    def follows(self) -> Bools:
        """``following_calls`` of its events, (events, ranks)."""
        return following_calls(self.kind, self.use, self.present)

    @property
    def present(self) -> Bools:
        """Who takes part in each call, (events, ranks)."""
        return self.meets | self.waits

    @property
    def round_of(self) -> NDArray[np.intp]:
        """The round of each step, (steps,): it ends with a step in which ranks meet, as every step of DDP is.

        Between two averages of local SGD it takes several. Where no meeting is recorded, each step is one.
        """
        meeting = (self.kind == REDUCE) | self.meets.any(axis=1)
        ends = np.zeros(self.steps.size, dtype=np.bool_)
        ends[self.step_of[meeting]] = True
        if not ends.any():
            ends[:] = True
        return np.cumsum(ends) - ends

    def per_step(self, name: str) -> Floats:
        """Seconds of phase ``name`` by step and rank, shape (steps, ranks)."""
        return self.sums(self.work[name]) if name in self.work else np.zeros((self.steps.size, self.ranks))

    def sums(self, *values: Floats) -> Floats:
        """Sums over the events of each step and over all ``values`` (events, ranks), shape (steps, ranks).

        As ``np.add.at`` adds them, in half the time: neighbouring steps with equally many events are added together.
        """
        totals = np.zeros((self.steps.size, self.ranks))
        begins = np.flatnonzero(np.diff(self.step_of, prepend=-1))
        if not np.array_equal(self.step_of[begins], np.arange(self.steps.size)):  # some step has no event
            for each in values:
                np.add.at(totals, self.step_of, each)
            return totals
        counts = np.diff(begins, append=self.events)
        edges = [*np.flatnonzero(np.diff(counts, prepend=-1)).tolist(), counts.size]
        for each in values:
            for first, end in pairwise(edges):
                count = int(counts[first])
                rows = each[begins[first] : begins[first] + count * (end - first)].reshape(-1, count, self.ranks)
                for place in range(count):
                    totals[first:end] += rows[:, place]
        return totals
