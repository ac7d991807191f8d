"""Each command reads, aligns and matches a run once, and parses its profiler traces once."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from allpull.analyse.clock.shared_clock import shared_clock
from allpull.analyse.collectives.matching import match
from allpull.analyse.collectives.traced_buckets import bucket_windows
from allpull.analyse.steps.device import on_device
from allpull.analyse.steps.steady import steady_steps
from allpull.cli import main
from allpull.rundir.read.run import read_run

KEPT = Path(__file__).resolve().parents[1] / "runs"
ONCE = (read_run, shared_clock, on_device, match, steady_steps, bucket_windows)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``calls(["show", …])``: how often the functions ``ONCE`` ran in this command, whoever called them."""

    def count(arguments: list[str]) -> Counter[str]:
        names: dict[CodeType, str] = {one.__code__: one.__name__ for one in ONCE}
        counts: Counter[str] = Counter()

        def look(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code in names:
                counts[names[frame.f_code]] += 1

        monkeypatch.setattr(sys, "argv", ["allpull", *arguments])
        sys.setprofile(look)
        try:
            code = main()
        except SystemExit as done:
            code = done.code
        finally:
            sys.setprofile(None)
        assert not code
        return counts

    return count


@pytest.mark.parametrize("verb", ["show", "perfetto", "explain", "report"])
def test_a_run_is_read_and_aligned_once(calls: Any, tmp_path: Path, verb: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(KEPT / "v1.3", run)
    options = {
        "show": ["show", str(run)],
        "perfetto": ["show", str(run), "--perfetto", str(tmp_path / "all.json")],
        "explain": ["explain", str(run)],
        "report": ["report", str(run), "-o", str(tmp_path / "report.html")],
    }
    assert dict(calls(options[verb])) == {one.__name__: 1 for one in ONCE}
