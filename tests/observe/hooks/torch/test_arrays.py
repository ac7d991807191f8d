"""Batches that a program makes of arrays are input, and torch's functions stay what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import Watch, plain

pytestmark = [pytest.mark.torch, pytest.mark.slow]

GET_BATCH = """
import time
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.arange(4096, dtype=np.uint16).tofile("train.bin")
model = nn.Sequential(nn.Embedding(4096, 8), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def get_batch():
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - 16, (4,))
    rows = []
    for i in starts:
        rows.append(torch.from_numpy(data[i : i + 16].astype(np.int64)))
        time.sleep(0.001)
    return torch.stack(rows)
"""

BEFORE_FORWARD = """
for _ in range(6):
    x = get_batch()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""

BEFORE_BACKWARD = """
x = get_batch()
for _ in range(6):
    loss = model(x).square().mean()
    x = get_batch()  # as nanoGPT does, while an accelerator works
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("loop", [BEFORE_FORWARD, BEFORE_BACKWARD], ids=["before forward", "before backward"])
def test_what_a_program_makes_of_a_memory_map_is_input(watched: Watch, loop: str) -> None:
    run = watched(GET_BATCH + loop)
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 6 * [4]
    assert all((step.input_ns or 0) >= 4e6 for step in steps[1:])
    assert all(step.forward_ns and step.backward_ns and step.optimizer_ns for step in steps)


def test_tensors_of_other_things_are_no_input(watched: Watch) -> None:
    run = watched(
        GET_BATCH
        + """
for _ in range(6):
    optimizer.zero_grad()
    model(torch.tensor([[1, 2], [3, 4]])).square().mean().backward()
    optimizer.step()
    torch.as_tensor(0.5)
"""
    )
    assert [step.input_ns for step in run.steps()] == 6 * [None]


def test_scripted_and_compiled_code_makes_tensors_as_before(watched: Watch, tmp_path: Path) -> None:
    source = """
import torch

@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor([1, 2]) + torch.as_tensor(3)

@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    return x + torch.tensor([1, 2]) + torch.as_tensor(3)

for make in (scripted, compiled):
    print(make(torch.ones(2)))
print(torch._dynamo.utils.counters["stats"])
"""
    run = watched(source)
    assert (run.code, run.out) == (0, plain(source, tmp_path)), run.err


def test_default_devices_and_function_modes_apply_as_before(watched: Watch, tmp_path: Path) -> None:
    """Transformers asks ``torch.tensor`` for the device of its context, and loads garbage where that is wrong."""
    source = """
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(func is torch.tensor, func is torch.as_tensor, func is torch.from_numpy)
        return func(*args, **(kwargs or {})) * 2

def show():
    for make in (torch.tensor, torch.as_tensor):
        print([str(make(given).device) for given in ([], np.ones(2), torch.ones(2))])
    print(torch.from_numpy(np.ones(2)).device)

show()
with torch.device("meta"):
    show()
    with torch.device("cpu"):
        show()
torch.set_default_device("meta")
show()
torch.set_default_device("cpu")
with Doubled(), Doubled():
    print(torch.tensor([1.0]), torch.as_tensor(np.ones(1)), torch.from_numpy(np.ones(1)))
"""
    run = watched(source)
    assert (run.code, run.out) == (0, plain(source, tmp_path)), run.err
    assert "meta" in run.out
