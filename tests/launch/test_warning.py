"""SIGUSR1 to the command line: passed on where that is possible, and the end of the job where not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.launch.execute import execute
from allpull.launch.host_endings import HostEnding
from allpull.launch.job import WARNED, Job, prepare
from allpull.launch.running import Running
from allpull.schema.spec import LaunchSpec, RunSpec, SlurmSpec


class Fake(Running):
    """A launcher, and its job, which runs until it is warned or cancelled; ``calls`` are those two."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def plan(self, job: Job) -> str:
        return "#!/bin/sh\n"

    def submit(self, job: Job) -> Fake:
        return self

    def poll(self) -> list[HostEnding] | None:
        return [HostEnding(host="h", code=WARNED)] if "warn" in self.calls else None

    def cancel(self, grace_s: float) -> None:
        self.calls.append("cancel")


class WithWarning(Fake):
    def warn(self) -> bool:
        self.calls.append("warn")
        return True


class WithRuns(WithWarning):
    """Of its runs the second fails, then the first ends at the warning, then the third ends well."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[int, list[HostEnding]] = {}

    def poll(self) -> list[HostEnding] | None:
        place, code = ((1, 9), (0, WARNED), (2, 0))[len(self._ended)]
        if place == 1 or "warn" in self.calls:
            self._ended[place] = [HostEnding(host="h", code=code)]
        return [] if len(self._ended) == 3 else None

    def ended_runs(self) -> dict[int, list[HostEnding]]:
        return self._ended


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return prepare(RunSpec(), kind="train", module="m", command=["m"], out=tmp_path)


def once() -> Callable[[], None]:
    """A look that sends SIGUSR1 to us the first time."""
    looks = iter([True])

    def look() -> None:
        if next(looks, False):
            os.kill(os.getpid(), signal.SIGUSR1)

    return look


def test_it_is_passed_on_once_and_the_record_says_how_to_go_on(job):
    (job.directory / "checkpoints").mkdir()
    for step in (3, 12):
        (job.directory / f"checkpoints/step-{step:010d}.pt").touch()
    launcher = WithWarning()
    said: list[str] = []
    record = execute(job, launcher, once(), said.append)
    assert launcher.calls == ["warn"]
    assert (record.status, record.exit.code, record.exit.rank) == ("cancelled", WARNED, None)
    assert record.exit.reason == (
        f"stopped at a warning (SIGUSR1); --resume {job.directory} continues from step-0000000012.pt"
    )
    assert said == [record.exit.reason]


def test_where_it_cannot_be_passed_on_the_job_is_ended(job):
    launcher = Fake()
    record = execute(job, launcher, once())
    assert launcher.calls == ["cancel"]
    assert (record.status, record.exit.code) == ("cancelled", WARNED)


class Stuck(Fake):
    """Its processes cannot be ended."""

    def cancel(self, grace_s: float) -> None:
        raise OSError(22, "Invalid argument")


def fail() -> None:
    raise ValueError("cannot look")


@pytest.mark.parametrize(("look", "status"), [(once(), "cancelled"), (fail, "failed")])
def test_the_record_is_closed_even_where_processes_cannot_be_ended(job, look, status):
    with pytest.raises(OSError, match="Invalid argument"):
        execute(job, Stuck(), look)
    assert json.loads((job.directory / "run.json").read_text())["status"] == status


def test_the_handler_of_before_is_put_back(job):
    before = signal.getsignal(signal.SIGUSR1)
    execute(job, WithWarning(), once())
    assert signal.getsignal(signal.SIGUSR1) is before


def test_each_run_of_an_array_has_its_own_end_and_the_first_by_index_speaks(tmp_path):
    spec = RunSpec(launch=LaunchSpec(launcher="slurm"), slurm=SlurmSpec(array="0-2"))
    job = prepare(spec, kind="train", module="m", command=["m"], out=tmp_path)
    said: list[str] = []
    record = execute(job, WithRuns(), once(), said.append)
    ends = [json.loads((run.directory / "run.json").read_text()) for run in job.tasks]
    assert [(end["status"], end["exit"]["code"]) for end in ends] == [
        ("cancelled", WARNED),
        ("failed", 9),
        ("completed", 0),
    ]
    assert record.id == job.tasks[0].directory.name
    assert [line.split(": ")[0] for line in said] == [str(job.tasks[place].directory) for place in (1, 0, 2)]
    assert all("nonce" not in json.loads(run.file.read_text()) for run in job.tasks)


def test_what_a_killed_rank_left_half_written_is_removed_when_the_run_is_closed(job):
    folder = job.directory / "checkpoints"
    folder.mkdir()
    for name in ("step-0000000003.pt", "step-0000000012.pt.0123456789abcdef.tmp"):
        (folder / name).touch()
    execute(job, WithWarning(), once())
    assert [path.name for path in folder.iterdir()] == ["step-0000000003.pt"]
