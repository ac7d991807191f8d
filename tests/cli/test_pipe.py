"""What reads our output may leave (``allpull show … | head``), or never was there (``>&-``): that is no error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", [("show",), ("show", "--json"), ("watch", "--once"), ("watch", "--json")])
def test_output_that_nobody_reads_is_no_error(command):
    run = Path(__file__).parents[1] / "runs/v1.0"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "allpull", command[0], str(run), *command[1:]],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("closed", "is_heard"), [(">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)])
@pytest.mark.parametrize("command", ["show RUN", "show RUN --json", "watch --once RUN", "--help"])
def test_a_closed_stream_leads_nowhere(command, closed, is_heard):
    run = Path(__file__).parents[1] / "runs/v1.0"
    line = f"exec {sys.executable} -m allpull {command.replace('RUN', str(run))} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == is_heard


PRINTS = """
import os, subprocess, sys, tempfile
from allpull.__main__ import _open_streams
_open_streams()
file = tempfile.TemporaryFile()
subprocess.run(["sh", "-c", "echo out; echo err >&2; cat"], check=True)
os._exit(os.fstat(file.fileno()).st_size)
"""


def test_what_a_program_prints_to_a_closed_stream_reaches_no_file_of_ours():
    line = f"exec {sys.executable} -c '{PRINTS}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0


@pytest.mark.parametrize("command", ["show RUN", "show RUN --json", "--help"])
def test_a_full_disk_below_stdout_is_named(command):
    run = Path(__file__).parents[1] / "runs/v1.0"
    line = f"exec {sys.executable} -m allpull {command.replace('RUN', str(run))} > /dev/full"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "allpull: No space left on device: standard output\n")
