"""Is a student's data-parallel SGD right? Its ranks must walk the path of one rank with the whole batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allpull.errors import BadInput
from allpull.labs import line
from allpull.schema.labs import ProgramCheck, ProgramFault

NEAR = 1e-4  # in slope and offset: single precision stays well below it, a wrong gradient does not
OUTPUT_HINT = 'each rank writes {"path": [[slope, offset], …]}, before each update and after the last: sgd_by_hand.py'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPath:
    """What a rank wrote: ``path`` (updates + 1, 2) and ``gradient`` (updates, 2; or none), by slope and offset."""

    path: line.Floats
    gradient: line.Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the ranks compute: ``batch`` samples per update, over all ``ranks``; a last, smaller batch is left out."""

    points: line.Samples
    batch: int
    ranks: int
    epochs: int
    rate: float
    seed: int

    @property
    def updates_per_epoch(self) -> int:
        """How many whole batches there are."""
        return self.points.x.size // self.batch

    def part(self, update: int, rank: int) -> line.Indices:
        """The samples of ``rank`` in update ``update``, counted from 0."""
        epoch, place = divmod(update, self.updates_per_epoch)
        begin, each = place * self.batch, self.batch // self.ranks
        return line.order(self.points.x.size, self.seed, epoch)[begin + rank * each : begin + (rank + 1) * each]


def read_path(file: Path, task: Task, program: str) -> RankPath:
    """What one rank of ``program`` wrote.

    Raises:
        BadInput: it wrote nothing, or something else.
    """
    updates = task.epochs * task.updates_per_epoch
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        path = np.array(fields["path"], dtype=np.float64)
        gradient = np.array(fields.get("gradient", np.zeros((0, 2))), dtype=np.float64)
    except FileNotFoundError:
        raise BadInput(f"{program} ended without writing {file.name} into its folder OUT", hint=OUTPUT_HINT) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file.name} of {program} cannot be read: {error}", hint=OUTPUT_HINT) from None
    if path.shape != (updates + 1, 2) or not np.isfinite(path).all():
        raise BadInput(
            f"{file.name} of {program} has a path of shape {path.shape}; {updates:,} updates make {(updates + 1, 2)}, "
            "all finite",
            hint=OUTPUT_HINT,
        )
    return RankPath(path=path, gradient=gradient if gradient.shape == (updates, 2) else np.zeros((0, 2)))


def check_program(program: str, task: Task, paths: Sequence[line.Floats]) -> ProgramCheck:
    """Compare ``paths``, one of each rank, with that of one rank that has the whole batch."""
    alone = line.descend(
        task.points, batch=task.batch, epochs=task.epochs, rate=task.rate, seed=task.seed, drop_last=True
    )
    wrong = np.array([np.abs(path - alone).max(axis=1) > NEAR for path in paths])
    if not wrong.any():
        return ProgramCheck(program=program)
    update = int(wrong.any(axis=0).argmax())
    rank = int(np.flatnonzero(wrong[:, update])[-1])  # not rank 0, whose own samples are the first
    if update == 0:
        return ProgramCheck(program=program, update=0, rank=rank, fault="start")
    return ProgramCheck(program=program, update=update, rank=rank, fault=_fault(task, update - 1, rank, paths[rank]))


def _fault(task: Task, update: int, rank: int, path: line.Floats) -> ProgramFault | None:
    """What takes ``path`` from its position before ``update`` to that after it, which are right and wrong."""
    slope, offset = path[update]
    each = [line.gradient(task.points, task.part(update, one), slope, offset) for one in range(task.ranks)]
    candidates: Mapping[ProgramFault, line.Floats] = {
        "own gradient": np.array(each[rank]),
        "sum": np.sum(each, axis=0),
        "same samples": np.array(each[0]),
        "no update": np.zeros(2),
    }
    step = path[update + 1] - path[update]
    for fault, gradient in candidates.items():
        if np.abs(step + task.rate * gradient).max() < NEAR:
            return fault
    return None
