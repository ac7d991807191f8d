"""A wrong wall clock: by how much, that the monotonic clock keeps right, and that sleeping still works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from allpull.rehearse import clock

LIBRARY = clock.library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="no libfaketime here (apt install faketime)")

LOOK = """
import json, os, subprocess, sys, time
from allpull.rehearse import clock
wrong = clock.settle_in(os.environ)
def look(): return [time.time(), time.monotonic()]
first = look()
time.sleep(0.5)
second = look()
if (pid := os.fork()) == 0:
    print(json.dumps(look()), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
other = subprocess.run(["date", "+%s.%N"], capture_output=True, text=True).stdout
command = [sys.executable, "-m", "allpull.rehearse.clock", "program"]
told = subprocess.run(command, env=wrong, capture_output=True, text=True)
print(json.dumps([first, second, float(other), float(told.stdout)]))
"""


def look(tmp_path: Path, offset_s: float, drift_ppm: float) -> tuple[list[float], Any]:
    assert LIBRARY is not None
    (tmp_path / "program.py").write_text("import time\ntime.sleep(0.01)\nprint(time.time())\n")
    variables = {**os.environ, **clock.environment(LIBRARY, offset_s, drift_ppm), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    forked, rest = map(json.loads, done.stdout.splitlines())
    return forked, rest


def ahead(wall_s: float, monotonic_s: float) -> float:
    """How far a wall clock is ahead of ours, which read the same monotonic clock."""
    return wall_s - monotonic_s - (time.time() - time.monotonic())


@needs_library
@pytest.mark.parametrize("offset_s", [5.25, -3.0])
def test_the_wall_clock_is_off_and_the_monotonic_clock_is_not(tmp_path, offset_s):
    forked, (first, second, _, told) = look(tmp_path, offset_s, 0.0)
    for wall_s, monotonic_s in (first, second, forked):
        assert ahead(wall_s, monotonic_s) == pytest.approx(offset_s, abs=0.01)
    assert second[1] - first[1] >= 0.5
    assert told - time.time() == pytest.approx(offset_s, abs=5)
    assert told - second[0] > 0


@needs_library
def test_the_wall_clock_drifts_and_goes_on_to_drift_in_a_forked_child(tmp_path):
    forked, (first, second, _, _) = look(tmp_path, 0.0, 9000.0)
    gained = [ahead(*pair) for pair in (first, second, forked)]
    assert gained[1] - gained[0] == pytest.approx(0.009 * (second[1] - first[1]), abs=0.002)
    assert gained[2] >= gained[1] - 0.002


@needs_library
def test_programs_that_it_executes_have_the_right_clock(tmp_path):
    """Nobody mends their sleep."""
    _, (_, _, other, _) = look(tmp_path, 1000.0, 0.0)
    assert abs(other - time.time()) < 60


def test_what_others_preload_stays(monkeypatch):
    monkeypatch.setattr(clock.time, "sleep", time.sleep)  # to be as it was after the test
    environ = {"LD_PRELOAD": f"/x/{clock.LIBRARY}:/y/libjemalloc.so", "FAKETIME": "+1"}
    assert clock.settle_in(environ)["LD_PRELOAD"] == f"/x/{clock.LIBRARY}:/y/libjemalloc.so"
    assert environ == {"LD_PRELOAD": "/y/libjemalloc.so", "FAKETIME": "+1"}
    environ = {"LD_PRELOAD": f"/x/{clock.LIBRARY}"}
    clock.settle_in(environ)
    assert environ == {}


def test_the_mended_sleep_sleeps():
    began = time.monotonic()
    clock._sleep(0.02)
    clock._sleep(0)
    assert time.monotonic() - began >= 0.02
    with pytest.raises(ValueError):
        clock._sleep(-1)
