"""Run a program under the start-up hook alone, as a user's Python would: nothing of allpull is on its path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from allpull.observe.hook_install import install_hook, variables
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile, WatchOptions
from allpull.schema.events import EVENT, Event
from allpull.schema.steps import StepRecord, StepsHeader

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
loader = DataLoader(data, batch_size=16)  # 16, 16, 16, 16, 6
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
"""
"""What most programs of these tests begin with: 5 batches of 70 samples a pass."""

LOOP = """
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""

EVERY_STEP = WatchOptions()
TIMEOUT_S = 300  # of a program; the largest of those of others take a minute on two busy cores


@dataclass(frozen=True, kw_only=True)
class Watched:
    """An observed program that has ended."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def ranks(self) -> list[int]:
        return sorted(int(path.stem[5:]) for path in (self.directory / "steps").glob("*.jsonl"))

    def header(self, rank: int = 0) -> StepsHeader:
        return StepsHeader.model_validate(_lines(self.directory / layout.steps_file(rank))[0])

    def steps(self, rank: int = 0) -> list[StepRecord]:
        return [StepRecord.model_validate(line) for line in _lines(self.directory / layout.steps_file(rank))[1:]]

    def events(self, kind: str, rank: int = 0) -> list[Any]:
        return [event for event in self._events(rank) if event.kind == kind]

    def processes(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.directory / layout.PROCESSES).glob("*.json"))]

    def _events(self, rank: int) -> list[Event]:
        return [EVENT.validate_python(line) for line in _lines(self.directory / layout.events_file(rank))[1:]]


Watch = Callable[..., Watched]
Ended = TypeVar("Ended")

GLOO_ABORTS = "terminate called without an active exception"
"""What a program says that ends without destroying its group, once in hundreds of times, observed or not.

A thread of Gloo's is still there when the interpreter takes its objects down.
"""


@pytest.fixture(autouse=True)
def torch_stays_unwrapped() -> Iterator[None]:
    """What is wrapped is torch of other processes, or is put back: the next test has the same torch."""
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    before = [getattr(tensor, name, None) for name in ("to", "cuda")]
    yield
    assert [getattr(tensor, name, None) for name in ("to", "cuda")] == before or tensor is None


@pytest.fixture
def watched(tmp_path: Path) -> Watch:
    """``watched(source)`` runs a program; ``start`` goes before its file, ``watch`` is what was asked for."""

    def run(source: str, *arguments: str, **how: Any) -> Watched:
        return _unless_gloo_aborts(lambda: once(source, *arguments, **how), lambda done: done.err)

    def once(
        source: str,
        *arguments: str,
        start: tuple[str, ...] = (sys.executable,),
        watch: WatchOptions = EVERY_STEP,
        **env: str,
    ) -> Watched:
        directory = tmp_path / "run"
        shutil.rmtree(directory, ignore_errors=True)
        for folder in layout.FOLDERS:
            (directory / folder).mkdir(parents=True)
        job = directory / layout.SPEC
        JobFile(directory=str(directory), budget=1 << 24, command=(), watch=watch).write(str(job))
        install_hook(str(directory))
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        environment |= variables(str(directory), str(job), environment)
        command = [*start, str(program), *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        return Watched(code=done.returncode, out=done.stdout, err=done.stderr, directory=directory)

    return run


def torchrun(ranks: int) -> tuple[str, ...]:
    """What starts ``ranks`` ranks of a program with torch's own launcher."""
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")


def plain(source: str, tmp_path: Path, *arguments: str, start: tuple[str, ...] = (sys.executable,), **env: str) -> str:
    """What the same program prints when nobody observes it."""
    folder = tmp_path / "plain"
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    command = [*start, str(program), *arguments]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    done = _unless_gloo_aborts(run, lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _unless_gloo_aborts(run: Callable[[], Ended], errors: Callable[[Ended], str]) -> Ended:
    """What ``run()`` gives, begun again at most twice where Gloo ended it; ``errors`` is what a run printed as such."""
    for _ in range(3):
        done = run()
        if GLOO_ABORTS not in errors(done):
            break
    return done


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
