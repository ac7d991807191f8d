"""Keep the result of a benchmark with what is needed to make it again: command, commit, versions, machine."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allpull.launch.versions import package_versions
from allpull.observe.host import describe_host
from allpull.rundir.write import whole_json

ROOT = Path(__file__).resolve().parent.parent


def keep(path: Path | None, result: dict[str, Any]) -> None:
    """Print ``result``; with ``path`` also store it there as JSON, with command, commit, versions and machine."""
    machine = describe_host(str(ROOT))
    script = Path(sys.argv[0]).resolve()
    place = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    stored = {
        "command": shlex.join(["python", str(place), *sys.argv[1:]]),
        "commit": commit(),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {"python": platform.python_version(), **package_versions()},
        "machine": {"cpu": machine["cpu"]["model"], "cpus": machine["cpu"]["usable"], "os": machine["os"]},
        "result": result,
    }
    sys.stdout.write(json.dumps(stored, indent=1) + "\n")
    if path is not None:
        whole_json(str(path), stored)


def commit() -> str:
    """That of the sources."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


class Kept:
    """Answers of measurements, in a file where one is given: a line each, of its name and what it said."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._known = path, dict[str, str]()
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self._known = dict(map(json.loads, lines))

    def __call__(self, name: str, measure: Callable[[], str]) -> str:
        """What ``measure`` says, or said before under that name."""
        if name not in self._known:
            self._known[name] = measure()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, self._known[name]]) + "\n")
        return self._known[name]
