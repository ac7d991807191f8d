"""A study's own numbers: a contradiction is a slip, what a reader has to know an observation, and sound is silent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "report"))
from study_samples import interval, scaled, study

from allpull.study.audit.own import audit_study
from allpull.study.audit.run import audit_tables

SIZES = {1: 1.0, 2: 0.95, 4: 0.88}


def checks(points: list[dict[str, Any]]) -> dict[str, str]:
    """Check → kind of every finding."""
    return {one.check: one.kind for one in audit_study(study(points)).findings}


def runs(point: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """``point`` with changed metrics of all its runs."""
    return point | {"runs": [{**run, "metrics": {**run["metrics"], **changes}} for run in point["runs"]]}


def sound() -> list[dict[str, Any]]:
    """A series in which everything fits, read from storage, with an even first epoch."""
    made = []
    for point in scaled({}, dict.fromkeys(SIZES, 1.0), 500.0):
        epoch = point["runs"][0]["metrics"]["epoch_s"]
        shares = {
            name: value * 51_200 / (500.0 * point["ranks"]) for name, value in (("training", 1.0), ("total", 1.02))
        }
        each = [{**one, **shares} for one in epoch["each"]]
        io = {"read_bytes_per_s": 2e7, "reads_per_s": 180.0, "storage_read_bytes_per_s": 1.9e7}
        changed = runs(point, epoch_s={**epoch, **shares, "each": each, "first": each[0]}, io=io)
        times = {"epoch_s": interval(shares["total"]), "time_to_solution_s": interval(4 * shares["total"])}
        made.append(changed | times | {"epoch_speedup": interval(float(point["ranks"]))})
    return made


def test_sound_numbers_have_no_finding() -> None:
    assert checks(sound()) == {}


def test_a_rate_that_its_training_time_does_not_allow_is_a_slip() -> None:
    points = [point | {"throughput": interval(2 * point["throughput"]["value"])} for point in sound()]
    assert checks(points) == {"samples": "slip"}


def test_a_speedup_and_an_efficiency_that_the_rates_do_not_give_are_slips() -> None:
    points = sound()
    points[2] |= {"speedup": interval(3.0), "efficiency": interval(0.6)}
    assert checks(points) == {"speed-up": "slip", "efficiency": "slip", "efficiency-by-time": "observation"}


def test_an_efficiency_by_time_that_is_lower_is_an_observation() -> None:
    points = sound()
    points[2] |= {"epoch_speedup": interval(3.0), "epoch_s": interval(2 * points[2]["epoch_s"]["value"])}
    assert checks(points) == {"efficiency-by-time": "observation"}
    (finding,) = audit_study(study(points)).findings
    assert "75.0% by the time of an epoch and 100.0% by samples/s" in finding.text
    assert finding.rows == [4]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"steady": {"used": 100, "left_out": {}}}, "warm-up"),
        ({"io": {"read_bytes_per_s": 2e7, "reads_per_s": 9.0, "storage_read_bytes_per_s": 1e4}}, "page-cache"),
    ],
)
def test_what_a_reader_has_to_know_is_an_observation(changes: dict[str, Any], check: str) -> None:
    points = sound()
    points[1] = runs(points[1], **changes)
    assert checks(points) == {check: "observation"}


def test_a_slow_first_epoch_is_an_observation() -> None:
    assert "first-epoch" in checks(scaled({}, {1: 1.0, 2: 1.0}, 5000.0))  # 5 s on top of 12.1 s


def test_what_was_not_measured_is_named_and_not_checked() -> None:
    points = [runs(point, epoch_s=None) | {"epoch_s": None, "epoch_speedup": None} for point in sound()]
    result = audit_study(study(points))
    assert result.findings == []
    assert result.notes[0] == "no complete epoch (samples/s × training time) in 3 points"


def test_a_rate_in_a_table_counts_as_its_stated_interval(tmp_path: Path) -> None:
    """Found on a noisy machine: 689 images/s between 442 and 1,075 contradict no time of an epoch."""
    row = "s,1,32,689.3,1,1,,{}epoch_training_s=1.823; samples=1437"
    header = "series,gpus,batch_per_gpu,images_per_sec,speedup,efficiency,train_time_s,notes"
    for interval_, slips in (("images_per_sec_low=441.8; images_per_sec_high=1075.4; ", 0), ("", 1)):
        path = tmp_path / "points.csv"
        path.write_text(f"{header}\n{row.format(interval_)}\n")
        assert len(audit_tables([path]).findings) == slips
