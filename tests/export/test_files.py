"""Tables of real runs of past versions as files, against the records on disk, by other readers than the writer."""

from __future__ import annotations

import csv
import json
import resource
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from allpull.api.exporting import export_run
from allpull.api.runs import open_run
from allpull.errors import BadInput
from allpull.export import tables
from allpull.export.files import safe_cell
from allpull.export.target import MANIFEST

RUNS = Path(__file__).parents[1] / "runs"
NS = 1e9


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("version", ["v1.0", "v1.5"])
def test_csv_holds_what_the_ranks_recorded(version: str, tmp_path: Path) -> None:
    made = export_run(open_run(RUNS / version), "csv", str(tmp_path), replace=False)
    folder = Path(made.place)
    table = rows(folder / "steps.csv")
    for rank in (0, 1):
        header, *steps = records(RUNS / version / f"steps/rank-0000{rank}.jsonl")
        clock = records(RUNS / version / "steps/rank-00000.jsonl")[0]["clock"]
        own = [row for row in table if row["rank"] == str(rank)]
        assert [int(row["step"]) for row in own] == [step["step"] for step in steps]
        assert {row["host"] for row in own} == {header["host"]}
        for row, step in zip(own, steps, strict=True):
            assert float(row["step_s"]) == pytest.approx((step["end_ns"] - step["begin_ns"]) / NS)
            unix_s = (step["end_ns"] - clock["monotonic_ns"] + clock["realtime_ns"]) / NS
            assert float(row["end_unix_s"]) == pytest.approx(unix_s, abs=1e-6)
            assert row["tags"].split() == sorted(step.get("tags", []), key=tables.TAGS.index)
            phases = sum(float(row[f"{name}_s"] or 0) for name in tables.NAMES)
            assert phases == pytest.approx(float(row["step_s"]), rel=0.05)
    for name, count in {"run": 1, "steps": len(table)}.items():
        assert next(one.rows for one in made.tables if one.name == name) == count
    assert rows(folder / "run.csv")[0]["ranks"] == "2"
    assert set(table[0]) == set(tables.STEPS)


def test_metrics_and_counters_are_those_of_the_files(tmp_path: Path) -> None:
    run = RUNS / "v1.0"
    folder = Path(export_run(open_run(run), "csv", str(tmp_path), replace=False).place)
    reported = [line for line in records(run / "events/rank-00000.jsonl")[1:] if line["kind"] == "metric"]
    table = [row for row in rows(folder / "metrics.csv") if row["rank"] == "0"]
    assert [(row["name"], float(row["value"])) for row in table] == [(one["name"], one["value"]) for one in reported]
    samples = records(run / "counters/node1.jsonl")[1:]
    cpu_s = [sample["ranks"]["1"]["cpu_ns"] / NS for sample in samples if "1" in sample["ranks"]]
    of_rank = [row for row in rows(folder / "processes.csv") if row["rank"] == "1"]
    assert [float(row["cpu_s"]) for row in of_rank] == pytest.approx(cpu_s)
    sent = [sample["nics"]["lo"]["sent_bytes"] for sample in samples]
    of_nic = [row for row in rows(folder / "networks.csv") if row["nic"] == "lo"]
    assert [int(row["sent_bytes"]) for row in of_nic] == sent
    seconds = float(of_nic[-1]["unix_s"]) - float(of_nic[0]["unix_s"])
    assert seconds == pytest.approx((samples[-1]["t_ns"] - samples[0]["t_ns"]) / NS, abs=1e-5)


def test_epochs_add_up_to_the_steps_and_to_their_parts(tmp_path: Path) -> None:
    run = open_run(RUNS / "v1.0")
    folder = Path(export_run(run, "csv", str(tmp_path), replace=False).place)
    steps, epochs = rows(folder / "steps.csv"), rows(folder / "epochs.csv")
    assert [row["epoch"] for row in epochs] == sorted({row["epoch"] for row in steps}, key=int)
    for epoch in epochs:
        own = [row for row in steps if row["epoch"] == epoch["epoch"]]
        assert int(epoch["first_step"]) == min(int(row["step"]) for row in own)
        assert int(epoch["steps"]) == len({row["step"] for row in own})
        assert int(epoch["samples"]) == sum(int(row["samples"]) for row in own)
        assert float(epoch["samples_per_s"]) == pytest.approx(int(epoch["samples"]) / float(epoch["epoch_s"]))
        parts = [float(epoch[f"{name}_s"]) for name in ("training", "evaluation", "checkpoint", "start", "other")]
        assert sum(parts) == pytest.approx(float(epoch["epoch_s"]))
    moments = [float(row["begin_unix_s"]) for row in epochs]
    lengths = [float(row["epoch_s"]) for row in epochs]
    assert [end - begin for begin, end in pairwise(moments)] == pytest.approx(lengths[:-1], abs=1e-5)


