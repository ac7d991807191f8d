"""The page of a running job fits its terminal, adds up, and is text whatever other programs call themselves."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from report_samples import HOSTILE
from rich.cells import cell_len
from rich.console import Console

from allpull.report.terminal.watch import MOST_RANKS, page
from allpull.schema.base import tag
from allpull.schema.results import RankWatched, Trouble, WatchResult


def shown(result: WatchResult, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(page(result))
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]


def rank(number: int, **changes: Any) -> RankWatched:
    usual: dict[str, Any] = {"rank": number, "host": "node1", "pid": 7, "alive": True, "ended": False, "steps_done": 20}
    usual |= {"step_s": 0.1, "own_s": 0.06, "phase": "forward", "operation": None, "phase_for_s": 0.2}
    return RankWatched(**{**usual, **changes})


def job(**changes: Any) -> WatchResult:
    usual: dict[str, Any] = {"schema": tag("watch"), "run": "r", "status": "running", "ranks_expected": 2}
    usual |= {"steps_done": 20, "steps_total": None, "epoch": 0, "left_s": None, "step_s": 0.1, "samples_per_s": 160.0}
    usual |= {"phases": {"forward": 0.05, "collective": 0.03, "other": 0.12}, "ranks": [rank(0), rank(1)]}
    return WatchResult.model_validate({**usual, "troubles": [], **changes})


def test_a_healthy_job():
    text = shown(job())
    assert (
        "r: running\nstep 20 · epoch 1 · 160 samples/s · 100 ms per step (median)\nno rank is slow, dead or hung\n"
        in text
    )
    assert "last steps: forward 25 %, blocked in collectives 15 %, other 60 %" in text
    assert "left" not in text


def test_shares_add_up_to_the_whole_though_the_median_step_is_shorter():
    text = shown(job(step_s=0.001, phases={"backward": 0.5, "forward": 0.5}))
    assert "backward 50 %, forward 50 %" in text


def test_who_is_in_trouble_comes_first_with_its_stack():
    words = "rank 1 (node1) hangs in forward for 9 s"
    trouble = Trouble(kind="hung", rank=1, host="node1", pid=7, words=words, stack=["outer (a.py:9)", "inner (a.py:2)"])
    text = shown(job(troubles=[trouble], ranks=[rank(0), rank(1, phase_for_s=9.0)]))
    assert f"{words}\n    outer (a.py:9)\n    inner (a.py:2)\n" in text
    assert text.index("   1  node1") < text.index("   0  node1")
    assert "forward, for 9 s" in text
    assert "no rank is" not in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ended": True, "alive": False}, "has ended"),
        ({"alive": False}, "is dead"),
        ({"operation": "barrier", "phase": "collective"}, "barrier"),
        ({"phase": None}, "between phases"),
        ({"phase": None, "phase_for_s": None}, "between phases"),
    ],
)
def test_what_a_rank_does_now(changes: dict[str, Any], says: str):
    assert shown(job(ranks=[rank(0, **changes)])).rstrip().endswith(says)


def test_progress_is_shown_where_the_end_is_known():
    text = shown(job(steps_total=80, left_s=6.0))
    assert "step 20 of 80" in text
    assert "6 s left" in text


def test_a_job_that_has_recorded_nothing_says_so():
    assert shown(job(ranks=[], phases={}, step_s=None, samples_per_s=None, epoch=None)).endswith("anything yet\n")


@pytest.mark.parametrize("width", [30, 60, 100])
def test_names_are_text_and_no_line_is_too_wide(width: int):
    trouble = Trouble(kind="slow", rank=0, host=HOSTILE, pid=7, words=HOSTILE, stack=[HOSTILE])
    hostile = [rank(at, host=HOSTILE, phase=HOSTILE) for at in range(2 * MOST_RANKS)]
    text = shown(job(run=HOSTILE, troubles=[trouble], ranks=hostile), width)
    assert "\x1b" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width
