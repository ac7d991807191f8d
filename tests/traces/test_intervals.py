"""Sets of moments: what holds for sets holds for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from allpull.traces.intervals import NONE, Stretches, of, union

LAST = 40
pairs = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)), max_size=12)


def moments(stretches: Stretches) -> set[int]:
    return {t for begin, end in zip(stretches.begin, stretches.end, strict=True) for t in range(begin, end)}


def as_set(stretches: list[tuple[int, int]]) -> set[int]:
    return {t for begin, end in stretches for t in range(begin, end)}


@given(pairs, pairs)
def test_they_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = of(one), of(other)
    assert moments(a) == as_set(one)
    assert moments(a | b) == as_set(one) | as_set(other)
    assert moments(a & b) == as_set(one) & as_set(other)
    assert moments(a - b) == as_set(one) - as_set(other)
    assert a.total_ns == len(as_set(one))


@given(pairs, pairs)
def test_they_are_in_order_and_do_not_touch(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    for found in (of(one), of(one) | of(other), of(one) & of(other), of(one) - of(other)):
        assert (found.end > found.begin).all()
        assert (found.begin[1:] > found.end[:-1]).all()


@given(pairs, st.integers(-2, LAST + 2), st.integers(-2, LAST + 2))
def test_a_part_of_them(one: list[tuple[int, int]], begin: int, end: int) -> None:
    assert moments(of(one).within(begin, end)) == as_set(one) & set(range(begin, end))


@given(pairs, st.integers(-2, LAST + 2))
def test_what_is_at_a_moment_and_before_it(one: list[tuple[int, int]], t: int) -> None:
    found = of(one)
    assert found.covers(t) == bool(found.cover(np.array([t]))[0]) == (t in as_set(one))
    ends = [int(end) for end in found.end if end <= t]
    assert found.last_end_before(t) == max(ends, default=None)


def test_of_many_it_is_quick() -> None:
    begin = np.arange(200_000, dtype=np.int64) * 10
    many = union(begin, begin + 3)
    assert many.total_ns == 600_000
    assert (many - union(begin + 1, begin + 2)).total_ns == 400_000
    assert not (NONE & many)
