"""Real programs with and without `allpull run`: does each print the same, and what was seen of it.

    python benchmarks/scripts.py [--only NAME] [--beside DIR] [--output FILE]

Runs the programs of `tests/scripts`, and some that the tests leave out. Frameworks come from `build/`
(`make frameworks`; `tools/horovod.sh`), or from DIR, which may hold another torch too. What is not installed is
skipped, and said.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import read_run
from stored import ROOT, keep

sys.path.insert(0, str(ROOT))

from tests.scripts.table import LONG, PROGRAMS, SCRIPTS, Script

FRAMEWORKS = ROOT / "build" / "frameworks"
APART = ROOT / "build" / "frameworks-apart"  # what other frameworks would import
TIMEOUT_S = 600
PHASES = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint", "collective", "arrival")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


def main() -> int:
    """Run them all; the exit code is 1 where one prints something else, or was not seen as the table says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run the programs of this name alone")
    parser.add_argument("--beside", type=Path, action="append", default=[], help="where more packages are")
    parser.add_argument("--output", type=Path, help="store the result here")
    options = parser.parse_args()
    beside = [*options.beside, FRAMEWORKS]
    chosen = [script for script in [*SCRIPTS, *LONG] if options.only in (None, script.name)]
    rows = [row_of(script, beside) for script in chosen]
    keep(options.output, {"torch": torch_of(beside), "programs": rows})
    return 0 if all(row.get("as_expected", True) for row in rows) else 1


def row_of(script: Script, beside: list[Path]) -> dict[str, Any]:
    """One program, run twice: what is said of it."""
    said: dict[str, Any] = {"program": script.path.name, "ranks": script.ranks}
    words = ["python" if word == sys.executable else word for word in script.start]
    said["started_by"] = shlex.join([*words, script.path.name, *script.arguments])
    said["started_by"] = said["started_by"].replace(f"{PROGRAMS}/", "")
    if not all(is_installed(name, beside) for name in script.needs):
        beside = [*beside, APART]
    missing = [name for name in script.needs if not is_installed(name, beside)]
    missing += [script.tool] if script.tool is not None and shutil.which(script.tool) is None else []
    if missing:
        return {**said, "skipped": f"not installed: {', '.join(missing)}"}
    with tempfile.TemporaryDirectory() as scratch:
        observe = [sys.executable, "-m", "allpull", "run", "--out", str(Path(scratch) / "runs"), "--"]
        without = run(script, (), Path(scratch) / "plain", beside)
        seen = run(script, observe, Path(scratch) / "seen", beside)
        found = what_was_seen(Path(scratch) / "runs", script)
    same = (without.code, without.out) == (seen.code, seen.out)
    if not same:
        sys.stderr.write(f"{script}: {without.code} and {seen.code}\n{seen.err[-2000:]}\n")
    return {**said, "exit_code": seen.code, "prints_the_same": same, **found, "as_expected": same and found["whole"]}


def run(script: Script, before: Sequence[str], folder: Path, beside: list[Path]) -> Ended:
    """Run a program in an empty ``folder``, with the words ``before`` its command."""
    folder.mkdir()
    path = os.pathsep.join([*map(str, beside), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **script.variables}
    command = [*before, *script.start, str(script.path), *script.arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    shutil.rmtree(folder)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def what_was_seen(runs: Path, script: Script) -> dict[str, Any]:
    """What the records of the one run in ``runs`` hold, and whether that is all that the table asks for."""
    directories = find_runs(runs) if runs.is_dir() else []
    if not directories:
        return {"whole": False}
    data = read_run(directories[0])
    one = data.steps.filter(data.steps["rank"] == 0).sort("step")
    kinds = [kind for log in data.events.values() for kind in log.collective_kinds if log.header.rank == 0]
    return {
        "steps": len(one),
        "samples": sum(samples or 0 for samples in one["samples"]),
        "phases": [name for name in PHASES if f"{name}_ns" in one.columns and one[f"{name}_ns"].drop_nulls().len()],
        "collectives": sorted({f"{kind.op} in {kind.inside or 'the loop'}" for kind in kinds}),
        "spans": dict(Counter(span.name for span in data.events[0].spans)),
        "switched_off": sorted({off.part or "all" for log in data.events.values() for off in log.switched_off}),
        "whole": sorted(data.headers) == list(range(script.ranks))
        and list(one["samples"]) == script.epochs * [*script.samples]
        and list(one["backward_passes"]) == script.epochs * script.passes,
    }


def is_installed(name: str, beside: list[Path]) -> bool:
    """Whether package ``name`` is in this environment or ``beside`` it."""
    return any(importlib.metadata.distributions(name=name, path=[*map(str, beside), *sys.path]))


def torch_of(beside: list[Path]) -> str | None:
    """The version of torch that the programs get."""
    found = importlib.metadata.distributions(name="torch", path=[*map(str, beside), *sys.path])
    return next((one.version for one in found), None)


if __name__ == "__main__":
    sys.exit(main())
