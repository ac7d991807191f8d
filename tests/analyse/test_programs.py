"""Which runs are of one program, and what a folder of unlike runs says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import by_program, program, titles
from allpull.api.reporting import scaling_report
from allpull.api.side_by_side import side_by_side
from allpull.rundir.read.run import RunData
from allpull.schema.base import tag
from allpull.schema.run import RunRecord


def record(*command: str, kind: str = "run", contents: str | None = "a" * 64, **changes: Any) -> RunRecord:
    values = {
        "schema": tag("run"),
        "id": "run",
        "name": "made",
        "kind": kind,
        "created_utc": "2026-01-01T00:00:00Z",
        "status": "completed",
        "command": ["allpull", *command],
        "spec": {},
        "launcher": "local",
        "ranks": 1,
        "versions": {},
        "script_sha256": contents,
    }
    return RunRecord.model_validate({**values, **changes})


SMALL = ("run", "-n", "1", "a/train.py", "--hidden", "64", "--batch-size=32")


@pytest.mark.parametrize(
    "other",
    [
        ("run", "-n", "8", "train.py", "--hidden", "64", "--batch-size=32"),
        ("run", "-n", "8", "a/train.py", "--hidden", "64", "--batch-size=4", "--lr", "0.8", "--seed=2"),
        ("run", "--", "torchrun", "--nproc-per-node=8", "a/train.py", "--hidden=64", "--num-workers", "4"),
        ("run", "-n", "8", "a/train.py", "--hidden", "64", "--output-dir", "elsewhere", "--epochs", "3"),
    ],
)
def test_more_ranks_another_batch_or_another_place_are_the_same_program(other: tuple[str, ...]) -> None:
    assert program(record(*SMALL)).is_same(program(record(*other)))


@pytest.mark.parametrize(
    ("other", "contents"),
    [
        (("run", "-n", "8", "a/other.py", "--hidden", "64"), "a" * 64),
        (("run", "-n", "8", "a/train.py", "--hidden", "64"), "b" * 64),
        (("run", "-n", "8", "a/train.py", "--hidden", "128"), "a" * 64),
        (("run", "-n", "8", "a/train.py", "--hidden", "64", "--bf16"), "a" * 64),
        (("run", "-n", "8", "a/train.py", "--hidden", "64", "--data-dir", "elsewhere"), "a" * 64),
        (("run", "-n", "8", "a/train.py", "--hidden", "64", "--model-name-or-path", "big"), "a" * 64),
        (("import", "trace.json"), None),
    ],
)
def test_other_contents_sizes_models_and_data_are_other_programs(other: tuple[str, ...], contents: str) -> None:
    assert not program(record(*SMALL)).is_same(program(record(*other, contents=contents)))


def test_a_recipe_is_its_model_and_data_not_how_they_are_read() -> None:
    digits = {"model": {"name": "resnet8"}, "data": {"name": "digits", "threads": 1}}
    read_by_two = {"model": {"name": "resnet8"}, "data": {"name": "digits", "threads": 2}}
    wide = {"model": {"name": "resnet8", "width": 64}, "data": {"name": "digits", "threads": 1}}
    one, two, other = (
        program(record("train", "digits", kind="train", spec=each)) for each in (digits, read_by_two, wide)
    )
    assert one.is_same(two)
    assert not one.is_same(other)
    assert titles([one, other]) == ["made (model.width not given)", "made (model.width 64)"]
    assert not one.is_same(program(record("rehearse", kind="rehearse", spec=digits)))


def test_a_training_that_was_renamed_is_still_called_after_its_recipe() -> None:
    spec = {"name": "digits", "model": {"name": "resnet8"}}
    assert program(record("train", "digits", kind="train", spec=spec, name="baseline")).name == "digits"


@pytest.fixture
def folder(make_data: Callable[..., RunData], make_records: Callable[..., pl.DataFrame]) -> list[AlignedRun]:
    """Three scripts, of which one ran on 1 and 2 ranks; a probe; a job that failed before its first step."""

    def run(script: str, ranks: int, step_ms: float, run_id: str, **changes: Any) -> AlignedRun:
        wall = [[step_ms] * ranks] * 30
        steps = make_records(wall, forward=wall, samples=[[16] * ranks] * 30)
        own = {"kind": "run", "command": ["allpull", "run", script], "spec": {}, "id": run_id}
        return AlignedRun(make_data(steps, ranks, **{**own, **changes}))

    idle = make_records([[1.0]], forward=[[1.0]]).clear()
    return [
        run("a.py", 1, 10, "a1"),
        run("a.py", 2, 10, "a2"),
        run("b.py", 2, 1, "b2"),
        run("c.py", 1, 5, "c1"),
        AlignedRun(make_data(idle, 1, kind="probe", id="probe")),
        AlignedRun(make_data(idle, 2, kind="run", id="fell", status="failed", command=["allpull", "run", "a.py"])),
    ]


def test_speed_up_exists_within_a_program_alone(folder: list[AlignedRun]) -> None:
    show = side_by_side(scaling_report(folder))
    assert show.reference is None
    assert show.scaling is None
    assert {run.run: run.speedup for run in show.runs} == {
        "a1": 1.0,
        "a2": pytest.approx(2.0),
        "b2": None,
        "c1": None,
        "probe": None,
        "fell": None,
    }
    assert {one.program: (one.runs, one.reference) for one in show.programs} == {
        "a.py": (["a1", "a2"], "a1"),
        "b.py": (["b2"], None),
        "c.py": (["c1"], None),
    }
    assert show.without_steps == ["probe", "fell"]


def test_the_runs_of_one_program_are_a_table_as_ever(folder: list[AlignedRun]) -> None:
    show = side_by_side(scaling_report(folder[:2]))
    assert show.reference == "a1"
    assert show.programs == []
    assert show.without_steps == []


def test_where_no_run_has_a_step_none_is_set_apart(folder: list[AlignedRun]) -> None:
    assert side_by_side(scaling_report(folder[4:])).without_steps == []


def test_groups_are_ordered_by_ranks(folder: list[AlignedRun]) -> None:
    assert [[run.data.record.id for run in group] for group in by_program(folder[:4])][-1] == ["c1"]
