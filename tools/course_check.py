"""Check a machine for the course of docs/course.md: run every lab once, briefly, and say what fails.

python tools/course_check.py [LAB…] (some minutes); the exit code is 1 if anything failed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from allpull.labs import LABS

LEAST_CPUS = 2
LEAST_MEMORY_BYTES = 3 * 2**30  # four ranks that import torch, and a browser
BRIEF = {
    "sgd": ["-n", "2", "--epochs", "5"],
    "ring": ["-n", "2", "--size", "64KiB"],
    "straggler": ["--fault", "slow-rank"],
    "overlap": ["--buckets", "1,25"],
    "batch": ["--batches", "64,256", "--seeds", "1", "--epochs", "3", "--warmup", "1"],
}
"""What makes a lab brief; a lab that is not here runs as it is."""


def lacks() -> Iterator[str]:
    """What this machine lacks before anything is run."""
    if importlib.util.find_spec("torch") is None:
        yield f"torch is not installed for {sys.executable}"
    if (cpus := len(os.sched_getaffinity(0))) < LEAST_CPUS:
        yield f"{cpus} CPU; the labs need {LEAST_CPUS}"
    if (memory := psutil.virtual_memory().available) < LEAST_MEMORY_BYTES:
        yield f"{memory / 2**30:.1f} GiB of memory are free; the labs need {LEAST_MEMORY_BYTES / 2**30:.0f}"


def last_line(name: str, folder: Path) -> str | None:
    """Run a lab; the last line that it printed if it failed."""
    page = folder / f"{name}.html"
    options = [*BRIEF.get(name, []), "--no-open", "--output", str(page)]
    command = [sys.executable, "-m", "allpull", "lab", name, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0 and page.exists():
        return None
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]


def main() -> int:
    """Print one line per check; 1 if anything failed."""
    failures = list(lacks())
    for failure in failures:
        print(f"failed  {failure}")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or LABS:
            begin = time.monotonic()
            failure = last_line(name, Path(folder))
            took = f"{time.monotonic() - begin:.0f} s"
            print(
                f"{'failed' if failure else 'ok':6}  allpull lab {name:10} {took:>6}  {failure or ''}".rstrip(),
                flush=True,
            )
            failures += [failure] if failure else []
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
