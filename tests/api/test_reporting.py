"""A report works out nothing twice, and says what `show` and `explain` say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.api import reporting
from allpull.explain.explanation import explain
from allpull.replay.recording.build import record_window
from allpull.rundir.read.run import read_run

RUN = Path(__file__).resolve().parents[1] / "runs" / "v1.6"


def test_the_window_of_a_run_is_recorded_once_and_is_that_of_show_and_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_run(Path(shutil.copytree(RUN, tmp_path / "run")))
    recorded: list[AlignedRun] = []
    monkeypatch.setattr(reporting, "record_window", lambda run: recorded.append(run) or record_window(run))
    aligned = AlignedRun(data)
    made = reporting.with_explanation([aligned])
    assert recorded == [aligned]
    apart = AlignedRun(data)
    assert made.explained[0].result == explain(apart).result
    assert made.show.runs[0].pop is not None
    assert made.show.runs[0].pop == reporting.scaling_report([apart]).show.runs[0].pop
