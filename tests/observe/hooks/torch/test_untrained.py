"""Networks that no optimizer trains: what a program asks them is part of its steps, and no evaluation."""

from __future__ import annotations

import pytest
from tests.observe.hooks.conftest import TRAINING, Watch

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SLEPT_NS = 8_000_000
LATE = f"""
import time

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 64)

    def forward(self, x):
        time.sleep({SLEPT_NS / 1e9})
        return self.linear(x)

teacher = nn.Sequential(Late(), nn.Linear(64, 3))
"""
ASKS = """
with torch.no_grad():
    target = teacher(x).softmax(1)
loss = nn.functional.cross_entropy(model(x), target)
"""
MEASURES = """
loss = teacher(torch.cat([model(x), model(x), x[:, :2]], 1)).square().mean()
"""
IN_PARTS = """
target = x
with torch.no_grad():
    for part in teacher:
        target = part(target)
loss = nn.functional.cross_entropy(model(x), target.softmax(1))
"""


def _train(loss: str, each_epoch: str = "", after_epoch: str = "") -> str:
    indent = "\n        "
    return f"""
for epoch in range(8):
    {each_epoch}
    for x, y in loader:
        optimizer.zero_grad(){loss.replace(chr(10), indent)}
        loss.backward()
        optimizer.step()
    {after_epoch}
"""


@pytest.mark.parametrize(
    ("loss", "before", "after"),
    [
        (ASKS, "teacher.eval()", ""),
        (ASKS, "", "teacher.requires_grad_(False)"),
        (MEASURES, "teacher.requires_grad_(False)", ""),
        (MEASURES, "", "teacher.eval()"),
        (IN_PARTS, "teacher.eval()", "teacher.requires_grad_(False)"),
    ],
)
def test_what_a_network_computes_that_no_optimizer_trains_is_forward(
    watched: Watch, loss: str, before: str, after: str
) -> None:
    """Frozen before or after the optimizer was made; the loop is steady, so that most calls are only noted."""
    made = TRAINING.replace("optimizer =", f"{LATE}\n{before}\noptimizer =")
    run = watched(made + f"\n{after}\n" + _train(loss))
    assert run.err == ""
    assert [step.samples for step in run.steps()] == 8 * [16, 16, 16, 16, 6]
    assert not run.events("span")
    assert all(step.forward_ns > SLEPT_NS for step in run.steps())


def test_a_copy_that_is_put_into_evaluation_mode_in_each_epoch_is_evaluated_where_it_runs_on_another_loader(
    watched: Watch,
) -> None:
    """The mean teacher: it answers in each step, and is tested after each second epoch."""
    run = watched(
        TRAINING
        + LATE
        + """
model = nn.Sequential(Late(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + "teacher.load_state_dict(model.state_dict())\n"
        + _train(
            ASKS,
            "teacher.eval()",
            """if epoch % 2:
        teacher.eval()
        with torch.no_grad():
            for a, b in DataLoader(data, batch_size=35):
                teacher(a)""",
        )
    )
    assert run.err == ""
    assert [step.samples for step in run.steps()] == 8 * [16, 16, 16, 16, 6]
    assert [span.step for span in run.events("span")] == [10, 20, 30, 40]
    steps = [step for step in run.steps()[1:] if not step.evaluation_ns]  # which lasts until the network learns
    assert all(step.forward_ns > 2 * SLEPT_NS for step in steps)


def test_a_frozen_network_in_a_data_set_is_part_of_its_input(watched: Watch) -> None:
    run = watched(
        TRAINING
        + LATE
        + """
teacher.eval()

class Features(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        with torch.no_grad():
            return torch.ones(8) + teacher(torch.ones(8)).mean(), 0

loader = DataLoader(Features(), batch_size=4)
"""
        + _train("\nloss = nn.functional.cross_entropy(model(x), y)\n").replace("range(8)", "range(2)")
    )
    assert run.err == ""
    assert all(step.input_ns > 4 * SLEPT_NS > step.forward_ns for step in run.steps())
    assert [step.samples for step in run.steps()] == 20 * [4]


@pytest.mark.parametrize("loss", [ASKS, MEASURES])
def test_without_a_loader_it_is_part_of_the_step_too(watched: Watch, loss: str) -> None:
    """As in loops that make their batches by hand; nothing is evaluated, and no rollout is collected."""
    indent = "\n    "
    run = watched(
        TRAINING
        + LATE
        + f"""
teacher.eval()
for step in range(24):
    x = torch.randn(16, 8){loss.replace(chr(10), indent)}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert run.err == ""
    assert [step.samples for step in run.steps()] == 24 * [16]
    assert not run.events("span")
    assert not any(step.evaluation_ns for step in run.steps())
    assert all(step.forward_ns > SLEPT_NS for step in run.steps()[1:])


def test_one_that_runs_in_another_thread_hides_no_call_of_the_network(watched: Watch) -> None:
    run = watched(
        TRAINING
        + LATE
        + """
import threading
teacher.eval()
ended = threading.Event()

def encode():
    while not ended.is_set():
        with torch.no_grad():
            teacher(torch.ones(4, 8))

thread = threading.Thread(target=encode)
thread.start()
"""
        + _train(
            "\nloss = nn.functional.cross_entropy(model(x), y)",
            "",
            "with torch.no_grad():\n        for a, b in DataLoader(data, batch_size=35):\n            model(a)",
        ).replace("range(8)", "range(3)")
        + "\nended.set()\nthread.join()\n"
    )
    assert run.err == ""
    assert [step.samples for step in run.steps()] == 3 * [16, 16, 16, 16, 6]
    assert [span.step for span in run.events("span")] == [5, 10, 15]
    assert all(step.forward_ns for step in run.steps())


def test_a_program_may_replace_what_is_in_a_wrapper(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import copy, gc, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
"""
        + _train("\nloss = nn.functional.cross_entropy(wrapped(x), y)").replace("range(8)", "range(2)")
        + """
wrapped.module = copy.deepcopy(model)
del model, optimizer
gc.collect()
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
"""
        + _train("\nloss = nn.functional.cross_entropy(wrapped(x), y)").replace("range(8)", "range(2)")
        + "\ndist.destroy_process_group()\n"
    )
    assert run.code == 0, run.err
    assert [step.samples for step in run.steps()] == 4 * [16, 16, 16, 16, 6]


def test_layers_that_are_frozen_one_by_one_are_judged_once(watched: Watch) -> None:
    """As batch norm of a detection network, after the optimizer was made: parts of what is trained are known."""
    run = watched(
        """
import torch
from torch import nn

model = nn.Sequential(*(nn.BatchNorm1d(8) for _ in range(60)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
listed = 0
modules = nn.Sequential.modules

def counted(module):
    global listed
    listed += module is model
    return modules(module)

nn.Sequential.modules = counted
for layer in list(modules(model))[1:]:
    layer.eval()
assert listed <= 2, listed
for step in range(4):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
    )
    assert run.code == 0, run.err
    assert not run.events("span")
