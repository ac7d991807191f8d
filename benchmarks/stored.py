"""Keep the result of a benchmark with what is needed to make it again: command, commit, versions, machine."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
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
