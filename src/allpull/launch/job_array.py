"""Slurm job arrays: one training several times; the indices, and what differs from run to run. Pure.

The run of index i has the seed ``train.seed`` + i, and a run directory of its own in the array's directory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from allpull.errors import BadInput
from allpull.schema.spec import RunSpec

MAX_TASKS = 1000  # Slurm's own limit (MaxArraySize) is 1001 unless a site changes it
MAX_SEED = 2**32  # as ``schema.spec`` bounds it

_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([1-9][0-9]{0,6}))?)?")


def indices(array: str) -> tuple[int, ...]:
    """The indices that ``array`` names, in order, as sbatch reads it: ``%`` bounds how many run at once.

    >>> indices("0-4%2"), indices("8,1-7:3"), indices("")
    ((0, 1, 2, 3, 4), (1, 4, 7, 8), ())

    Raises:
        BadInput: it does not parse, or names too many indices.
    """
    parts, percent, at_once = array.partition("%")
    matches = [_PART.fullmatch(part) for part in parts.split(",")] if array else []
    if None in matches or (percent and not re.fullmatch("[1-9][0-9]{0,6}", at_once)):
        raise BadInput(f"slurm.array = {array!r}: no list of indices", hint="write 0-4, 0-4%2 (two at a time) or 1,3,7")
    chosen: set[int] = set()
    for first, last, step in (match.groups() for match in matches if match):
        part = range(int(first), int(last or first) + 1, int(step or 1))
        if not part:
            raise BadInput(f"slurm.array = {array!r}: {first}-{last} runs backwards", hint=f"write {last}-{first}")
        if len(chosen) + len(part) > MAX_TASKS:
            raise BadInput(f"slurm.array = {array!r}: more than {MAX_TASKS} runs", hint="make several arrays of it")
        chosen.update(part)
    return tuple(sorted(chosen))


def task_spec(spec: RunSpec, index: int) -> RunSpec:
    """The specification of the run of ``index``.

    Raises:
        BadInput: its seed would be too large.
    """
    seed = spec.train.seed + index
    if seed >= MAX_SEED:
        raise BadInput(
            f"slurm.array: run {index} would have seed {seed}", hint=f"take a train.seed below {MAX_SEED - index}"
        )
    return replace(spec, train=replace(spec.train, seed=seed))


def folder(directory: Path, index: str) -> str:
    """The run directory of ``index``, below the directory of its array; ``index`` may be a shell expression.

    >>> folder(Path("/runs/20261120T120000Z_digits_n2_1a2b3c4d"), "3")
    '20261120T120000Z_digits_n2_1a2b3c4d_3'
    """
    return f"{directory.name}_{index}"
