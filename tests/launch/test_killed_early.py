"""An allpull that is killed before a rank has recorded anything: readers know that its job is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from allpull.launch.job import prospect
from allpull.rundir.read.processes import is_gone, this_process
from allpull.rundir.read.unfinished import SILENT_S
from allpull.schema.spec import LaunchSpec, RunSpec

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(this_process() is None, reason="needs Linux's /proc"),
]

KILLED = """
import os, runpy, sys
import {module} as place
place.{name} = lambda *_, **__: os.kill(os.getpid(), 9)
sys.argv = ["allpull", *{arguments!r}]
runpy.run_module("allpull", run_name="__main__")
"""
TRAIN = ("train", "digits", "-n", "2", "--out", "runs")


def killed_in(tmp_path: Path, moment: str, arguments: tuple[str, ...] = TRAIN) -> Path:
    """The run directory of an allpull that was killed, as by kill -9, where it would have called ``moment``."""
    module, _, name = moment.partition(":")
    code = KILLED.format(module=module, name=name, arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    return directory


def state_of(run_cli, directory: Path) -> tuple[str, str, bool]:
    """What `ls` calls the run, the gap of `show` that describes it, and whether `watch` waits for it."""
    listed = run_cli("ls", str(directory.parent))
    assert listed.returncode == 0, listed.stderr
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)
    (text,) = [gap for gap in shown["runs"][0]["gaps"] if "run.json says" in gap and "step records" not in gap]
    watched = json.loads(run_cli("watch", str(directory), "--json").stdout)
    return listed.stdout, text, not watched["is_over"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("allpull.rundir.job_file:whole_json", id="after run.json"),
        pytest.param("allpull.launch.job:write_reserve", id="the directory is complete"),
        pytest.param("allpull.launch.local:check_memory", id="before the plan"),
        pytest.param("allpull.launch.local:check_port", id="before the agent"),
        pytest.param("allpull.launch.local:ProcessTree", id="instead of the agent"),
        pytest.param("allpull.launch.execute:_wait", id="the agent has begun"),
    ],
)
def test_a_job_that_was_killed_before_its_agent_began_is_over(moment: str, run_cli, tmp_path) -> None:
    directory = killed_in(tmp_path, moment)
    assert json.loads((directory / "run.json").read_text())["status"] in {"created", "running"}
    listed, text, waits = state_of(run_cli, directory)
    assert "(killed)" in listed
    assert "the allpull that ran the job is gone" in text
    assert not waits
    assert run_cli("watch", str(directory)).returncode == 0  # it does not wait for ever
    assert run_cli("rm", "--yes", str(directory)).returncode == 0  # nor does it need to be forced
    assert not directory.exists()


@pytest.mark.slow
def test_a_real_kill_while_torch_is_imported(run_cli, tmp_path) -> None:
    command = [sys.executable, "-m", "allpull", *TRAIN]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline, directory = time.monotonic() + 120, None
    while directory is None and time.monotonic() < deadline:
        found = [path.parent for path in tmp_path.glob("runs/*/run.json") if '"running"' in path.read_text()]
        directory = found[0] if found else None
        time.sleep(0.01)
    assert directory is not None
    assert "(running)" in run_cli("ls", str(directory.parent)).stdout
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(family, timeout=60)[1]
    if any((directory / "steps").iterdir()):
        pytest.skip("the ranks had begun: this machine was faster than the kill")
    assert "(killed)" in run_cli("ls", str(directory.parent)).stdout


@pytest.mark.slow
def test_a_command_may_outlive_its_allpull_and_is_over_where_it_never_began(run_cli, tmp_path) -> None:
    """Killed as the command would have been started: only its silence shows that it was not."""
    arguments = ("run", "--out", "runs", "--", sys.executable, "-c", "")
    directory = killed_in(tmp_path, "allpull.launch.command.wrapped:hook_variables", arguments)
    assert "(created)" in run_cli("ls", str(directory.parent)).stdout
    then = time.time() - 2 * SILENT_S
    os.utime(directory / "run.json", (then, then))
    assert "(killed)" in run_cli("ls", str(directory.parent)).stdout


def test_only_a_process_of_this_machine_that_has_ended_is_gone() -> None:
    here = this_process()
    assert here is not None
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    assert not is_gone(here)
    assert is_gone(here.model_copy(update={"start_ticks": here.start_ticks - 1}))  # its number belongs to another
    past = here.model_copy(update={"pid": ended.pid})
    assert is_gone(past)
    assert not is_gone(past.model_copy(update={"boot_id": "another machine's"}))
    assert not is_gone(past.model_copy(update={"pid_namespace": here.pid_namespace + 1}))  # another container's
    assert is_gone(here.model_copy(update={"pid": 2**31 - 1}))
    assert not is_gone(here.model_copy(update={"pid": 2**70}))


@pytest.mark.parametrize(("launcher", "ends_with_it"), [("script", False), ("slurm", False), ("local", True)])
def test_only_a_job_that_ends_with_its_allpull_names_it(launcher: str, ends_with_it: bool, tmp_path) -> None:
    spec = RunSpec(launch=LaunchSpec(launcher=launcher))
    record = prospect(spec, kind="run", program=["true"], command=["allpull"], out=tmp_path).record
    assert (record.launcher_process is not None) == ends_with_it
