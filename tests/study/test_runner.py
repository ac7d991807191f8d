"""What a study runs, in which order, when it stops, and that an interruption loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from allpull.errors import AllpullError, BadInput
from allpull.rundir import derived
from allpull.rundir.run_record import read_record, write_record
from allpull.schema.results import Interval
from allpull.schema.run import Exit
from allpull.schema.studied import Attempt, PointState
from allpull.study import run_metrics, runner
from allpull.study.directory import locked, open_directory, read_attempts
from allpull.study.file import StudyFile, load_study
from allpull.study.plan import plan, run_order
from allpull.study.point_run import StudyPlace, _last_line, _outcome, attempt_of
from allpull.study.points import Point, points_of
from allpull.study.results import read_study

KEPT = Path(__file__).parents[1] / "runs" / "v1.6"
SMALL = """
[study]
name = "small"
repeats = {repeats}
{settings}
[run]
command = ["train.py", "{{size}}"]
[axes]
ranks = [1, 2]
size = [8, 16]
"""


def study_of(folder: Path, *, repeats: int = 2, settings: str = "", text: str = SMALL) -> StudyFile:
    path = folder / "study.toml"
    path.write_text(text.format(repeats=repeats, settings=settings), encoding="utf-8")
    return load_study(str(path))


class Silent:
    """A viewer that keeps what ended."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    def begun(self, title: str) -> None:
        """Not shown."""

    def look(self, run: runner.LiveRun) -> None:
        """Not shown."""

    def ended(self, title: str, attempt: Attempt, rate: Interval | None, left_s: float | None) -> None:
        """Keep it."""
        self.attempts.append(attempt)


