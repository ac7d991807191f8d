"""How fast the workers of each rank make batches, as they timed it themselves: known also where nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.rundir.read.run import RunData
from allpull.schema.events import LoaderWork
from allpull.units import NS_PER_S

USUAL_AHEAD = 2  # batches per worker: torch's default
UNEVEN = 1.25  # times the mean of a rank's workers: one that is so much slower holds up the others, in its turn
ENOUGH = 20  # batches of a worker, for its own mean


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderPace:
    """``workers`` of each rank make a batch in ``batch_s`` (ranks,), and all of a rank those of a step in ``step_s``.

    ``ahead``: how many steps before it is needed a batch is begun, at most.
    """

    workers: int
    batch_s: Floats
    step_s: Floats
    ahead: int


def loader_pace(run: RunData, steps: NDArray[np.int64]) -> LoaderPace | None:
    """The pace of workers during ``steps``; None: that of a rank is not known, or ranks have different loaders."""
    rows = []
    for rank in range(run.record.ranks):
        log = run.events.get(rank)
        work = () if log is None else log.loaders
        row = _of_rank([one for one in work if one.first_step <= steps[-1] and one.step > steps[0]])
        if row is None:
            return None
        rows.append(row)
    if not rows or len({workers for workers, *_ in rows}) > 1:
        return None
    return LoaderPace(
        workers=rows[0][0],
        batch_s=np.array([batch_s for _, batch_s, _, _ in rows]),
        step_s=np.array([step_s for _, _, step_s, _ in rows]),
        ahead=min(ahead for *_, ahead in rows),
    )


def _of_rank(work: Sequence[LoaderWork]) -> tuple[int, float, float, int] | None:
    """Workers, s per batch and per step, and steps ahead; None: not known, or from several loaders at once."""
    counts = {len(one.batches) for one in work} | {len(one.making_ns) for one in work}
    if len(counts) != 1 or any(_overlap(one, other) for one, other in pairwise(work)):
        return None
    (workers,) = counts
    batches = np.array([one.batches for one in work]).sum(axis=0)
    making_s = np.array([one.making_ns for one in work]).sum(axis=0) / NS_PER_S
    steps = work[-1].step - work[0].first_step
    if not (batches.sum() > 0 and making_s.sum() > 0 and steps > 0):
        return None
    batch_s = float(making_s.sum() / batches.sum())
    if batches.min() >= ENOUGH and (making_s / batches).max() > UNEVEN * batch_s:
        batch_s = float((making_s / batches).max())  # batches are taken from workers in turn
    per_step = batches.sum() / steps
    of_worker = max((one.ahead or USUAL_AHEAD) for one in work)
    return workers, batch_s, float(batch_s * per_step / workers), max(1, round(workers * of_worker / per_step))


def _overlap(one: LoaderWork, later: LoaderWork) -> bool:
    """Whether two loaders were used at once; the next one begins in the step that ends the one before."""
    return later.first_step < one.step - 1
