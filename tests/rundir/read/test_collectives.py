"""Collectives come back call by call, exactly; odd ones are damage, on the fast path and on the slow one alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import collectives
from allpull.rundir.read import steps as records
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts

MakeRun = Callable[..., Path]
BASE_NS, STEP_NS = 1_700_000_000_000_000_001, 100_000_000  # as ``make_run`` writes them
STEP = {"step": 3, "epoch": 0, "begin_ns": BASE_NS + 3 * STEP_NS, "end_ns": BASE_NS + 4 * STEP_NS}


def put(path: Path, line: int, **fields: Any) -> None:
    """Change fields of one line (from 1, as errors count)."""
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **fields})
    path.write_text("\n".join(lines) + "\n")


def call(number: int, seq: int | None = 0, kind: int = 0, *, waits: bool = True) -> list[int | None]:
    begin = BASE_NS + number * STEP_NS
    return [kind, seq, begin, 500 if waits else None, begin + 700 if waits else None]


def test_calls_are_rows_in_their_order_to_the_nanosecond(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(0), 3, collectives=[call(1, 4, 2), call(1, 5, waits=False)], collective_ns=500)
    put(root / layout.steps_file(1), 5, collectives=[call(3, None)], backward_passes=2)
    put(root / layout.steps_file(1), 4, collectives=[])
    run = read_run(root)
    at = BASE_NS + STEP_NS
    assert dict(run.collectives.schema) == collectives.SCHEMA
    assert run.collectives.rows() == [
        (0, 1, 2, 4, at, 500, at + 700),
        (0, 1, 0, 5, at, None, None),
        (1, 3, 0, None, BASE_NS + 3 * STEP_NS, 500, BASE_NS + 3 * STEP_NS + 700),
    ]
    assert run.steps["collective_ns"].drop_nulls().to_list() == [500]
    assert run.steps["backward_passes"].drop_nulls().to_list() == [2]
    assert run.gaps == ()


def test_a_run_without_calls_has_an_empty_table(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert dict(run.collectives.schema) == collectives.SCHEMA
    assert run.collectives.is_empty()


ODD = [
    (7, r"collectives\[0\] is 7, expected a list of calls"),
    ("x" * 900, r"collectives\[0\] is 'x{79}, expected a list of calls"),
    ({"a": 1}, "expected a list of calls"),
    ([1, 2], r"collectives\[0\] is 1, expected a list of kind, seq"),
    ([[]], "expected a list of kind, seq"),
    ([None], "expected a list of kind, seq"),
    ([[0, 0, 0, 0]], "expected a list of kind, seq"),
    ([[0, 0, 0, 0, 0, 0]], "expected a list of kind, seq"),
    ([call(0), [0, 0, 0, True, 0]], r"collectives\[1\] is .*, expected whole numbers"),
    ([[0.5, 0, 0, 0, 0]], "expected whole numbers"),
    ([["0", 0, 0, 0, 0]], "expected whole numbers"),
    ([[[[[0]]], 0, 0, 0, 0]], "expected whole numbers"),
    ([[None, 0, 0, 0, 0]], "its kind or begin is missing"),
    ([[0, 0, None, 0, 0]], "its kind or begin is missing"),
    ([[0, 0, 0, None, 0]], "ended without being blocked"),
    ([[0, 0, 0, 0, None]], "blocked without an end"),
    ([[-1, 0, 0, 0, 0]], "below 0"),
    ([[0, -1, 0, 0, 0]], "below 0"),
    ([[0, 0, 0, -1, 0]], "below 0"),
    ([[0, 0, 5, 0, 4]], "it ends before it begins"),
    ([[0, 0, 2**62 + 1, 0, 2**62 + 2]], "a number is beyond"),
    ([[0, 0, 0, 0, 2**64]], "more than 64 bits hold|not JSON"),
]


@pytest.mark.parametrize(("value", "says"), ODD)
def test_an_odd_call_is_damage_of_its_line(make_run: MakeRun, value: Any, says: str) -> None:
    root = make_run()
    put(root / layout.steps_file(1), 6, collectives=value)
    with pytest.raises(RunDirError, match=rf"steps/rank-00001\.jsonl, line 6: .*(?:{says})") as caught:
        read_run(root)
    assert len(caught.value.message) < 600
    run = read_run(root, skip_damaged=True)
    assert run.steps.height == 19
    assert run.collectives.is_empty()
    assert "rank 1: 1 damaged step record left out" in texts(run.gaps)


numbers = st.none() | st.integers(-2, 6) | st.sampled_from([2**62, 2**62 + 1, -(2**62)])
odd_things = st.sampled_from([True, 1.5, "1", [], {}, [1]])
calls = st.lists(numbers, min_size=5, max_size=5) | st.lists(numbers | odd_things, max_size=6) | odd_things
fields = st.lists(calls, max_size=3) | st.none() | odd_things


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=fields)
def test_the_columnar_path_takes_what_the_line_by_line_path_takes(value: Any) -> None:
    line = (json.dumps({**STEP, "collectives": value}) + "\n").encode()
    try:
        collectives.check(value)
    except ValueError:
        assert records._columns({0: line}) is None
    else:
        read = records._columns({0: line})
        assert read is not None
        assert [list(row[2:]) for row in read.calls.rows()] == (value or [])


def test_steps_with_thousands_of_calls_stay_on_the_fast_path(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_run(ranks=1)
    put(root / layout.steps_file(0), 5, collectives=[call(3, seq) for seq in range(3000)])
    monkeypatch.setattr(records, "_sift", None)
    assert read_run(root).collectives.height == 3000


@pytest.mark.parametrize(
    "deep",
    [
        "[" * 3000 + "]" * 3000,
        "[[]," * 3000 + "1" + "]" * 3000,
        '["]",' * 3000 + "1" + "]" * 3000,  # closing brackets in words do not close anything
        '{"}":' * 3000 + "1" + "}" * 3000,
        "[0,[0,0],[" * 2000 + "]]" * 2000,
    ],
)
def test_flat_calls_do_not_open_a_door_for_deep_ones(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, deep: str
) -> None:
    root = make_run(ranks=1)
    path = root / layout.steps_file(0)
    flat = json.dumps([call(3, seq) for seq in range(200)])
    lines = path.read_text().splitlines()
    lines[4] = json.dumps({**STEP, "later": 0, "collectives": 0})
    lines[4] = lines[4].replace('"later": 0', f'"later": {deep}').replace('"collectives": 0', f'"collectives": {flat}')
    path.write_text("\n".join(lines) + "\n")
    columns, bodies = records._columns, []
    monkeypatch.setattr(records, "_columns", lambda body: bodies.append(body) or columns(body))
    read_run(root, skip_damaged=True)
    assert all(deep.encode() not in body for body in bodies)


@pytest.mark.slow
def test_a_million_calls_read(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=1)
    steps = pl.int_range(125_000, eager=True)
    times = {"begin_ns": steps * 10**8, "end_ns": (steps + 1) * 10**8}
    frame = pl.DataFrame({"step": steps, "epoch": steps // 1000, **times}).with_columns(
        collectives=pl.concat_list(
            pl.concat_list(pl.lit(0), "step", pl.col("begin_ns") + place, pl.lit(5), "end_ns")
            .reshape((-1, 1, 5))
            .arr.to_list()
            for place in range(4)
        )
    )
    body = frame.write_ndjson()
    for rank in range(2):
        path = root / layout.steps_file(rank)
        header = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps({**header, "budget": 1 << 30}) + "\n" + body)
    run = read_run(root)
    assert run.collectives.height == 1_000_000
    assert run.collectives["seq"].max() == 124_999


def rest(root: Path, *calls: list[int | None]) -> None:
    """Collectives of rank 0 after its last step."""
    with (root / layout.events_file(0)).open("a") as file:
        file.write(json.dumps({"kind": "rest", "step": 9, "collectives": list(calls), "t_ns": 5}) + "\n")


def test_collectives_after_the_last_step_are_read_too(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(0), 3, collectives=[call(1, 4, 2)])
    rest(root, [1, 6, 10, 3, 13], [1, 7, 14, None, None])
    calls = read_run(root).collectives
    assert calls["step"].to_list() == [1, 9, 9]
    assert calls["end_ns"].to_list()[1:] == [13, None]


@pytest.mark.parametrize("calls", [[1, 6, 2**70, 3, 13], [1, 6, 10, -3, 13], [1, 6, 10, 3, None]])
def test_odd_collectives_after_the_last_step_are_damage(make_run: MakeRun, calls: list[int | None]) -> None:
    root = make_run(ranks=2, steps=4)
    rest(root, calls)
    with pytest.raises(RunDirError):
        read_run(root)
