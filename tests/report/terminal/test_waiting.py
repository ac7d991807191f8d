"""Who waited for whom is said in lines: the culprit, for how long each other waited, and what made it late."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console
from tests.explain.test_detail import made_result
from tests.replay.windows import jitter, late, window

from allpull.replay.window import Window
from allpull.report.terminal.waiting import LEAST, MOST_CULPRITS, waiting


def printed(made: Window, width: int = 100) -> str | None:
    table = waiting(made_result(made))
    if table is None:
        return None
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_late_rank_is_named_with_the_phase_that_made_it_late() -> None:
    made = window(
        4, 30, forward=0.010 + late(4, 30, rank=2, by_s=0.005), backward=0.020 + late(4, 30, rank=2, by_s=0.015)
    )
    text = printed(made)
    assert text is not None
    (line,) = [line for line in text.splitlines() if line.startswith("rank 2")]
    assert "20 ms per step" in line
    assert "backward 75 %, forward 25 %" in line
    assert "rank 0 20 ms" in text


def test_many_late_ranks_are_cut_to_a_few() -> None:
    in_turn = sum(late(64, 63, rank=rank, by_s=0.020) * (np.arange(63) % 9 == rank)[:, None] for rank in range(9))
    text = printed(window(64, 63, forward=0.010 + in_turn, backward=0.020))
    assert text is not None
    assert sum(line.startswith("rank ") for line in text.splitlines()) == MOST_CULPRITS


@pytest.mark.parametrize("width", [30, 60, 120])
def test_no_width_loses_the_culprit(width: int) -> None:
    text = printed(window(4, 30, forward=0.010 + late(4, 30, rank=2, by_s=0.005)), width)
    assert text is not None
    assert "rank 2" in text


def test_waiting_that_does_not_matter_is_left_out() -> None:
    assert printed(window(4, 30, forward=0.010 + LEAST / 10 * jitter(4, 30, sd_s=0.010), backward=0.020)) is None
    assert printed(window(1, 30, forward=0.010)) is None
