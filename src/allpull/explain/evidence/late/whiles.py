"""Whiles in which ranks are late: how many are at a time, and from when to when several last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def at_once(whiles: Iterable[slice], steps: int) -> int:
    """The most of ``whiles`` that are in one of ``steps`` steps."""
    number = np.zeros(steps, dtype=np.intp)
    for rows in whiles:
        number[rows] += 1
    return int(number.max(initial=0))


def has_room(taken: NDArray[np.intp], rows: slice | None, *, most: int) -> bool:
    """Whether one more rank may be late in ``rows``, None: all; if so it is one of those ``taken`` in them, (steps,).

    ``taken``: how many ranks are late in each step; at ``most`` so many may be.
    """
    there = taken[slice(None) if rows is None else rows]
    has_room = int(there.max()) < most
    there += has_room
    return has_room


def hull(whiles: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """From the first row of any of ``whiles`` to the last; None: one of them is no while, as its rank always is late.

    >>> hull([(3, 9), (5, 20)]), hull([(3, 9), None])
    ((3, 20), None)
    """
    rows = [one for one in whiles if one is not None]
    return (min(first for first, _ in rows), max(last for _, last in rows)) if len(rows) == len(whiles) else None
