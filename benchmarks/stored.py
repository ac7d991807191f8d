"""Keep the result of a benchmark with what is needed to make it again: command, commit, versions, machine."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allpull.launch.code_versions import package_versions
from allpull.observe.host import describe_host
from allpull.rundir.write import whole_json

ROOT = Path(__file__).resolve().parent.parent
OTHERWISE = "name another file for --keep, or delete this one to measure again"


def keep(path: Path | None, result: dict[str, Any]) -> None:
    """Print ``result``; with ``path`` also store it there as JSON, with command, commit, versions and machine."""
    here = _here()
    stored = {
        "command": shlex.join(["python", _script(), *sys.argv[1:]]),
        "commit": here["commit"],
        "dirty": here["dirty"],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": here["versions"],
        "machine": here["machine"],
        "result": result,
    }
    sys.stdout.write(json.dumps(stored, indent=1) + "\n")
    if path is not None:
        whole_json(str(path), stored)


def commit() -> str:
    """That of the sources."""
    return _git("rev-parse", "HEAD")


def _here() -> dict[str, Any]:
    """What a result depends on beside what was asked: sources, versions, and the machine without its name."""
    machine = describe_host(str(ROOT))
    return {
        "commit": commit(),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")),
        "versions": {"python": platform.python_version(), **package_versions()},
        "machine": {"cpu": machine["cpu"]["model"], "cpus": machine["cpu"]["usable"], "os": machine["os"]},
    }


def _script() -> str:
    script = Path(sys.argv[0]).resolve()
    return str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name)


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


class Kept:
    """Answers of measurements, in a file where one is given.

    The file's first line is an object: what was ``asked`` (all that a name does not say and an answer depends on, the
    device with it), of which script, sources, versions and machine. Then comes a line for each answer, of its name and
    what was said. ``asked`` has to be plain values.

    Raises:
        SystemExit: the file was begun for anything else, or is no such file; it is left as it is.
    """

    def __init__(self, path: Path | None, asked: Mapping[str, Any]) -> None:
        self._path, self._known = path, dict[str, str]()
        self._head = json.dumps({"script": _script(), "asked": dict(asked), **(_here() if path is not None else {})})
        self._begun = path is not None and path.exists() and path.stat().st_size > 0
        if path is not None and self._begun:
            self._known = _answers(path, json.loads(self._head))

    def __call__(self, name: str, measure: Callable[[], str]) -> str:
        """What ``measure`` says, or said before under that name."""
        if name not in self._known:
            self._known[name] = measure()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("" if self._begun else self._head + "\n")
                    file.write(json.dumps([name, self._known[name]]) + "\n")
                self._begun = True
        return self._known[name]


def _answers(path: Path, head: dict[str, Any]) -> dict[str, str]:
    """Those in ``path``, where it was begun with ``head``."""
    try:
        before, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        answers = {str(name): str(said) for name, said in rows}
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not a file of --keep, or cut off ({error}); {OTHERWISE}") from error
    if not isinstance(before, dict):
        raise SystemExit(f"{path}: it does not say what its answers were measured of; {OTHERWISE}")
    was, now = _flat(before), _flat(head)
    differ = [f"{key} was {was.get(key)}, is {now.get(key)}" for key in {**was, **now} if was.get(key) != now.get(key)]
    if differ:
        raise SystemExit(f"{path}: begun for something else: {'; '.join(differ)}; {OTHERWISE}")
    return answers


def _flat(of: Mapping[str, Any]) -> dict[str, str]:
    """Each value as JSON, with the names that lead to it.

    >>> _flat({"asked": {"batch": 8}, "dirty": False})
    {'asked.batch': '8', 'dirty': 'false'}
    """
    flat = dict[str, str]()
    for name, value in of.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": said for inner, said in _flat(value).items()}
        else:
            flat[name] = json.dumps(value)
    return flat