def test_an_evaluation_belongs_to_the_epoch_that_it_ends(tmp_path: Path) -> None:
    run = RUNS / "v1.0"
    epochs = rows(Path(export_run(open_run(run), "csv", str(tmp_path), replace=False).place) / "epochs.csv")
    events = records(run / "events/rank-00000.jsonl")[1:]
    spans = [one for one in events if one["kind"] == "span" and one["name"] == "evaluation"]
    lengths_s = {str(one["epoch"]): (one["end_ns"] - one["begin_ns"]) / NS for one in spans}
    assert list(lengths_s) == [row["epoch"] for row in epochs]
    for row in epochs:  # the other rank evaluates at the same time, and may take longer
        assert lengths_s[row["epoch"]] <= float(row["evaluation_s"]) < 1.5 * lengths_s[row["epoch"]]


def test_an_epoch_whose_end_was_not_recorded_has_no_times(tmp_path: Path) -> None:
    run, out = tmp_path / "killed", str(tmp_path / "out")
    shutil.copytree(RUNS / "v1.0", run)
    for events in run.glob("events/*.jsonl"):
        lines = events.read_text().splitlines(keepends=True)
        events.write_text("".join(line for line in lines if json.loads(line).get("kind") != "end"))
    *_, whole, last = rows(Path(export_run(open_run(run), "csv", out, replace=False).place) / "epochs.csv")
    assert whole["epoch_s"]
    assert {last[name] for name in ("begin_unix_s", "epoch_s", "samples_per_s", "evaluation_s", "other_s")} == {""}
    assert int(last["samples"]) > 0
    assert int(last["first_step"]) == int(whole["first_step"]) + int(whole["steps"])


def test_a_second_training_of_a_process_has_rows_of_its_own(tmp_path: Path) -> None:
    """It began with epoch 0 again, and was killed within it."""
    run, out = tmp_path / "twice", str(tmp_path / "out")
    shutil.copytree(RUNS / "v1.0", run)
    last = max(json.loads(line)["epoch"] for line in (run / "steps/rank-00000.jsonl").read_text().splitlines()[1:])
    for file in [*run.glob("events/*.jsonl"), *run.glob("steps/*.jsonl")]:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        again = [{**one, "epoch": 0} if one.get("epoch") == last else one for one in lines if one.get("kind") != "end"]
        file.write_text("".join(json.dumps(one) + "\n" for one in again))
    table = rows(Path(export_run(open_run(run), "csv", out, replace=False).place) / "epochs.csv")
    assert [(row["epoch"], bool(row["epoch_s"])) for row in table[:: last or 1]] == [("0", True), ("0", False)]


