"""What reads our output may leave: ``allpull show … | head`` is no error."""

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
