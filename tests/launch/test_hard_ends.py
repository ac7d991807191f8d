"""Nothing is left behind by a job that ends hard, and what ended it is said."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from allpull.rundir import layout

pytestmark = pytest.mark.slow

SLOW_DISK = """
import os, threading, time
fsync = os.fsync
def slow(descriptor):
    if threading.current_thread().name == "checkpoint":
        time.sleep(600)
    fsync(descriptor)
os.fsync = slow
"""


@contextmanager
def training(tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A training on two ranks that would take minutes, with a temporary directory of its own."""
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--set", "train.epochs=5000"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "runs")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def agent_of(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    return next(child for child in children if "allpull.observe.agent" in child.cmdline())


def have_begun(tmp_path: Path) -> bool:
    files = list((tmp_path / "runs").glob(f"*/{layout.STEPS}/*"))
    return len(files) == 2 and all(b"\n" in path.read_bytes() for path in files)


def left_in(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith(("allpull", "torchelastic"))]


@pytest.mark.parametrize("apart_s", [0.02, 0.3])
def test_a_second_ctrl_c_while_a_checkpoint_is_written_leaves_no_part_of_it(tmp_path: Path, apart_s: float) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    with training(tmp_path, PYTHONPATH=str(tmp_path)) as process:
        wait_for(lambda: bool(list((tmp_path / "runs").glob(f"*/{layout.CHECKPOINTS}/*.tmp"))))
        process.send_signal(signal.SIGINT)
        time.sleep(apart_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    (run,) = (tmp_path / "runs").iterdir()
    assert not list((run / layout.CHECKPOINTS).iterdir())
    assert json.loads((run / layout.RUN_JSON).read_text())["status"] == "cancelled"
    assert left_in(tmp_path) == []


def test_an_agent_that_is_killed_is_named_and_leaves_nothing_in_the_temporary_directory(tmp_path: Path) -> None:
    with training(tmp_path) as process:
        wait_for(lambda: have_begun(tmp_path))
        assert left_in(tmp_path)
        agent_of(process).kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert "was ended by SIGKILL, as the kernel does when memory runs out" in err
    assert left_in(tmp_path) == []


def test_an_agent_at_the_limit_of_its_memory_says_so_where_the_user_looks(tmp_path: Path) -> None:
    with training(tmp_path) as process:
        wait_for(lambda: have_begun(tmp_path))
        resource.prlimit(agent_of(process).pid, resource.RLIMIT_AS, (1, 1))
        (run,) = (tmp_path / "runs").iterdir()
        header = json.loads((run / layout.steps_file(0)).read_text().partition("\n")[0])
        os.kill(header["pid"], signal.SIGKILL)  # the agent then has to do something
        _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    exit_ = json.loads((run / layout.RUN_JSON).read_text())["exit"]
    assert exit_["reason"] in err
    assert "memory" in exit_["reason"].lower()
    assert left_in(tmp_path) == []
