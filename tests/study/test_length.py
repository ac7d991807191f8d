"""A run is ended as soon as it has measured enough, and then counts as completed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.rundir.read.run import read_run
from allpull.rundir.run_record import read_record, write_record
from allpull.schema.run import Exit
from allpull.study import length
from allpull.study.file import StudyFile, load_study
from allpull.study.length import Enough
from allpull.study.point_run import Deadline, _outcome

KEPT = Path(__file__).parents[1] / "runs" / "v1.6"
COMMAND = """
[study]
name = "length"
{settings}
[run]
command = ["train.py", "{{size}}"]
env = {{ VARIABLE = "{variable}" }}
[axes]
size = [8]
"""


def study_of(folder: Path, settings: str, variable: str = "") -> StudyFile:
    path = folder / "study.toml"
    path.write_text(COMMAND.format(settings=settings, variable=variable), encoding="utf-8")
    return load_study(str(path))


def steps_of(directory: Path) -> int:
    """Steps that all ranks have recorded."""
    files = sorted((directory / "steps").iterdir())
    return min(json.loads(file.read_text().splitlines()[-1])["step"] + 1 for file in files)


def test_a_command_that_does_not_know_of_the_steps_is_ended_after_them(tmp_path: Path) -> None:
    made = steps_of(KEPT)
    ended = Enough(study_of(tmp_path, f"steps = {made}")).look(KEPT)
    assert ended is not None
    assert ended.state == "completed"
    assert Enough(study_of(tmp_path, f"steps = {made + 1}")).look(KEPT) is None
    assert Enough(study_of(tmp_path, f"steps = {made}", variable="{steps}")).look(KEPT) is None  # it knows of them
    assert Enough(study_of(tmp_path, "")).look(KEPT) is None
    assert Enough(study_of(tmp_path, f"steps = {made}")).look(tmp_path) is None  # nothing is recorded yet


def test_a_run_is_ended_once_its_throughput_is_known_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "MIN_STEPS", 1)
    ended = Enough(study_of(tmp_path, "run_half_width = 0.9")).look(KEPT)
    assert ended is not None
    assert ended.state == "completed"
    assert Enough(study_of(tmp_path, "run_half_width = 1e-6")).look(KEPT) is None


def test_every_look_needs_a_quarter_more_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "MIN_STEPS", 1)
    readings: list[Path] = []

    def counted(place: Path, **options: bool) -> object:
        readings.append(place)
        return read_run(place, **options)

    monkeypatch.setattr(length, "read_run", counted)
    enough = Enough(study_of(tmp_path, "run_half_width = 1e-6"))
    for _ in range(3):
        enough._not_before_s = 0.0
        assert enough.look(KEPT) is None
    assert len(readings) == 1


def test_a_run_that_measured_enough_completed_and_lacks_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(KEPT, directory)
    record = read_record(directory)
    for events in (directory / "events").iterdir():  # as of ranks that a signal ended
        lines = [line for line in events.read_text().splitlines() if json.loads(line).get("kind") != "end"]
        events.write_text("\n".join(lines) + "\n")
    write_record(directory, record.model_copy(update={"status": "cancelled", "exit": Exit(code=143), "hosts": []}))
    assert any(gap.kind == "rank ended" for gap in read_run(directory).gaps)
    assert _outcome(directory, Deadline(seconds=0.0, state="completed", reason="enough")) == ("completed", None)
    after = read_record(directory)
    assert (after.status, after.exit and after.exit.ended_by) == ("completed", "study")
    assert after.hosts
    assert not any(gap.kind == "rank ended" for gap in read_run(directory).gaps)


def test_a_run_that_failed_before_it_was_ended_has_failed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(KEPT, directory)
    failed = read_record(directory).model_copy(update={"status": "failed", "exit": Exit(code=3, reason="no luck")})
    write_record(directory, failed)
    assert _outcome(directory, Deadline(seconds=0.0, state="completed", reason="enough")) == ("failed", "no luck")


ENDLESS = """
import itertools, sys, time
import torch

model, data = torch.nn.Linear(4, 2), torch.randn(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1 << 20, 4)), batch_size=4)
for (x,) in loader:
    time.sleep(0.01)
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
raise SystemExit("it should have been ended")
"""


@pytest.mark.slow
@pytest.mark.torch
def test_an_endless_program_ends_when_its_throughput_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    study_of(tmp_path, 'run_half_width = 0.5\ntimeout = "10 min"\nlauncher = "local"')
    command = [sys.executable, "-m", "allpull", "study", "run", "study.toml", "--out", "out", "--json"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert [run["state"] for run in point["runs"]] == ["completed"]
    rate = point["throughput"]
    assert (rate["high"] - rate["low"]) / 2 / rate["value"] < 0.75  # a few steps more than judged
    again = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert [run["run"] for run in json.loads(again.stdout)["points"][0]["runs"]] == [point["runs"][0]["run"]]
