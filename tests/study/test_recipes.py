"""The five source studies: their points, their networks as the sources state them, and what fits a small machine."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from allpull.published.series import published_series
from allpull.schema.studied import Value
from allpull.study.file import StudyFile, load_study, recipes
from allpull.study.network_size import of_rehearsal, of_trainings
from allpull.study.points import Point, points_of

RESNET50, RESNET18 = 25_557_032, 11_689_512  # torchvision's
TWELVE_BANDS = 23_915_115  # Kozhokanova 2021
DAINT = {44_601_832, 23_817_352, 138_357_544}  # CSCS course, labels of the figure
MAX_RANKS_COMPUTING, MAX_RANKS_SLEEPING, MAX_STEPS = 2, 16, 40

STUDIES = {
    "marconi100": (36, {RESNET50, RESNET18}),
    "hal": (6, {RESNET50}),
    "claix": (50, {TWELVE_BANDS}),
    "pizdaint": (30, DAINT),
    "dell": (12, {RESNET50}),
}


@cache
def study_of(name: str, *, fit_here: bool = False) -> tuple[StudyFile, list[Point]]:
    study = load_study(name, fit_here=fit_here)
    return study, points_of(study)


def test_these_five_are_shipped() -> None:
    assert set(recipes()) == set(STUDIES)
    assert all(recipes().values()), "each begins with a comment that says what it is"


@pytest.mark.parametrize("name", STUDIES)
def test_points_and_networks(name: str) -> None:
    count, parameters = STUDIES[name]
    study, points = study_of(name)
    assert len(points) == count
    specs = [point.job.spec for point in points]
    assert set(of_trainings([(study.run.recipe, spec) for spec in specs if spec])) == parameters
    assert published_series(study.published)
    assert study.settings.name == name


@pytest.mark.parametrize("name", STUDIES)
def test_fit_here_fits(name: str) -> None:
    """Ranks that compute are two at most, those of a rehearsal sixteen; a run is a few seconds long."""
    study, points = study_of(name, fit_here=True)
    computing = study.source == "recipe"
    assert max(point.job.ranks for point in points) <= (MAX_RANKS_COMPUTING if computing else MAX_RANKS_SLEEPING)
    assert 0 < study.settings.steps <= MAX_STEPS
    assert len(points) <= 15
    assert study.changed
    if not computing:
        tables = [point.job.configuration["cluster"] for point in points]
        assert None not in {of_rehearsal(table) for table in tables}


def sizes(points: list[Point], **wanted: Value) -> list[tuple[int, int]]:
    """Ranks and hosts of the points with these parameters, in order."""
    return sorted(
        (point.job.ranks, point.job.hosts)
        for point in points
        if all(point.parameters.get(name) == value for name, value in wanted.items())
    )


def test_sizes_of_the_sources() -> None:
    assert sizes(study_of("hal")[1]) == [(2, 1), (4, 1), (8, 2), (16, 4), (32, 8), (64, 16)]
    dell = [(1, 1), (2, 1), (4, 1), (8, 2), (12, 3), (16, 4)]
    assert sizes(study_of("dell")[1], batch=64, precision="fp32") == dell
    assert sizes(study_of("dell")[1], batch=128, precision="o2") == dell
    assert sizes(study_of("pizdaint")[1], model="vgg16") == [(2**power, 2**power) for power in range(10)]
    marconi = study_of("marconi100")[1]
    assert sizes(marconi, model="resnet50", batch=32, workers=16, precision="fp32")[-1] == (64, 16)
    assert [one.parameters["workers"] for one in marconi if one.labels == ("workers",)] == [1, 2, 4, 8, 1, 2, 4, 8]


def test_every_shared_point_is_one_point() -> None:
    """Marconi100's four curves meet at 4 GPUs, batch 32, 16 workers and FP32."""
    shared = [point for point in study_of("marconi100")[1] if len(point.labels) > 1]
    assert [point.labels for point in shared] == 2 * [("GPUs and nodes", "workers", "batch", "mixed precision")]


def test_hal_trains_as_its_script() -> None:
    spec = study_of("hal")[1][-1].job.spec
    assert spec is not None
    train = spec.train
    assert (train.batch, train.precision, train.epochs, train.lr, train.warmup_epochs) == (208, "o2", 90, 0.1, 5)
    assert (train.schedule, train.milestones, train.decay) == ("milestones", (30, 60, 80), "all")
    assert (train.momentum, train.weight_decay, train.label_smoothing) == (0.9, 1e-4, 0)
    assert (spec.data.name, spec.data.workers, spec.parallel.overlap) == ("imagefolder", 20, False)


def test_claix_has_both_readings_of_strong_and_weak() -> None:
    points = study_of("claix")[1]
    assert {label for point in points for label in point.labels} == {
        "10 iterations",
        "2 epochs of 12 steps",
        "5 epochs",
        "strong by data, weak by batch",
        "strong by batch",
        "weak by data",
    }
    by_data = [point for point in points if "weak by data" in point.labels]
    specs = [point.job.spec for point in by_data]
    assert {spec.data.limit // spec.launch.ranks for spec in specs if spec} == {3584}
    assert len({str(point.series) for point in by_data}) == 2, "serial and parallel evaluation, no series per size"
    assert {spec.train.evaluation for spec in specs if spec} == {"serial", "parallel"}


@pytest.mark.slow
def test_marconi100_fits_here(tmp_path: Path) -> None:
    """Two of its points, shortened, trained for real: measured, and drawn with what was published."""
    sizes = "include=[{ model = 'resnet18', ranks = [1, 2] }]"
    shorter = [sizes, "study.steps=8", "study.warmup_steps=2", "train.batch=8", "data.size=32"]
    command = [sys.executable, "-m", "allpull", "study", "run", "marconi100", "--fit-here", "--json"]
    command += [word for text in shorter for word in ("--set", text)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert [(point["ranks"], point["runs"][0]["state"]) for point in result["points"]] == [
        (1, "completed"),
        (2, "completed"),
    ]
    assert all(point["throughput"]["value"] > 0 for point in result["points"])
    assert [series["series"] for series in result["published"]][:2] == ["m100_single", "m100_multi"]
    assert "run.set" in {one["what"] for one in result["changed"]}
