"""Sets of moments as disjoint intervals in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """From ``begin`` to ``end``, int64 in ns, shape (stretches,): ascending, none empty, with gaps between them."""

    begin: Times
    end: Times

    @property
    def total_ns(self) -> int:
        """Their total length."""
        return int((self.end - self.begin).sum())

    def __bool__(self) -> bool:
        return bool(self.begin.size)

    def within(self, begin_ns: int, end_ns: int) -> Stretches:
        """The part of them between two moments, by binary search."""
        first = int(np.searchsorted(self.end, begin_ns, side="right"))
        last = int(np.searchsorted(self.begin, end_ns))
        if first >= last:
            return NONE
        begin, end = self.begin[first:last].copy(), self.end[first:last].copy()
        begin[0], end[-1] = max(begin[0], begin_ns), min(end[-1], end_ns)
        return Stretches(begin, end)

    def covers(self, t_ns: int) -> bool:
        """Whether the moment lies in one of them, its end excluded."""
        return self.begin_of_the_one_at(t_ns) is not None

    def cover(self, t_ns: Times) -> NDArray[np.bool_]:
        """Whether each moment lies in one of them; same shape."""
        if not self:
            return np.zeros(t_ns.shape, dtype=np.bool_)
        place = np.searchsorted(self.begin, t_ns, side="right") - 1
        covered: NDArray[np.bool_] = (place >= 0) & (t_ns < self.end[np.maximum(place, 0)])
        return covered

    def begin_of_the_one_at(self, t_ns: int) -> int | None:
        """When the stretch began in which the moment lies; None: it lies in none."""
        place = int(np.searchsorted(self.begin, t_ns, side="right")) - 1
        return int(self.begin[place]) if place >= 0 and t_ns < int(self.end[place]) else None

    def last_end_before(self, t_ns: int) -> int | None:
        """The end of the last stretch that has ended by then; None: there is none."""
        place = int(np.searchsorted(self.end, t_ns, side="right")) - 1
        return int(self.end[place]) if place >= 0 else None

    def __or__(self, other: Stretches) -> Stretches:
        return union(np.concatenate([self.begin, other.begin]), np.concatenate([self.end, other.end]))

    def __and__(self, other: Stretches) -> Stretches:
        return _where(self, other, inside_other=True)

    def __sub__(self, other: Stretches) -> Stretches:
        return _where(self, other, inside_other=False)


def union(begin: ArrayLike, end: ArrayLike) -> Stretches:
    """The union of intervals in any order; those that end before they begin are empty.

    >>> joined = union([5, 0, 2], [9, 3, 4])
    >>> joined.begin.tolist(), joined.end.tolist()
    ([0, 5], [4, 9])
    """
    begins, ends = np.asarray(begin, dtype=np.int64), np.asarray(end, dtype=np.int64)
    kept = ends > begins
    begins, ends = begins[kept], ends[kept]
    if not begins.size:
        return NONE
    order = np.argsort(begins, kind="stable")
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    is_new = np.ones(begins.size, dtype=np.bool_)
    is_new[1:] = begins[1:] > reached[:-1]
    last = np.append(np.flatnonzero(is_new)[1:] - 1, begins.size - 1)
    return Stretches(begins[is_new], reached[last])


def of(pairs: Iterable[tuple[int, int]]) -> Stretches:
    """As ``union``, of pairs of begin and end."""
    intervals = list(pairs)
    return union([begin for begin, _ in intervals], [end for _, end in intervals])


def _where(one: Stretches, other: Stretches, *, inside_other: bool) -> Stretches:
    """The part of ``one`` inside, or outside, ``other``: between neighbouring edges of either nothing changes."""
    if not one:
        return NONE
    edges = np.sort(np.concatenate([one.begin, one.end, other.begin, other.end]))  # equal edges give an empty stretch
    left, right = edges[:-1], edges[1:]
    kept = one.cover(left) & (other.cover(left) == inside_other)
    return union(left[kept], right[kept])


NONE = Stretches(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""The empty set."""
