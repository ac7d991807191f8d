"""What a study forecasts of the sizes that it has not run: which, from which runs, and what a run of them costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.errors import BadInput
from allpull.predict.runs import Request
from allpull.schema.base import tag
from allpull.schema.forecast import CalibrationRun, ForecastResult, ForecastSize
from allpull.schema.interval import Interval
from allpull.schema.studied import Attempt, RecordedPoint, StudyRecord
from allpull.study import forecast
from allpull.study.forecast import forecast_costs, forecast_study

STEPS, STEP_S, BESIDE_S = 50, 0.2, 7.0


def near(value: float) -> Interval:
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


def point(ranks: int, batch: int = 32) -> RecordedPoint:
    series = {"batch": batch}
    return RecordedPoint(
        id=f"{batch}-{ranks}", parameters={"ranks": ranks, **series}, series=series, ranks=ranks, hosts=ranks
    )


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A study of four sizes, two of which were run, whose runs and forecasts are made up."""
    made = SimpleNamespace(
        points=[point(1, 64), *(point(ranks) for ranks in (1, 2, 4, 8))],
        done={("32-1", 0): ["run-1"], ("32-2", 0): ["run-2"]},
        scaling="weak",
        requests=[],
    )

    def record(_: Path) -> StudyRecord:
        return StudyRecord(
            schema=tag("study"),
            name="mine",
            title="",
            scaling=made.scaling,
            created_utc="",
            allpull="",
            sha256="",
            repeats=1,
            half_width=None,
            points=made.points,
            published=[],
            changed=[],
        )

    def runs(_: Path) -> dict[Any, Any]:
        return {
            key: [(name, SimpleNamespace(status="completed")) for name in names] for key, names in made.done.items()
        }

    def opened(place: Path, **_: object) -> Any:
        ranks = int(place.name.rpartition("-")[2])
        data = SimpleNamespace(
            record=SimpleNamespace(ranks=ranks, id=place.name, global_batch=64),
            steps=SimpleNamespace(height=STEPS * ranks),
        )
        return SimpleNamespace(data=data)

    def forecasts(of_runs: Any, probes: Any, request: Request) -> ForecastResult:
        made.requests.append(request)
        used = [one.data.record for one in of_runs]
        return ForecastResult(
            schema=tag("forecast"),
            program="mine",
            calibration=[
                CalibrationRun(
                    run=one.id, kind="run", ranks=one.ranks, hosts=one.ranks, batch=32.0, steps=STEPS, step_s=STEP_S
                )
                for one in used
            ],
            speedup_reference=1,
            parameters=[],
            predictions=[
                ForecastSize(
                    ranks=ranks,
                    hosts=hosts,
                    batch=32.0 if request.global_batch is None else request.global_batch / ranks,
                    step_s=near(STEP_S + 0.01 * ranks),
                    throughput=near(1),
                    speedup=near(1),
                    efficiency=near(1),
                    terms={},
                    epoch=None,
                    extrapolation=2,
                    bottleneck="exchange",
                    measured_step_s=None,
                )
                for ranks, hosts in zip(request.ranks, request.hosts or (), strict=True)
            ],
            baselines=[],
            waterfall=[],
            refused=None,
            refused_sizes=[],
            next_measurement=None,
            notes=[],
        )

    taken = STEPS * STEP_S + BESIDE_S
    attempts = [
        Attempt(point=f"32-{ranks}", repeat=0, run=None, state="completed", seconds=taken, rank_s=taken)
        for ranks in (1, 2)
    ]
    for name, value in {
        "read_study_record": record,
        "runs_by_point": runs,
        "read_run": opened,
        "AlignedRun": lambda run: run,
        "forecast_runs": forecasts,
        "read_attempts": lambda _: attempts,
    }.items():
        monkeypatch.setattr(forecast, name, value)
    return made


def test_the_missing_sizes_of_the_best_measured_series_are_forecast(study: SimpleNamespace, tmp_path: Path) -> None:
    result = forecast_study(tmp_path, Request(ranks=()))
    assert (study.requests[0].ranks, study.requests[0].hosts) == ((4, 8), (4, 8))
    assert [one.run for one in result.calibration] == ["run-1", "run-2"]
    assert result.notes == ["of the series batch=32, of 2 of this study"]


def test_other_sizes_may_be_requested(study: SimpleNamespace, tmp_path: Path) -> None:
    forecast_study(tmp_path, Request(ranks=(64,), hosts=(16,)))
    assert study.requests[0].ranks == (64,)


def test_strong_scaling_keeps_the_global_batch(study: SimpleNamespace, tmp_path: Path) -> None:
    study.scaling = "strong"
    forecast_study(tmp_path, Request(ranks=()))
    assert study.requests[0].global_batch == 64


def test_nothing_measured_or_nothing_missing_is_said(study: SimpleNamespace, tmp_path: Path) -> None:
    study.points = [point(1), point(2)]
    with pytest.raises(BadInput, match="every size"):
        forecast_study(tmp_path, Request(ranks=()))
    study.done = {}
    with pytest.raises(BadInput, match="has completed"):
        forecast_study(tmp_path, Request(ranks=()))


def test_a_run_costs_its_steps_and_what_is_beside_them(study: SimpleNamespace, tmp_path: Path) -> None:
    costs = forecast_costs(tmp_path, study.points, scaling="weak", fixed_steps=True)
    assert set(costs) == {"32-4", "32-8"}
    assert costs["32-8"].seconds == pytest.approx(BESIDE_S + STEPS * (STEP_S + 0.08))
    assert costs["32-8"].basis.startswith("forecast from 2 sizes")
    epochs = forecast_costs(
        tmp_path, study.points, scaling="weak", fixed_steps=False
    )  # four times the ranks see as many samples in a quarter
    assert epochs["32-8"].seconds == pytest.approx(BESIDE_S + STEPS / 4 * (STEP_S + 0.08))


def test_a_series_without_a_run_costs_what_is_not_known(study: SimpleNamespace, tmp_path: Path) -> None:
    assert "64-1" not in forecast_costs(tmp_path, study.points, scaling="weak", fixed_steps=True)


def test_a_size_that_the_file_has_since_is_forecast_from_runs_of_the_points_that_stayed(
    study: SimpleNamespace, tmp_path: Path
) -> None:
    now = [point(2), point(16)]  # the axis was [1, 2, 4, 8] when these were run
    costs = forecast_costs(tmp_path, now, scaling="weak", fixed_steps=True)
    assert set(costs) == {"32-16"}
    assert costs["32-16"].seconds == pytest.approx(BESIDE_S + STEPS * (STEP_S + 0.16))
    assert study.requests[0].ranks == (16,)
