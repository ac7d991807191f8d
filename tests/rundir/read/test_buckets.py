"""Moments of buckets come back in lists, exactly; odd ones are damage, on the fast path and on the slow one alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.bucket_moments import each_bucket

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import buckets
from allpull.rundir.read import steps as records
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts
from allpull.schema.steps import StepRecord

MakeRun = Callable[..., Path]
BASE_NS, STEP_NS = 1_700_000_000_000_000_001, 100_000_000  # as ``make_run`` writes them
STEP = {"step": 3, "epoch": 0, "begin_ns": BASE_NS + 3 * STEP_NS, "end_ns": BASE_NS + 4 * STEP_NS}


def put(path: Path, line: int, **fields: Any) -> None:
    """Change fields of one line (from 1, as errors count)."""
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **fields})
    path.write_text("\n".join(lines) + "\n")


def test_moments_are_in_their_order_to_the_nanosecond(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(0), 2, ready_ns=[BASE_NS + 7])  # buckets were not told apart yet
    put(root / layout.steps_file(0), 4, ready_ns=[BASE_NS + 1, BASE_NS + 1, BASE_NS + 5])
    put(root / layout.steps_file(1), 5, ready_ns=[-3, BASE_NS])
    put(root / layout.steps_file(1), 4, ready_ns=[])
    put(root / layout.steps_file(1), 3, ready_ns=None)
    run = read_run(root)
    assert dict(run.ready.schema) == buckets.SCHEMA
    assert run.ready.rows() == [
        (0, 0, [BASE_NS + 7]),
        (0, 2, [BASE_NS + 1, BASE_NS + 1, BASE_NS + 5]),
        (1, 3, [-3, BASE_NS]),
    ]
    assert each_bucket(run.ready).rows() == [
        (0, 0, 0, BASE_NS + 7),
        (0, 2, 0, BASE_NS + 1),
        (0, 2, 1, BASE_NS + 1),
        (0, 2, 2, BASE_NS + 5),
        (1, 3, 0, -3),
        (1, 3, 1, BASE_NS),
    ]
    assert run.steps.height == 8
    assert run.gaps == ()


def test_runs_of_before_have_an_empty_table(make_run: MakeRun) -> None:
    kept = Path(__file__).resolve().parents[2] / "runs"
    for root in (make_run(), kept / "v1.0", kept / "v1.1"):
        run = read_run(root)
        assert dict(run.ready.schema) == buckets.SCHEMA
        assert run.ready.is_empty()
        assert run.steps.height


def test_the_type_of_a_record_has_the_field_and_may_lack_it() -> None:
    assert StepRecord.model_validate({**STEP, "ready_ns": [1, 2]}, strict=True).ready_ns == [1, 2]
    assert StepRecord.model_validate(STEP, strict=True).ready_ns is None


ODD = [
    (7, r"ready_ns is 7, expected a list of whole numbers"),
    ("x" * 900, "ready_ns is 'x{39}, expected a list"),
    ({"a": 1}, "expected a list of whole numbers"),
    (True, "ready_ns is True, expected a list"),
    ([1, True], r"ready_ns\[1\] is True, expected a whole number"),
    ([0.5], r"ready_ns\[0\] is 0.5, expected a whole number"),
    ([1e3], "expected a whole number"),
    (["1"], r"ready_ns\[0\] is '1', expected a whole number"),
    ([None], r"ready_ns\[0\] is None, expected a whole number"),
    ([5, None], "expected a whole number"),
    ([[1]], "expected a whole number"),
    ([[[[[[1]]]]]], "expected a whole number"),
    ([3, 2], r"ready_ns\[1\] is 2, before that of the bucket before, 3"),
    ([1, 5, 4], r"ready_ns\[2\] is 4, before"),
    ([2**62 + 1], "expected -4611686018427387904 to 4611686018427387904"),
    ([-(2**62) - 1], "expected -4611686018427387904"),
    ([2**64], "more than 64 bits hold|not JSON"),
    ([0] * 4097, "4,097 moments, expected 4,096 at most"),
]


@pytest.mark.parametrize(("value", "says"), ODD, ids=[repr(value)[:20] for value, _ in ODD])
def test_an_odd_moment_is_damage_of_its_line(make_run: MakeRun, value: Any, says: str) -> None:
    root = make_run()
    put(root / layout.steps_file(1), 6, ready_ns=value)
    with pytest.raises(RunDirError, match=rf"steps/rank-00001\.jsonl, line 6: .*(?:{says})") as caught:
        read_run(root)
    assert len(caught.value.message) < 600
    run = read_run(root, skip_damaged=True)
    assert run.steps.height == 19
    assert run.ready.is_empty()
    assert "rank 1: 1 damaged step record left out" in texts(run.gaps)


numbers = st.integers(-2, 6) | st.sampled_from([2**62, 2**62 + 1, -(2**62)])
odd_things = st.sampled_from([None, True, 1.5, "1", [], {}, [1]])
fields = st.lists(numbers, max_size=4).map(sorted) | st.lists(numbers | odd_things, max_size=4) | odd_things


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=fields)
def test_the_columnar_path_takes_what_the_line_by_line_path_takes(value: Any) -> None:
    line = (json.dumps({**STEP, "ready_ns": value}) + "\n").encode()
    try:
        buckets.check(value)
    except ValueError:
        assert records._columns({0: line}) is None
    else:
        read = records._columns({0: line})
        assert read is not None
        assert read.ready.rows() == ([(0, 3, value)] if value else [])


def test_steps_with_many_buckets_stay_on_the_fast_path(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run(ranks=1)
    put(root / layout.steps_file(0), 5, ready_ns=list(range(buckets.MAX_BUCKETS)))
    monkeypatch.setattr(records, "_sift", None)
    assert read_run(root).ready["ready_ns"].to_list() == [list(range(buckets.MAX_BUCKETS))]


def test_a_million_moments_read(make_run: MakeRun) -> None:
    root = make_run(ranks=1, steps=1)
    steps = pl.int_range(125_000, eager=True)
    frame = pl.DataFrame(
        {"step": steps, "epoch": steps // 1000, "begin_ns": steps * 10**8, "end_ns": (steps + 1) * 10**8}
    ).with_columns(ready_ns=pl.concat_list(pl.col("begin_ns") + 10**6 * bucket for bucket in range(8)))
    path = root / layout.steps_file(0)
    header = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**header, "budget": 1 << 30}) + "\n" + frame.write_ndjson())
    found = each_bucket(read_run(root).ready)
    assert found.height == 1_000_000
    assert found["bucket"].max() == 7
    assert found["ready_ns"].max() == 124_999 * 10**8 + 7 * 10**6
