"""The solutions of "write it with a library" walk the path of one rank that takes the whole batch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from allpull.labs import line, programs

PROGRAMS = Path(programs.__file__).parent
EPOCHS, RANK_BATCH, RANKS = 2, 50, 2


@pytest.fixture
def whole_batch(tmp_path: Path) -> line.Floats:
    """Writes the data of the programs; the path of one rank with the batch of both."""
    points = line.samples(1000, 0)
    orders = np.stack([line.order(1000, 0, epoch) for epoch in range(EPOCHS)])
    np.savez(tmp_path / "data.npz", x=points.x, y=points.y, start=np.array(line.START), orders=orders)
    return line.descend(points, batch=RANKS * RANK_BATCH, epochs=EPOCHS, rate=0.5, seed=0)


LAUNCHERS = {
    "sgd_ddp.py": ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)],
    "sgd_horovod.py": ["horovod.runner.launch", "--gloo", "-np", str(RANKS), sys.executable],
}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.parametrize("program", LAUNCHERS)
def test_two_ranks_walk_the_path_of_the_whole_batch(program: str, tmp_path: Path, whole_batch: line.Floats) -> None:
    if "horovod" in program:
        pytest.importorskip("horovod.torch", reason="Horovod is not installed")
    options = ["data.npz", ".", "--batch", str(RANK_BATCH), "--epochs", str(EPOCHS)]
    command = [sys.executable, "-m", *LAUNCHERS[program], str(PROGRAMS / program), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(RANKS):
        path = json.loads((tmp_path / f"rank-{rank}.json").read_text())["path"]
        assert np.array(path) == pytest.approx(whole_batch, abs=1e-12)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("horovod") is not None, reason="Horovod is installed")
def test_a_missing_horovod_is_one_sentence() -> None:
    command = [sys.executable, str(PROGRAMS / "sgd_horovod.py"), "data.npz", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Horovod is not installed for this Python; sgd_ddp.py is the same training with torch alone"
    ]
