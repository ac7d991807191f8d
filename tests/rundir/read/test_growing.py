"""A frame that grew has the rows of its parts, nulls, lists and text among them."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from allpull.rundir.read.growing import GrowingFrame

SCHEMA = {"number": pl.Int64(), "flag": pl.Boolean(), "text": pl.String(), "many": pl.List(pl.Int64())}
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
row = st.tuples(numbers, st.none() | st.booleans(), st.none() | st.text(max_size=3), st.none() | st.lists(numbers))


@given(parts=st.lists(st.lists(row, max_size=6), max_size=6), share=st.floats(1e-6, 1))
def test_a_frame_that_grew_is_its_parts_one_after_the_other(
    parts: list[list[tuple[object, ...]]], share: float
) -> None:
    growing = GrowingFrame(SCHEMA)
    frames = [pl.DataFrame(rows, schema=SCHEMA, orient="row") for rows in parts]
    for frame in frames:
        growing.append(frame, share=share)
    whole = growing.whole()
    assert whole.equals(pl.concat([pl.DataFrame(schema=SCHEMA), *frames]))
    assert dict(whole.schema) == SCHEMA
    assert set(whole.n_chunks("all")) == {1}
