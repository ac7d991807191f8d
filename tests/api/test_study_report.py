"""The report of a study on disk, of runs that were kept: page, figures, table and paragraph, by the command."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allpull.api.study_report import study_report
from allpull.cli import app
from allpull.schema.base import tag

KEPT = Path(__file__).parents[1] / "runs" / "v1.6"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two points, one of which ran twice, and the other one never."""
    place = tmp_path_factory.mktemp("studies") / "kept"
    points = [
        {"id": f"{number:012d}", "parameters": {"ranks": ranks, "batch": 8}, "series": {"batch": 8}, "ranks": ranks}
        | {"hosts": 1}
        for number, ranks in enumerate((2, 4))
    ]
    record = {"schema": tag("studyrecord"), "name": "kept", "title": "Kept runs", "scaling": "weak", "repeats": 2}
    record |= {"created_utc": "2026-11-22T20:00:00Z", "allpull": "0.1.0", "sha256": "0" * 64, "half_width": None}
    record |= {"points": points, "published": ["hal_feb"], "changed": []}
    for repeat in range(2):
        run = place / "runs" / f"20261122T20000{repeat}Z_kept"
        shutil.copytree(KEPT, run)
        known = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**known, "id": run.name, "point": f"{0:012d}/{repeat}"}))
    (place / "study.json").write_text(json.dumps(record))
    return place


def test_a_study_has_details_and_efficiencies_of_what_ran(directory: Path) -> None:
    made = study_report(directory)
    assert [point.throughput is not None for point in made.study.points] == [True, False]
    assert set(made.details) == {f"{0:012d}"}
    assert set(made.pop) <= set(made.details)
    assert [run.state for run in made.study.points[1].runs] == ["missing", "missing"]


@pytest.mark.slow
def test_the_command_writes_the_page_into_the_study_and_figures_into_the_folder(
    directory: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["report", str(directory), "--figures", str(tmp_path / "figures")])
    assert done.exit_code == 0, done.output
    page = (directory / "report.html").read_text("utf-8")
    assert "Kept runs" in page
    with (tmp_path / "figures" / "points.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["gpus"], row["nodes"], float(row["images_per_sec"]) > 0) == ("2", "1", True)
    assert "2 repeats" in (tmp_path / "figures" / "paragraph.md").read_text("utf-8")
