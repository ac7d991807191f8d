"""What is said of steps that nobody wanted to see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts

MakeRun = Callable[..., Path]


def keep(root: Path, kept: range, steps: int, *switches: tuple[bool, int], first: int = 0) -> None:
    """Keep the records of ``kept``, of ``steps`` that were made from ``first`` on, and say of the switches."""
    path = root / layout.steps_file(0)
    header, line = path.read_text().splitlines()[:2]
    made = [{**json.loads(line), "step": at, "begin_ns": at * 10, "end_ns": at * 10 + 9} for at in kept]
    path.write_text("\n".join([header, *map(json.dumps, made)]) + "\n")
    events = root / layout.events_file(0)
    epoch = {"kind": "epoch", "epoch": 0, "step": first, "t_ns": 1}
    told = [{"kind": "watching", "on": on, "step": at, "t_ns": at} for on, at in switches]
    end: dict[str, Any] = {"kind": "end", "steps": steps, "t_ns": 99}
    lines = [events.read_text().splitlines()[0], *map(json.dumps, [epoch, *told, end])]
    events.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("kept", "switches", "first", "off"),
    [
        (range(20, 40), ((True, 20), (False, 40)), 0, 168),  # --steps 20:40 of 188
        (range(20, 188), ((True, 20),), 0, 20),
        (range(40), ((False, 40),), 0, 148),
        (range(120, 140), ((True, 120), (False, 140)), 100, 168),  # of a training that went on from step 100
        (range(188), (), 0, 0),
    ],
)
def test_steps_before_and_after_those_that_were_asked_for_are_counted(
    make_run: MakeRun, kept: range, switches: tuple[tuple[bool, int], ...], first: int, off: int
) -> None:
    root = make_run(ranks=1)
    keep(root, kept, 188, *switches, first=first)
    says = (f"rank 0: observation was switched off for {off} steps",) if off else ()
    assert texts(read_run(root).gaps) == list(says)


@pytest.mark.parametrize("field", [{"no_counters": "no psutil"}, {"sources": ["psutil", "no counters: no psutil"]}])
def test_why_a_host_has_no_counters_is_read_from_its_field_or_from_old_sources(
    make_run: MakeRun, field: dict[str, Any]
) -> None:
    root = make_run(ranks=1)
    path = root / layout.counters_file("here")
    header, *samples = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(header), **field}), *samples]) + "\n")
    assert texts(read_run(root).gaps) == ["no counters of host here: no psutil"]