def test_parquet_has_the_same_rows_with_types_for_pyarrow(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = open_run(RUNS / "v1.5")
    text = Path(export_run(run, "csv", str(tmp_path / "csv"), replace=False).place)
    made = export_run(run, "parquet", str(tmp_path / "parquet"), replace=False)
    for table in made.tables:
        read = parquet.read_table(Path(made.place) / f"{table.name}.parquet")
        assert read.num_rows == table.rows == len(rows(text / f"{table.name}.csv"))
        assert read.column_names == list(table.columns)
    steps = parquet.read_table(Path(made.place) / "steps.parquet")
    assert str(steps.schema.field("step").type) == "int64"
    assert str(steps.schema.field("input_s").type) == "double"
    cells = [row["step_s"] for row in rows(text / "steps.csv")]
    assert steps.column("step_s").to_pylist() == [float(cell) for cell in cells]


@pytest.mark.parametrize("version", ["v1.0", "v1.2", "v1.5"])
def test_a_table_made_in_parts_is_the_table(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(RUNS / version)
    whole = pl.concat(tables.steps(run.aligned))
    assert whole.equals(pl.concat(tables.steps(run.aligned, part_rows=7)))
    monkeypatch.setattr(tables.steps, "__kwdefaults__", {"part_rows": 7})
    made = export_run(run, "parquet", str(tmp_path), replace=False)
    assert whole.equals(pl.read_parquet(Path(made.place) / "steps.parquet"))
    assert sorted(path.name for path in Path(made.place).iterdir()) == sorted(
        [MANIFEST, *(f"{table.name}.parquet" for table in made.tables)]
    )


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\x1b[31m=1", "\r\n=cmd|'/c calc'!A0"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert safe_cell(text).startswith("'")
    assert safe_cell(text).isprintable()


def test_hostile_names_stay_text(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("v1.0")
    events = run / "events/rank-00000.jsonl"
    hostile = '=HYPERLINK(\\"http://x\\")\\u001b[2J,\\n\\"'
    events.write_text(events.read_text().replace('"train_loss"', f'"{hostile}"'))
    opened = open_run(run)
    folder = Path(export_run(opened, "csv", str(tmp_path / "csv"), replace=False).place)
    names = {row["name"] for row in rows(folder / "metrics.csv")}
    assert """'=HYPERLINK("http://x"), \"""" in names
    assert not any(name.startswith("=") for name in names)
    for path in folder.glob("*.csv"):
        assert path.read_bytes().isascii()
        assert b"\x1b" not in path.read_bytes()
    exact = pl.read_parquet(Path(export_run(opened, "parquet", str(tmp_path), replace=False).place) / "metrics.parquet")
    assert json.loads(f'"{hostile}"') in exact["name"].to_list()


def test_an_export_is_whole_or_absent_and_replaced_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(RUNS / "v1.0")
    place = tmp_path / "v1.0"
    monkeypatch.setattr("allpull.api.exporting.write_manifest", _full_disk)
    with pytest.raises(BadInput, match="No space left"):
        export_run(run, "csv", str(tmp_path), replace=False)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    export_run(run, "csv", str(tmp_path), replace=False)
    with pytest.raises(BadInput, match="exists") as refused:
        export_run(run, "parquet", str(tmp_path), replace=False)
    assert "--replace" in refused.value.hint
    monkeypatch.setattr("allpull.api.exporting.write_manifest", _full_disk)
    with pytest.raises(BadInput):
        export_run(run, "parquet", str(tmp_path), replace=True)
    assert (place / "steps.csv").is_file()
    monkeypatch.undo()
    export_run(run, "parquet", str(tmp_path), replace=True)
    assert (place / "steps.parquet").is_file()
    assert not (place / "steps.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["v1.0"]


@pytest.mark.parametrize("limit_bytes", [1, 4096])
@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_file_that_may_not_grow_is_one_clear_error(tmp_path: Path, to: str, limit_bytes: int) -> None:
    """A limit (ulimit -f) is met as a full disk is; polars has an error of its own for both."""
    run = open_run(RUNS / "v1.0")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))
    try:
        with pytest.raises(BadInput, match=r"cannot write .*v1\.0: "):
            export_run(run, to, str(tmp_path), replace=False)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_what_is_no_export_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "v1.0").mkdir()
    (tmp_path / "v1.0" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="not an export"):
        export_run(open_run(RUNS / "v1.0"), "csv", str(tmp_path), replace=True)
    assert (tmp_path / "v1.0" / "thesis.tex").read_text() == "years of work"
    with pytest.raises(BadInput, match="not an export"):  # nor the run itself
        export_run(open_run(RUNS / "v1.0"), "csv", str(RUNS), replace=True)


def test_a_run_without_steps_has_empty_tables(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("v1.0")
    for folder in ("steps", "events", "counters"):
        shutil.rmtree(run / folder)
    for to in ("csv", "parquet"):
        made = export_run(open_run(run), to, str(tmp_path / to), replace=False)  # type: ignore[arg-type]
        assert {table.name: table.rows for table in made.tables if table.rows} == {"run": 1}
        assert made.gaps


def test_the_command_says_where_and_what_is_missing(run_here: Callable[..., Any], tmp_path: Path) -> None:
    done = run_here("export", str(RUNS / "v1.0"), "--to", "csv", "--json", cwd=tmp_path)
    (made,) = json.loads(done.stdout)["exports"]
    assert (tmp_path / made["place"] / "steps.csv").is_file()
    assert run_here("export", str(RUNS / "v1.0"), "--to", "csv", cwd=tmp_path).returncode == 2
    assert "known: csv, mlflow, parquet, tensorboard" in run_here("export", str(RUNS / "v1.0"), "--to", "xls").stderr


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
