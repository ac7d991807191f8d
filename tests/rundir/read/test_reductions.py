"""Reductions come back one a row, exactly; odd ones are damage, on the fast path and on the slow one alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import reductions
from allpull.rundir.read import steps as records
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts
from allpull.schema.steps import StepRecord

MakeRun = Callable[..., Path]
STEP = {"step": 3, "epoch": 0, "begin_ns": 300, "end_ns": 400}
ONE = [0, 310, 330, 1, 2, 3, 20, 0, 315, 325]
"""Network 0, backward from 310 to 330, spent, and two buckets."""
TWO = [1, 340, 360, 1, 2, 9, 40, 5, 355]


def put(path: Path, line: int, value: Any) -> None:
    """Give one line (from 1, as errors count) this list of reductions."""
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), "reductions": value})
    path.write_text("\n".join(lines) + "\n")


def test_reductions_are_rows_in_their_order(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(1), 4, [ONE, TWO])
    put(root / layout.steps_file(1), 5, [])
    put(root / layout.steps_file(0), 3, None)
    run = read_run(root)
    assert dict(run.reductions.schema) == reductions.SCHEMA
    assert run.reductions.rows() == [
        (1, 2, 0, *ONE[:8], 325, [315, 325]),
        (1, 2, 1, *TWO[:8], 355, [355]),
    ]
    assert run.gaps == ()


def test_runs_of_before_have_an_empty_table() -> None:
    run = read_run(Path(__file__).resolve().parents[2] / "runs" / "v1.3")
    assert dict(run.reductions.schema) == reductions.SCHEMA
    assert run.reductions.is_empty()


def test_the_type_of_a_record_has_the_field_and_may_lack_it() -> None:
    assert StepRecord.model_validate({**STEP, "reductions": [ONE, TWO]}, strict=True).reductions == [ONE, TWO]
    assert StepRecord.model_validate(STEP, strict=True).reductions is None


ODD = [
    (7, "reductions is 7, expected a list"),
    ({"a": 1}, "expected a list of at most 4,096 reductions"),
    ([7], r"reductions\[0\] is 7, expected network, begin_ns, done_ns"),
    ([ONE, ONE[:8]], r"reductions\[1\] is .*, expected network"),
    ([[*ONE[:8], *range(4097)]], "up to 4,096 moments"),
    ([[None, *ONE[1:]]], r"reductions\[0\] has network None, expected a whole number"),
    ([[True, *ONE[1:]]], "has network True"),
    ([[-1, *ONE[1:]]], "has network -1, expected 0 to"),
    ([[0, 310, 330, 1, 2, -3, 20, 0, 325]], "has forward_ns -3, expected 0 to"),
    ([[*ONE[:8], 2.5]], "has ready_ns 2.5, expected a whole number"),
    ([[*ONE[:8], 2**62 + 1]], "has ready_ns 4611686018427387905, expected -4611686018427387904"),
    ([[*ONE[:8], 325, 315]], r"reductions\[0\] has a bucket that was ready before an earlier one"),
    ([ONE] * 4097, "at most 4,096"),
]


@pytest.mark.parametrize(("value", "says"), ODD, ids=[repr(value)[:24] for value, _ in ODD])
def test_an_odd_reduction_is_damage_of_its_line(make_run: MakeRun, value: Any, says: str) -> None:
    root = make_run()
    put(root / layout.steps_file(1), 6, value)
    with pytest.raises(RunDirError, match=rf"steps/rank-00001\.jsonl, line 6: .*(?:{says})") as caught:
        read_run(root)
    assert len(caught.value.message) < 600
    run = read_run(root, skip_damaged=True)
    assert run.reductions.is_empty()
    assert "rank 1: 1 damaged step record left out" in texts(run.gaps)


numbers = st.integers(-2, 6) | st.sampled_from([2**62, 2**62 + 1, None, True, 1.5])
one = st.lists(numbers, min_size=7, max_size=11) | st.lists(st.integers(0, 9), min_size=8, max_size=11).map(sorted)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(value=st.lists(one, max_size=3) | st.sampled_from([None, True, 1.5, "1", [], {}, [[[1]]]]))
def test_the_columnar_path_takes_what_the_line_by_line_path_takes(value: Any) -> None:
    line = (json.dumps({**STEP, "reductions": value}) + "\n").encode()
    try:
        reductions.check(value)
    except ValueError:
        assert records._columns({0: line}) is None
    else:
        read = records._columns({0: line})
        assert read is not None
        assert [row[-1] for row in read.reduced.rows()] == [entry[8:] for entry in value or []]
