"""How a command ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, gc, sys
atexit.register(lambda: sys.stderr.write(str(gc.get_freeze_count())))  # handlers run in reverse: this one is last
from allpull.cli import main
sys.argv = ["allpull", "--version"]
main()
"""


def test_python_does_not_search_for_garbage_at_exit():
    """That search is a fifth of what a small command takes."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ended.stderr) > 1000


INTERRUPTED = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from allpull.__main__ import main
main()
"""


def test_an_interrupt_while_verbs_are_imported_is_one_line():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


EXHAUSTED = """
import sys

def exhaust(*_, **__):
    raise MemoryError

import allpull.api.shown as shown
shown.shown = exhaust
from allpull.cli import main
sys.argv = ["allpull", "show", "."]
main()
"""


def test_exhausted_memory_is_named():
    ended = subprocess.run([sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("allpull: out of memory\nhint: raise the limit")


RUN = Path(__file__).parents[1] / "runs/v1.0"
NOBODY = 65534


@pytest.mark.parametrize("processes", [2, 3, 8])
def test_a_refused_thread_is_named_and_no_file_is_blamed(processes):
    """``ulimit -u``, which does not hold for root. Polars panics at another place each time."""
    if os.geteuid() or subprocess.run([sys.executable, "-V"], user=NOBODY, check=False).returncode:
        pytest.skip("needs root, and a Python that all may execute")
    ended = subprocess.run(
        ["prlimit", f"--nproc={processes}", sys.executable, "-m", "allpull", "show", str(RUN)],
        **dict.fromkeys(("user", "group"), NOBODY),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "allpull: the system refused another thread or process\n" in ended.stderr
    assert "hint: end other programs" in ended.stderr  # jemalloc may write a line of its own between the two
    assert "cannot be read as columns" not in ended.stderr


def test_a_folder_that_was_removed_below_us_is_named(tmp_path):
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m allpull run -- true"
    ended = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "allpull: the current folder was removed\nhint: go to another one\n"
