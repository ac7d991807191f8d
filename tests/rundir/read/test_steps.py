"""Files of step records read together give what each gives alone, and what its lines give one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rundir.read.conftest import BASE_NS, STEP_NS, step, steps_header, write_lines

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import steps as reader
from allpull.rundir.read.run import RunData, read_run


class MakeRun(Protocol):
    def __call__(self, *, ranks: int = 2, steps: int = 10) -> Path: ...


TABLES = ("steps", "collectives", "ready", "reductions", "named")


def call(begin: int) -> list[int | None]:
    return [0, 1, begin, 5, begin + 5]


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sound records of one rank, with any of the fields that a step may have."""
    numbers = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
    found = []
    for number in numbers:
        begin = BASE_NS + number * STEP_NS
        lists = {
            "collectives": [call(begin + place) for place in range(draw(st.integers(0, 3)))],
            "ready_ns": [begin + place for place in range(draw(st.integers(0, 3)))],
            "reductions": [[0, begin, begin + 9, 1, 2, 3, 4, 5, begin + 7] for _ in range(draw(st.integers(0, 2)))],
            "named": draw(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)),
            "tags": draw(st.lists(st.sampled_from(["warmup", "evaluation", "new to us", "{}", "\n"]), max_size=2)),
            "later": draw(st.sampled_from([None, 1, "x", {"a": [1]}])),
            "queued_ns": draw(st.none() | st.integers(0, 10**9)),
        }
        kept = draw(st.sets(st.sampled_from(sorted(lists))))
        found.append({**step(number), **{name: lists[name] for name in kept}})
    return found


def write(root: Path, files: list[list[dict[str, Any]]]) -> None:
    for rank, lines in enumerate(files):
        write_lines(root / layout.steps_file(rank), [steps_header(rank, len(files)), *lines])


def equal(one: RunData, other: RunData) -> bool:
    same = (getattr(one, name).equals(getattr(other, name)) for name in TABLES)
    kinds = (getattr(one, name).schema == getattr(other, name).schema for name in TABLES)
    return all(same) and all(kinds) and one.gaps == other.gaps and one.headers == other.headers


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(records(), min_size=3, max_size=3))
def test_files_read_together_alone_and_line_by_line_are_equal(
    make_run: MakeRun, tmp_path: Path, files: list[list[dict[str, Any]]]
) -> None:
    root = tmp_path / "run"
    if not root.exists():
        make_run(ranks=3)
    write(root, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_sift", None)
        together = read_run(root)
        patch.setattr(reader, "_BATCH_BYTES", 1)
        alone = read_run(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_is_shallow", lambda body: False)
        by_line = read_run(root)
    assert equal(together, alone)
    assert equal(together, by_line)
    assert together.steps["step"].to_list() == [line["step"] for lines in files for line in lines]
    assert together.steps.height == sum(map(len, files))


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps(step(1)) + json.dumps(step(2)), ""],
        [json.dumps(step(1)), "{}"],
        [json.dumps(step(1)) + " {}", json.dumps(step(2))],
        [json.dumps(step(1)), json.dumps(step(1))],
        [json.dumps(step(1)), "null"],
    ],
)
def test_a_file_whose_rows_are_not_its_lines_is_damaged_and_moves_no_row_to_another_rank(
    make_run: MakeRun, lines: list[str]
) -> None:
    root = make_run(ranks=3)
    path = root / layout.steps_file(1)
    path.write_text("\n".join([json.dumps(steps_header(1, 3)), *lines]) + "\n")
    with pytest.raises(RunDirError, match=r"rank-00001\.jsonl, line [23]"):
        read_run(root)
    run = read_run(root, skip_damaged=True)
    whole = read_run(make_run_again(root))
    for rank in (0, 2):
        assert run.steps.filter(pl.col("rank") == rank).equals(whole.steps.filter(pl.col("rank") == rank))


def make_run_again(root: Path) -> Path:
    """``root`` with a sound file of rank 1."""
    write_lines(root / layout.steps_file(1), [steps_header(1, 3), *map(step, range(10))])
    return root