State = Callable[[Point, int], PointState]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs are copies of a recorded one, of ten seconds each, and end as told."""

    def install(state: State = lambda *_: "completed") -> None:
        def run_point(point: Point, repeat: int, place: StudyPlace, **_: object) -> Attempt:
            if (ended := state(point, repeat)) != "completed":
                return attempt_of(point, repeat, ended, seconds=10.0, reason="as planned")
            name = f"run-{point.id}-{repeat}"
            shutil.copytree(KEPT, place.directory / "runs" / name)
            directory = place.directory / "runs" / name
            write_record(directory, read_record(directory).model_copy(update={"point": f"{point.id}/{repeat}"}))
            return attempt_of(point, repeat, "completed", seconds=10.0, run=name)

        monkeypatch.setattr(runner, "run_point", run_point)

    return install


def run(study: StudyFile, directory: Path, *, anew: bool = False) -> tuple[runner.StudyEnd, list[tuple[str, int]]]:
    viewer = Silent()
    end = runner.run_study(study, points_of(study), directory, viewer, anew=anew)
    return end, [(one.point, one.repeat) for one in viewer.attempts]


def test_rounds_are_shuffled_alike_for_the_same_seed(tmp_path: Path) -> None:
    points = points_of(study_of(tmp_path))
    order = run_order(points, 3, seed=1)
    assert order == run_order(points, 3, seed=1) != run_order(points, 3, seed=2)
    assert [repeat for _, repeat in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({tuple(id_ for id_, _ in order[start : start + 4]) for start in (0, 4, 8)}) > 1


def test_what_completed_is_not_run_again_even_without_the_log(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    fails = points_of(study)[1].id
    pretend(lambda point, _: "failed" if point.id == fails else "completed")
    end, first = run(study, directory)
    assert (end.count("completed"), end.count("failed")) == (3, 1)
    (directory / "attempts.jsonl").unlink()
    pretend()
    assert run(study, directory)[1] == [(fails, 0)]
    assert len(first) == 4
    assert run(study, directory)[1] == []
    result = read_study(directory)
    assert {one.state for point in result.points for one in point.runs} == {"completed"}
    assert not result.notes


def test_a_study_reads_a_run_once_and_again_when_it_changed(
    tmp_path: Path, pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "SETTLED_NS", 0)  # else a run that has just ended may change again
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend()
    run(study, directory)
    first = read_study(directory)
    times_read: list[str] = []
    original = run_metrics.read_run

    def counted(place: Path, **options: bool) -> object:
        times_read.append(place.name)
        return original(place, **options)

    monkeypatch.setattr(run_metrics, "read_run", counted)
    assert read_study(directory) == first
    assert times_read == []
    changed = first.points[0].runs[0].run
    assert changed is not None
    (directory / changed / "run.json").touch()
    assert read_study(directory) == first
    assert [f"runs/{name}" for name in times_read] == [changed]
    (directory / "metrics.json").write_text("{")
    assert read_study(directory) == first
    assert len(times_read) == 1 + len(first.points)


def test_measured_points_of_virtual_clusters_are_counted(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend()
    run(study, directory)
    assert (read_study(directory).rehearsed, read_study(directory).virtual_network) == (0, 0)
    first, second, third, _ = sorted((directory / "runs").iterdir())
    for path, changes in (
        (first, {"kind": "rehearse", "launcher": "rehearse:a.toml"}),
        (second, {"launcher": "rehearse:a.toml"}),
        (third, {"kind": "rehearse", "status": "failed"}),
    ):
        write_record(path, read_record(path).model_copy(update=changes))
    assert (read_study(directory).rehearsed, read_study(directory).virtual_network) == (1, 1)


def test_a_script_that_changed_between_the_runs_is_noted(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend()
    run(study, directory)
    assert not read_study(directory).notes
    for number, path in enumerate(sorted((directory / "runs").iterdir())):
        versions = {"torch": f"2.{number}", "allpull": "0.1"}
        changes = {"script_sha256": f"{number // 2:064}", "versions": versions}
        write_record(path, read_record(path).model_copy(update=changes))
    scripts, torch = read_study(directory).notes
    assert "its runs are of 2 versions of it" in scripts
    assert torch == "runs are of several versions of torch: 2.0, 2.1, 2.2, 2.3"


def test_runs_that_the_log_lacks_count_towards_the_limits(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, repeats=1, settings='limit = "1000 s"'), tmp_path / "out"
    pretend()
    run(study, directory)
    runs = sorted((directory / "runs").iterdir())
    runs[0] = runs[0].rename(directory / "runs" / "killed")
    times = {"created_utc": "2026-01-01T00:00:00Z", "ended_utc": "2026-01-01T00:15:00Z"}
    write_record(runs[0], read_record(runs[0]).model_copy(update={"status": "cancelled", **times}))
    (directory / "attempts.jsonl").unlink()  # as of a study that was killed with its first run
    for path in runs[1:]:
        shutil.rmtree(path)
    end, done = run(study, directory)
    assert end.stopped is None or "15 min" in end.stopped
    (first, *_) = read_attempts(directory)
    assert (first.run, first.state, first.seconds) == (runs[0].name, "missing", 900.0)
    assert len(done) == 4
    again = read_attempts(directory)
    run(study, directory)
    assert read_attempts(directory) == again  # counted once


def test_a_failed_point_says_why_and_its_other_repeats_wait(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path), tmp_path / "out"
    fails = points_of(study)[0].id
    pretend(lambda point, _: "failed" if point.id == fails else "completed")
    end, _ = run(study, directory)
    assert (end.count("completed"), end.count("failed"), end.count("skipped")) == (6, 1, 1)
    point = next(point for point in read_study(directory).points if point.id == fails)
    assert [(one.state, one.reason) for one in point.runs] == [
        ("failed", "as planned"),
        ("skipped", "repeat 1 did not complete"),
    ]


def test_points_that_are_not_known_as_well_as_wanted_are_counted(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, settings="half_width = 0.02"), tmp_path / "out"
    pretend(lambda _, repeat: "completed" if repeat == 0 else "failed")
    run(study, directory)
    notes = read_study(directory).notes
    assert "4 points not yet known to ± 2 %: raise study.repeats" in notes  # one run does not know how runs vary
    pretend()
    run(study, directory)
    assert not read_study(directory).notes  # copies of one run do not vary


@pytest.mark.parametrize(
    ("settings", "limit", "of_ranks"),
    [('limit = "25 s"', 25, False), ("limit_rank_hours = 0.01", 36, True), ('limit = "1 h"', None, False)],
)
def test_a_limit_stops_before_the_run_that_would_exceed_it(
    tmp_path: Path, pretend: Callable[..., None], settings: str, limit: float | None, of_ranks: bool
) -> None:
    study = study_of(tmp_path, settings=settings)
    pretend()
    end, done = run(study, tmp_path / "out")
    ranks = {point.id: point.job.ranks for point in points_of(study)}
    assert (end.stopped is None) == (limit is None)
    used = [10 * (ranks[id_] if of_ranks else 1) for id_, _ in done]
    if limit is None:
        assert len(done) == 8
    else:
        assert sum(used[:-1]) < limit  # what the last one takes may not have been known


def test_a_point_is_repeated_until_it_is_known_well(
    tmp_path: Path, pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(tmp_path, repeats=6, settings="half_width = 0.05")
    noisy = points_of(study)[0].id

    def rate(_: object, name: str) -> Interval:
        repeat = int(name.rpartition("-")[2])
        return Interval(value=100 + (30 if noisy in name else 0.1) * (-1) ** repeat, low=None, high=None)

    pretend()
    monkeypatch.setattr(runner._Runner, "_rate", rate)
    _, done = run(study, tmp_path / "out")
    repeats = {id_: sum(one == id_ for one, _ in done) for id_, _ in done}
    assert repeats.pop(noisy) == 6
    assert set(repeats.values()) == {2}


def test_a_changed_study_is_shown_and_continued_only_on_request(tmp_path: Path, pretend: Callable[..., None]) -> None:
    directory = tmp_path / "out"
    pretend()
    run(study_of(tmp_path, repeats=1), directory)
    changed = study_of(tmp_path, repeats=1, settings="seed = 7")
    with pytest.raises(BadInput, match=r"study\.seed: was not set; is now 7"):
        run(changed, directory)
    assert run(changed, directory, anew=True)[1] == []
    run(study_of(tmp_path, repeats=1, settings='seed = 7\ntimeout = "1 h"'), directory)  # a limit changes no run


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    study, directory = study_of(tmp_path), tmp_path / "out"
    directory.mkdir()
    (directory / "thesis.tex").write_text("mine")
    with pytest.raises(BadInput, match="is not empty, and no study"):
        open_directory(study, points_of(study), directory)
    (directory / "thesis.tex").unlink()
    open_directory(study, points_of(study), directory)
    other = load_study(str(tmp_path / "study.toml"), ["study.name=other"])
    with pytest.raises(BadInput, match="holds the study 'small', not 'other'"):
        open_directory(other, points_of(other), directory)


def test_two_runs_of_one_study_refuse(tmp_path: Path) -> None:
    study, directory = study_of(tmp_path), tmp_path / "out"
    open_directory(study, points_of(study), directory)
    with locked(directory), pytest.raises(BadInput, match=f"process {os.getpid()} runs this study"):
        run(study, directory)


def test_a_full_disk_stops_the_study_and_loses_nothing(
    tmp_path: Path, pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend()
    calls = iter([10**12, 10**6])
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(runner.shutil, "disk_usage", lambda _: usage(1, 1, next(calls)))
    with pytest.raises(AllpullError, match="has 977 KiB free"):
        run(study, directory)
    monkeypatch.undo()
    pretend()
    assert len(run(study, directory)[1]) == 3


@pytest.mark.parametrize("state", ["failed", "timeout"])
def test_a_run_that_failed_on_a_full_disk_stops_the_study_which_names_the_disk(
    tmp_path: Path, pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch, state: PointState
) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend(lambda *_: state)
    calls = iter([10**12, 10**6])
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(runner.shutil, "disk_usage", lambda _: usage(1, 1, next(calls)))
    with pytest.raises(AllpullError, match="has 977 KiB free"):
        run(study, directory)
    assert [one.state for one in read_attempts(directory)] == [state]


def test_a_line_of_the_log_that_was_cut_off_is_left_out(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path, repeats=1), tmp_path / "out"
    pretend()
    run(study, directory)
    with (directory / "attempts.jsonl").open("a") as file:
        file.write('{"point": "abc", "rep')
    assert len(read_attempts(directory)) == 4
    assert read_study(directory).points


def test_a_plan_costs_what_was_measured_and_nothing_else(tmp_path: Path, pretend: Callable[..., None]) -> None:
    study, directory = study_of(tmp_path), tmp_path / "out"
    points = points_of(study)
    assert {point.cost_s for point in plan(study, points, directory).points} == {None}
    first = [point.id for point in points if point.series == {"size": 8}]
    pretend(lambda point, _: "completed" if point.id == first[0] else "failed")
    run(study, directory)
    planned = {point.id: point for point in plan(study, points, directory).points}
    assert (planned[first[0]].cost_s, planned[first[0]].cost_from) == (20.0, "its own 2 runs")
    assert (planned[first[1]].cost_s, planned[first[1]].cost_from) == (
        20.0,
        "the slowest of 1 other size of its series",
    )
    assert [planned[point.id].cost_s for point in points if point.series == {"size": 16}] == [None, None]
    assert plan(study, points, directory).cost_s is None


def test_a_plan_takes_the_cost_of_a_configuration_from_studies_beside_it(
    tmp_path: Path, pretend: Callable[..., None]
) -> None:
    pretend()
    run(study_of(tmp_path, repeats=1), tmp_path / "studies" / "first")
    (tmp_path / "studies" / "broken").mkdir()
    other = study_of(tmp_path, repeats=3, text=SMALL.replace('"small"', '"other"').replace("[8, 16]", "[8, 32]"))
    made = plan(other, points_of(other), tmp_path / "studies" / "other")
    costs = {point.parameters["size"]: (point.cost_s, point.cost_from) for point in made.points}
    assert costs == {8: (30.0, "1 run of the same in 'first'"), 32: (None, None)}
    assert made.cost_s is None


STRANGER = """
import os, sys, time

