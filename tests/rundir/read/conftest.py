"""A small sound run directory, to be damaged by each test in its own way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.rundir import layout
from allpull.schema.base import tag

STEP_NS = 100_000_000
BASE_NS = 1_700_000_000_000_000_001  # no float64 holds it exactly


def run_json(ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": tag("run"),
        "id": "20260101T000000Z_made_n2_0",
        "name": "made",
        "kind": "train",
        "created_utc": "2026-01-01T00:00:00Z",
        "status": "completed",
        "command": ["allpull", "train", "digits"],
        "spec": {"model": {"name": "resnet8"}},
        "launcher": "local",
        "ranks": ranks,
        "hosts": ["here"],
        "versions": {"torch": "2.4"},
        **changes,
    }


def steps_header(rank: int, ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": tag("steps"),
        "rank": rank,
        "local_rank": rank,
        "ranks": ranks,
        "host": "here",
        "boot_id": "boot",
        "pid": 100 + rank,
        "clock": {"monotonic_ns": 0, "realtime_ns": 0},
        "boundary": "marks.step",
        "budget": 1 << 20,
        **changes,
    }


def step(number: int, **changes: Any) -> dict[str, Any]:
    begin = BASE_NS + number * STEP_NS
    tags = ["warmup"] if number == 0 else []
    times = {"begin_ns": begin, "end_ns": begin + STEP_NS, "forward_ns": 30, "copy_ns": None}
    return {"step": number, "epoch": 0, **times, "samples": 64, "tags": tags, **changes}


def write_lines(path: Path, values: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run(ranks, steps)`` writes a sound run; changes to run.json follow as keywords."""

    def make(ranks: int = 2, steps: int = 10, **changes: Any) -> Path:
        root = tmp_path / "run"
        root.mkdir()
        (root / "run.json").write_text(json.dumps(run_json(ranks, **changes)))
        for rank in range(ranks):
            write_lines(
                root / layout.steps_file(rank), [steps_header(rank, ranks), *(step(number) for number in range(steps))]
            )
            header = {"schema": tag("events"), "rank": rank, "host": "here", "budget": 1 << 20}
            metric = {"kind": "metric", "name": "test_top1", "value": 0.5, "step": 9, "epoch": 0, "t_ns": 5}
            write_lines(root / layout.events_file(rank), [header, metric, {"kind": "end", "steps": steps, "t_ns": 9}])
        host = {"schema": tag("host"), "host": "here", "os": "Linux", "kernel": "6", "fingerprint": "f"}
        write_lines(root / layout.host_file("here"), [{**host, "cpu": {"architecture": "x86_64"}}])
        clock = {"monotonic_ns": 0, "realtime_ns": 0}
        header = {"schema": tag("counters"), "host": "here", "clock": clock, "interval_ns": 10**9}
        sample = {"ranks": {str(rank): {"processes": 1, "read_bytes": 7} for rank in range(ranks)}}
        write_lines(root / layout.counters_file("here"), [header, {"t_ns": 1, **sample}, {"t_ns": 2, **sample}])
        return root

    return make
