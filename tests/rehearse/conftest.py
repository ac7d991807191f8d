"""What tests of the virtual cluster share: skipping where there are no namespaces, and that nothing is left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare
from allpull.rehearse.host import ownership
from allpull.rehearse.launcher import Rehearse
from allpull.schema.run import RunRecord
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec


def why_not() -> str | None:
    """Why network namespaces cannot be made here; None: they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)} here (apt install iproute2)"
    made = [subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0
            for options in (["--net", "--mount"], ["--user", "--map-root-user", "--net", "--mount"])]  # fmt: skip
    return None if any(made) else "neither root nor a user namespace can be had"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not() if any(item.get_closest_marker("root") for item in items) else None
    for item in items:
        if reason and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason=reason))


def links() -> set[str]:
    """Network interfaces and named network namespaces of the machine itself."""
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split(":")[1].strip().split("@")[0] for line in shown.splitlines()} | set(named.split())


def owned_below(folder: Path) -> list[str]:
    """Ids of virtual clusters whose records go below ``folder``, as far as their owners are written down."""
    found = []
    for path in ownership.folder().glob("*.json") if ownership.folder().exists() else ():
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # someone else's, gone between two lines
        if Path(record.get("directory", "/")).is_relative_to(folder):
            found.append(record["id"])
    return found


@pytest.fixture
def leaves_nothing(tmp_path: Path) -> Iterator[None]:
    """After the test no owner, interface or namespace of ours is left."""
    yield
    assert owned_below(tmp_path.resolve()) == []
    ours = {"core", *(f"{kind}{number}" for kind in ("h", "up", "down", "switch") for number in range(4))}
    assert links() & ours == set()


@pytest.fixture
def rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunRecord, Job]]:
    """A function (cluster file's text, program's text) → final record and job, after a rehearsal of the program.

    ``more`` are files beside the program, where every process of the rehearsal finds modules.
    """

    def run(
        cluster: str, program: str, *, counters: bool = False, more: Mapping[str, str] | None = None
    ) -> tuple[RunRecord, Job]:
        for name, text in {"cluster.toml": cluster, "program.py": program, **(more or {})}.items():
            (tmp_path / name).write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        launcher = Rehearse(tmp_path / "cluster.toml")
        spec = RunSpec(
            name="program",
            launch=LaunchSpec(ranks=launcher.ranks, grace_s=1),
            observe=ObserveSpec(counters=counters, counter_interval_s=0.2),
        )
        job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")
        return execute(job, launcher, lambda: None), job

    return run
