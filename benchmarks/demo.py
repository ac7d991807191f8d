"""What `allpull demo` prints, and the scaling table behind it: the output that the documentation shows.

    python benchmarks/demo.py [--output FILE]

The documentation prints these lines from the stored result, so that no number in it was typed by hand. The wall time
tells how long a newcomer waits; it is no measurement of allpull.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stored import keep

PLAIN = {"COLUMNS": "80", "NO_COLOR": "1"}


def allpull(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``folder`` as somebody without a terminal does; where it fails, so do we."""
    command = [sys.executable, "-m", "allpull", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **PLAIN}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}{shlex.join(command)} ended with {done.returncode}")
    return done


def lines(text: str, folder: Path) -> list[str]:
    """The lines of ``text``, paths relative to ``folder``."""
    return [line.rstrip() for line in text.replace(f"{folder.resolve()}/", "").splitlines()]


def main() -> None:
    """Run the demo and print or keep what it said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = time.perf_counter()
        done = allpull(folder, "demo", "--no-open")
        wall_s = time.perf_counter() - start
        shown = json.loads(allpull(folder, "show", "runs", "--json").stdout)
        result = {
            "stderr": lines(done.stderr, folder),
            "stdout": lines(done.stdout, folder),
            "show": shown,
            "wall_s": round(wall_s, 1),
        }
    keep(options.output, result)


if __name__ == "__main__":
    main()
