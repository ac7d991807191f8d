"""Two profilers cannot run at once: the program's own comes first, whenever it makes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import TRAINING, Watch, plain

from allpull.rundir.job_file import WatchOptions

pytestmark = pytest.mark.torch

PROFILED = """
from torch.profiler import ProfilerActivity, profile, schedule
seen = []

def profiler(wait, warmup):
    when = schedule(wait=wait, warmup=warmup, active=2, repeat=1)
    ready = lambda done: seen.append(sum(event.count for event in done.key_averages() if "addmm" in event.key))
    return profile(activities=[ProfilerActivity.CPU], schedule=when, on_trace_ready=ready)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        yield
"""

THREE_IN_SIX = WatchOptions(trace_every=6, trace_steps=3, trace_first=3)


@pytest.mark.parametrize(
    ("use", "windows"),
    [
        pytest.param("with profiler(2, 2) as own:\n    for _ in train(14): own.step()\n", [], marks=pytest.mark.slow),
        pytest.param(
            "for _ in train(4): pass\nwith profiler(0, 1) as own:\n    for _ in train(10): own.step()\n",
            [(3, 1)],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "for _ in train(7): pass\nwith profiler(1, 0) as own:\n    for _ in train(7): own.step()\n",
            [(3, 3)],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_windows_make_way_for_a_profiler_of_the_programs_own(
    watched: Watch, tmp_path: Path, use: str, windows: list[tuple[int, int]]
) -> None:
    source = TRAINING + PROFILED + use + "print(seen)\n"
    run = watched(source, watch=THREE_IN_SIX)
    assert (run.code, run.out) == (0, plain(source, tmp_path)), run.err
    assert "allpull" not in run.err
    assert [(window.first_step, window.steps) for window in run.events("trace")] == windows
    assert [event.part for event in run.events("switched_off")] == ["windows"]
    assert len(run.steps()) == 14