if sys.argv[1] == "fail":
    raise ValueError("no luck")

import torch
import torch.distributed as dist

mode, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
for _ in range(100):
    for number, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
        if number == steps:
            break
        if mode == "hang" and number == 3:
            open("hanging", "a").close()
            time.sleep(600)
        time.sleep(0.01)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    break
dist.destroy_process_group()
"""
MATRIX = """
[study]
name = "stranger"
seed = 1
steps = 12
warmup_steps = 2
timeout = "10 min"
launcher = "local"
[run]
command = ["train.py", "{mode}", "{steps}"]
[axes]
ranks = [1]
mode = ["good", "fail", "hang"]
"""


def study_run(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "allpull", "study", "run", "study.toml", "--out", "out", "--json", *more]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes(folder: Path) -> Iterator[psutil.Process]:
    """Everything that still runs in ``folder``."""
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder:
                yield process
        except (psutil.Error, OSError):
            continue


def wait_for(condition: Callable[[], object], at_most_s: float = 240.0) -> None:
    end_s = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.torch
def test_a_study_of_a_strangers_script_survives_kill_and_interrupt(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STRANGER)
    (tmp_path / "study.toml").write_text(MATRIX)
    directory = tmp_path / "out"
    study = study_run(tmp_path)
    wait_for((tmp_path / "hanging").exists)
    study.kill()  # in the middle of the run that hangs
    study.communicate()
    wait_for(lambda: not list(processes(tmp_path)))
    before = [one.point for one in read_attempts(directory) if one.state == "completed"]
    runs = sorted((directory / "runs").iterdir())

    (tmp_path / "hanging").unlink()
    study = study_run(tmp_path)
    wait_for((tmp_path / "hanging").exists)
    study.send_signal(signal.SIGINT)
    _, messages = study.communicate(timeout=240)
    assert study.returncode == 130, messages
    assert "the same command goes on" in messages
    wait_for(lambda: not list(processes(tmp_path)))

    study = study_run(tmp_path, "--set", "study.timeout=45 s")
    answer, messages = study.communicate(timeout=400)
    assert study.returncode == 1, messages
    result = json.loads(answer)
    states = {point["parameters"]["mode"]: point["runs"][0] for point in result["points"]}
    assert states["good"]["state"] == "completed"
    assert states["good"]["metrics"]["throughput"]["value"] > 0
    assert states["fail"]["state"] == "failed"
    assert "rank 0" in states["fail"]["reason"]
    assert "exit code 1" in states["fail"]["reason"]
    assert states["hang"]["state"] == "timeout"
    assert "study.timeout = 45 s" in states["hang"]["reason"]
    completed = [one.point for one in read_attempts(directory) if one.state == "completed"]
    assert len(completed) == 1
    assert set(before) <= set(completed)
    assert set(runs) <= set((directory / "runs").iterdir())
    assert not list(processes(tmp_path))


def test_a_plan_notes_what_would_run_nothing_or_leave_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SMALL + "[[exclude]]\nranks = 3\n[[exclude]]\nranks = 2\nsize = 16\n"
    study = study_of(tmp_path, text=text)
    notes = plan(study, points_of(study), tmp_path / "out").notes
    assert "[[exclude]] ranks=3 matches no point" in notes
    assert not any("size=16" in note for note in notes)
    assert sum("train.py" in note for note in notes) == 1
    (tmp_path / "train.py").touch()
    assert not any("train.py" in note for note in plan(study, points_of(study), tmp_path / "out").notes)


def test_a_program_that_only_exits_is_a_row_with_its_last_line(tmp_path: Path) -> None:
    log, directory = tmp_path / "jobs.log", tmp_path / "run"
    log.write_text("a run before: all is well\n")
    begin = log.stat().st_size
    assert _last_line(log, begin) == ""
    with log.open("a") as file:
        file.write("usage: train.py\ntrain.py: error: no such data set\n\n")
    assert _last_line(log, begin) == "train.py: error: no such data set"
    assert _last_line(tmp_path / "none", 0) == ""
    shutil.copytree(KEPT, directory)
    for exit_, reason in (
        (Exit(code=2, rank=0, host="n1"), "exit code 2, no Python exception recorded; its last line: no data"),
        (Exit(code=1, rank=0, host="n1", exception="ValueError: no"), "rank 0 on n1 failed: ValueError: no"),
    ):
        write_record(directory, read_record(directory).model_copy(update={"status": "failed", "exit": exit_}))
        state, why = _outcome(directory, None, printed="no data")
        assert state == "failed"
        assert why is not None
        assert why.endswith(reason)
