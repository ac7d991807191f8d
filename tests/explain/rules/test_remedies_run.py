"""Every line of a remedy runs as it is written: in a program, in a shell, or where ranks are started."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.explain.rules.test_remedies import NOT_RUN, planted_facts, suspected_by_start

from allpull.explain.candidate import Candidate

__all__ = ["planted_facts", "suspected_by_start"]  # fixtures

PROGRAM = """
import gc, os, sys, tempfile
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader as Loader, DistributedSampler, TensorDataset
import allpull

torch.distributed.init_process_group("gloo")
dataset = test_set = TensorDataset(torch.ones(8, 4))
batch, device, tensor, dim = torch.ones(2, 4), torch.device("cpu"), torch.ones(2, 4), 0


def DataLoader(**options):
    return Loader(dataset, batch_size=2, **options)


def network():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


for line in open(sys.argv[1]).read().splitlines():
    model = network()
    if "fully_shard" in line or "requires_gradient_sync" in line:
        model = fully_shard(model) if "requires_gradient_sync" in line else model
    elif "DistributedDataParallel" not in line and "DDP(" not in line and "compile" not in line:
        model = DDP(model)
    names = globals()
    exec(line + (" model(batch)" if line.endswith(":") else ""), names)
    made = eval(line, names) if line.startswith(("DDP(", "DataLoader(")) else None
    if isinstance(made, Loader):
        assert len(list(made)) == 4
    elif made is not None:
        made(batch).sum().backward()
    elif "no_sync" not in line and "compile" not in line:
        names["model"](batch).sum().backward()
    gc.enable()
    print("ran", line)
torch.distributed.destroy_process_group()
"""
"""A real program that has what the lines name, and runs one after the other, with a backward pass after each."""


@dataclass(frozen=True)
class Lines:
    """All lines of remedies, by their place."""

    by_place: dict[str, list[str]]

    def to_run(self, place: str) -> list[str]:
        """Those of ``place`` that are run here."""
        return [line for line in self.by_place[place] if not line.startswith(tuple(NOT_RUN))]


@pytest.fixture(scope="module")
def lines(suspected_by_start: dict[str, list[tuple[str, list[Candidate]]]]) -> Lines:
    """Of every rule in every way of starting."""
    found: dict[str, set[str]] = {}
    for planted in suspected_by_start.values():
        for _, suspected in planted:
            for one in (line for candidate in suspected for line in candidate.remedy.lines):
                found.setdefault(one.place, set()).add(one.line)
    return Lines({place: sorted(every) for place, every in found.items()})


@pytest.mark.slow
def test_lines_of_a_program_run_in_a_real_one(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "lines").write_text("\n".join(lines.to_run("program")))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "train.py", "lines"]
    ended = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines() == [f"ran {line}" for line in lines.to_run("program")]


@pytest.mark.slow
def test_variables_are_set_in_a_shell_in_which_torch_starts(lines: Lines) -> None:
    every = "\n".join(lines.to_run("environment"))
    python = shlex.quote(sys.executable)
    script = f"set -eu\n{every}\n{python} -c 'import torch; print(torch.ones(2).sum().item())'"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2.0\n"), ended.stderr


@pytest.mark.slow
def test_commands_of_a_shell_run_where_they_are_installed(lines: Lines) -> None:
    others = [line for line in lines.to_run("starter") if line.startswith(("torchrun", "mpirun", "numactl"))]
    assert lines.to_run("starter") == others
    for line in [*lines.to_run("shell"), *others]:
        words = shlex.split(line.replace("PID", str(os.getpid())).replace("iostat -x 1", "iostat -x 1 1"))
        if words[0] == "torchrun":
            words = [sys.executable, "-m", "torch.distributed.run", *words[1:], "--no-python", "true"]
        elif words[0] == "mpirun":
            count = [] if "-np" in words else ["-np", "1"]
            words = [*words, *count, "--oversubscribe", *(["--allow-run-as-root"] * (os.geteuid() == 0)), "true"]
        elif words[0] == "python":
            words = [sys.executable, *words[1:]]
        if shutil.which(words[0]) is None:
            continue  # of the machine's package manager
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        refused = "ermission" in ended.stderr  # py-spy may not look into every process
        assert ended.returncode == 0 or refused, (line, ended.stderr)
