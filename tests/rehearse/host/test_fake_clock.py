"""A wrong wall clock: by how much, that the monotonic clock keeps right, and that sleeping still works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from allpull.analyse.clock.host_clocks import align
from allpull.rehearse.host import fake_clock
from allpull.rundir.read.run import read_run

pytestmark = pytest.mark.alone  # two clocks are looked at one after the other, and compared

LIBRARY = fake_clock.library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="no libfaketime here (apt install faketime)")

LOOK = """
import json, os, subprocess, sys, time
from allpull.rehearse.host import fake_clock
wrong = fake_clock.adapt_process(os.environ)
def look(): return [time.time(), time.monotonic()]
first = look()
time.sleep(0.5)
second = look()
if (pid := os.fork()) == 0:
    print(json.dumps(look()), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
other = subprocess.run(["date", "+%s.%N"], capture_output=True, text=True).stdout
command = [sys.executable, "-m", "allpull.rehearse.host.fake_clock", "program"]
told = subprocess.run(command, env=wrong, capture_output=True, text=True)
print(json.dumps([first, second, float(other), float(told.stdout)]))
"""


def look(tmp_path: Path, offset_s: float, drift_ppm: float) -> tuple[list[float], Any]:
    assert LIBRARY is not None
    (tmp_path / "program.py").write_text("import time\ntime.sleep(0.01)\nprint(time.time())\n")
    wrong = fake_clock.environment(LIBRARY, offset_s, drift_ppm, fake_clock.reading()[1])
    variables = {**os.environ, **wrong, "PYTHONPATH": str(tmp_path)}
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
    monkeypatch.setattr(fake_clock.time, "sleep", time.sleep)  # to be as it was after the test
    environ = {"LD_PRELOAD": f"/x/{fake_clock.LIBRARY}:/y/libjemalloc.so", "FAKETIME": "+1"}
    assert fake_clock.adapt_process(environ)["LD_PRELOAD"] == f"/x/{fake_clock.LIBRARY}:/y/libjemalloc.so"
    assert environ == {"LD_PRELOAD": "/y/libjemalloc.so", "FAKETIME": "+1"}
    environ = {"LD_PRELOAD": f"/x/{fake_clock.LIBRARY}"}
    fake_clock.adapt_process(environ)
    assert environ == {}


def test_the_mended_sleep_sleeps():
    began = time.monotonic()
    fake_clock._sleep(0.02)
    fake_clock._sleep(0)
    assert time.monotonic() - began >= 0.02
    with pytest.raises(ValueError):
        fake_clock._sleep(-1)


OFFSET_S, DRIFT_PPM = 5.0, 100.0
TWO_HOSTS = f"""
[cluster]
name = "apart"
hosts = 2
ranks_per_host = 1
link = "1 Gbit/s"

[[faults]]
kind = "clock-offset"
host = 1
offset = "{OFFSET_S} s"
drift_ppm = {DRIFT_PPM}
"""


LOOKS_NS = 2_000  # between looking at one clock and at the other, where nothing came in between
KNOWN_NS = 50_000  # what the truth says of a clock was read on it, on a machine that may be busy


@needs_library
@pytest.mark.root
@pytest.mark.ranks
@pytest.mark.usefixtures("leaves_nothing")
def test_a_training_of_hosts_whose_clocks_are_apart_tells_by_how_much(run_cli, tmp_path):
    """From its own records. The hosts share a kernel, whose monotonic clock tells what each wall clock should show."""
    (tmp_path / "cluster.toml").write_text(TWO_HOSTS)
    where = ("--launcher", "rehearse:cluster.toml", "--out", "runs")
    done = run_cli("train", "digits", "-n", "2", *where, "--set", "train.epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    run = read_run(directory)
    assert set(run.pings["host"]) == {"node2"}
    assert set(run.pings["against"]) == {"node1"}
    wall, kernel = (align(run.pings, ["node1", "node2"], clock=kind) for kind in ("realtime", "monotonic"))
    own_ns, own_real_ns, truth_ns = wrong_by(run.pings)
    wrong_ns = abs(wall.offset_ns("node2", own_real_ns) - truth_ns)
    assert (wrong_ns <= wall.bound_s("node2", own_real_ns) * 1e9 + LOOKS_NS).all()
    assert (abs(kernel.offset_ns("node2", own_ns)) <= kernel.bound_s("node2", own_ns) * 1e9).all()
    assert OFFSET_S <= truth_ns[0] / 1e9 < OFFSET_S + 0.01
    span_ns = own_ns[-1] - own_ns[0]
    assert (truth_ns[-1] - truth_ns[0]) / span_ns == pytest.approx(DRIFT_PPM / 1e6, abs=4 * LOOKS_NS / span_ns)
    (known,) = json.loads((directory / "truth.json").read_text())["moments"]["clocks"]
    expected_ns = known["ahead_ns"] + DRIFT_PPM / 1e6 * (own_ns - known["monotonic_ns"])
    assert (abs(truth_ns - expected_ns) < KNOWN_NS).all()
    moments_s = [
        (int(wall.aligned_ns(header.host, header.clock.realtime_ns)) - header.clock.monotonic_ns) / 1e9
        for header in (run.headers[0], run.headers[1])
    ]
    bound_s = float(wall.bound_s("node2", run.headers[1].clock.realtime_ns))
    assert moments_s[0] == pytest.approx(moments_s[1], abs=bound_s + 60 * DRIFT_PPM / 1e6)  # a rank's own drift


def wrong_by(pings: pl.DataFrame) -> tuple[Any, Any, Any]:
    """When node2 pinged, on its monotonic and its wall clock, and by how much the latter was ahead then; in ns."""
    ways = [pl.col(f"back{kind}") - pl.col(f"sent{kind}") for kind in ("_ns", "_real_ns")]
    stays = [pl.col(f"answered{kind}") - pl.col(f"received{kind}") for kind in ("_ns", "_real_ns")]
    quick = pl.all_horizontal((one - other).abs() < LOOKS_NS for one, other in (ways, stays))
    ahead = (pl.col("sent_real_ns") - pl.col("sent_ns")) - (pl.col("received_real_ns") - pl.col("received_ns"))
    found = pings.filter(quick).sort("sent_ns").select("sent_ns", "sent_real_ns", ahead.alias("ahead"))
    return tuple(column.to_numpy() for column in found)
