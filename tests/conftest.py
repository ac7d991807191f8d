"""What tests share: real trainings by the real command, and skipping what a machine cannot do."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Seconds say nothing on shared machines; and a failure that only one in a thousand runs finds helps nobody in CI.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

# Under nohup, or as a background job of a script, signals are ignored, and whoever a test starts would inherit that. A
# handler that does nothing is as deaf here, and is no longer there in what we start.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# Tests start hundreds of processes. Where Python may keep no bytecode, each compiles all of torch that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where workers share the cores, threads of torch that wait for each other spin: ten times the work for nothing.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


gc.disable()  # while tests are collected there is none, and Python looked through all of torch again and again


def pytest_collection_finish() -> None:
    """Let Python look for garbage again, in what tests make alone: modules and tests stay to the end."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs torch or Chromium where they are missing, and say so."""
    no_torch = importlib.util.find_spec("torch") is None
    no_browser = shutil.which("chromium") is None or shutil.which("chromedriver") is None
    for item in items:
        if no_torch and (item.get_closest_marker("torch") or item.get_closest_marker("ranks")):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        if no_browser and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="chromium and chromedriver are not installed"))
        if item.get_closest_marker("alone") and "mark.alone" not in item.path.read_text("utf-8"):
            raise pytest.UsageError(f"{item.path} does not spell mark.alone, by which the Makefile finds such files")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished `allpull train`."""

    code: int
    out: str
    err: str
    directory: Path

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines(self.directory / f"events/rank-{rank:05d}.jsonl")

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines(self.directory / f"steps/rank-{rank:05d}.jsonl")

    def metric(self, name: str) -> list[float]:
        return [event["value"] for event in self.events() if event["kind"] == "metric" and event["name"] == name]


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file, its header left out."""
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()[1:]]


def allpull(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "allpull", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line."""
    return allpull


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_cli`` in this process, where one of its own shows nothing more: what would be a traceback is raised."""
    from typer.testing import CliRunner  # noqa: PLC0415  most tests need no command line

    from allpull.cli import app  # noqa: PLC0415

    def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name, value in {"COLUMNS": "120", "NO_COLOR": "1", **environment}.items():
                patch.setenv(name, value)
            if cwd is not None:
                patch.chdir(cwd)
            done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A function that fills a folder for all workers: ``made_once(name, fill)``; the first fills it, others wait."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder below that of all
        base = base.parent

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder, is_filled = base / f"once-{name}", base / f"once-{name}.filled"
        with (base / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed
                folder.mkdir()
                fill(folder)
                is_filled.touch()
        return folder

    return made


@dataclass(frozen=True, kw_only=True)
class Demo:
    """An `allpull demo` that ended well, the newcomer's first command; ``folder`` is where it was typed."""

    out: str
    err: str
    folder: Path


@pytest.fixture(scope="session")
def demo(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Callable[..., Demo]:
    """A function that gives the demo, done once for all that look at it; another ``attempt`` does it again."""

    def fill(folder: Path) -> None:
        done = allpull("demo", "--no-open", cwd=folder, COLUMNS="80")
        assert done.returncode == 0, done.stderr
        (folder / "printed.json").write_text(json.dumps({"out": done.stdout, "err": done.stderr}), "utf-8")

    def finished(attempt: int = 0) -> Demo:
        folder = made_once(f"demo-{attempt}", fill)
        return Demo(folder=folder, **json.loads((folder / "printed.json").read_text("utf-8")))

    return finished


@pytest.fixture(scope="session")
def train_digits(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """A function that trains on the digits: ``train_digits(2, "train.epochs=1", …)``."""

    def train(ranks: int, *sets: str, resume: Path | None = None) -> Trained:
        out = tmp_path_factory.mktemp("runs")
        options = [word for text in sets for word in ("--set", text)]
        if resume is not None:
            options += ["--resume", str(resume)]
        done = allpull("train", "digits", "-n", str(ranks), "--out", str(out), *options)
        found = sorted(out.iterdir())
        assert len(found) == 1, done.stderr
        return Trained(code=done.returncode, out=done.stdout, err=done.stderr, directory=found[0])

    return train
