"""Phases that a program named come back by step and name; odd ones are damage of their line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import named_phases
from allpull.rundir.read.run import read_run

MakeRun = Callable[..., Path]


def put(path: Path, line: int, value: Any) -> None:
    """Change the field of one line (from 1, as errors count)."""
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), "named": value})
    path.write_text("\n".join(lines) + "\n")


def test_named_phases_are_rows(make_run: MakeRun) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(0), 3, {"augment": 5, 'a "named":': 2**62})
    put(root / layout.steps_file(1), 5, {})
    run = read_run(root)
    assert dict(run.named.schema) == named_phases.SCHEMA
    assert run.named.rows() == [(0, 1, "augment", 5), (0, 1, 'a "named":', 2**62)]


def test_rollouts_and_their_environments_are_part_of_forward(make_run: MakeRun) -> None:
    root = make_run(ranks=1, steps=3)
    before = read_run(root).steps["forward_ns"].to_list()
    put(root / layout.steps_file(0), 3, {"rollout": 5, "environment": 2, "augment": 11})
    run = read_run(root)
    assert run.steps["forward_ns"].to_list() == [before[0], before[1] + 7, before[2]]
    assert run.named.height == 3


def test_a_run_without_any_has_an_empty_table(make_run: MakeRun) -> None:
    assert dict(read_run(make_run()).named.schema) == named_phases.SCHEMA


TIMES = (-1, None, True, 1.5, 2**62 + 1)
ODD = [[], "augment", 3, *({"augment": time} for time in TIMES)]


@pytest.mark.parametrize("value", [*ODD, {str(number): 1 for number in range(named_phases.MAX_NAMES + 1)}])
def test_odd_ones_are_damage_that_names_the_line(make_run: MakeRun, value: Any) -> None:
    root = make_run(ranks=2, steps=4)
    put(root / layout.steps_file(1), 4, value)
    with pytest.raises(RunDirError, match=r"rank-00001.*line 4.*named"):
        read_run(root)
    assert read_run(root, skip_damaged=True).named.is_empty()
