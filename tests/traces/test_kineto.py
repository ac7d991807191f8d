"""Collectives in real traces: sizes as the traces state them, pairs as their launches do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from allpull.traces import classify
from allpull.traces.collectives import executions
from allpull.traces.kineto import read_window
from allpull.traces.trace import Trace

REAL = Path(__file__).parent / "real"
FILES = sorted(path.name for path in REAL.glob("*.json.gz"))


def read(name: str) -> Trace:
    return read_window(REAL, name, 1 << 30)


def events(name: str) -> list[dict[str, Any]]:
    with gzip.open(REAL / name) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def types(event: dict[str, Any]) -> set[str]:
    """Types of the numbers that a collective sends, as its metadata name them."""
    arguments = event.get("args", {})
    inputs = arguments.get("Input type", [])[:1]
    return {name for name in (arguments.get("dtype"), *inputs) if name and name != "TensorList"}


@pytest.mark.parametrize("name", FILES)
def test_every_type_of_a_real_collective_has_a_size(name: str) -> None:
    """Among them Long, int, signed and unsigned char, which only one of two former tables knew."""
    marks = ("c10d::", "record_param_comms", "nccl:", "nccl")
    named = {kind for event in events(name) if event["name"].startswith(marks) for kind in types(event)}
    assert {kind for kind in named if classify.item_bytes(kind) is None} == set()
    assert len(named) >= {"nccl_data.json.gz": 3, "sampled_rank-0.json.gz": 4}.get(name, 0)


def test_broadcast_integers_are_sized_by_their_own_type() -> None:
    """Batch norm's counters are int64 (Long, 8 bytes), its statistics float32."""
    sizes = {
        (queued.dtype, run.item_bytes)
        for queued, run in executions(read("nccl_data.json.gz"))
        if queued and run and queued.family == "broadcast"
    }
    assert sizes == {("int64", 8), ("float32", 4)}


def test_a_list_of_tensors_without_dimensions_has_the_size_of_what_nccl_sends() -> None:
    """``c10d::allreduce_`` of a TensorList says ``[]``: that is no scalar of one number."""
    name = "sampled_rank-0.json.gz"
    sent = sorted(event["args"]["Input Dims"][0][0] for event in events(name) if event["name"] == "nccl:all_reduce")
    reductions = [queued for queued, _ in executions(read(name)) if queued and queued.family == "all_reduce"]
    assert sorted(op.elements or 0 for op in reductions) == sent
    assert min(sent) == 5_716_654
    assert {op.item_bytes for op in reductions} == {4}


def test_a_window_is_read_up_to_its_limit(tmp_path: Path) -> None:
    whole = read("nccl_data.json.gz")
    assert (whole.fault, whole.strange) == (None, 0)
    part = read_window(REAL, "nccl_data.json.gz", 2 << 20)
    assert part.fault == "too large to read in full"
    assert 0 < part.events < whole.events
    missing = str(read_window(tmp_path, "nothing.json.gz", 1 << 20).fault)
    assert "does not exist" in missing
    assert str(tmp_path) not in missing  # reports show it, and go to other people
