"""What a program does with its model stays possible: saved, copied, averaged, scripted, compiled, run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch, plain

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES = [16, 16, 16, 16, 6]


def test_a_whole_model_is_saved_and_loads_where_nobody_observes(watched: Watch, tmp_path: Path) -> None:
    run = watched(
        TRAINING
        + LOOP
        + """
import pickle, warnings
warnings.simplefilter("ignore")
torch.save(model, "model.pt")
torch.save(optimizer, "optimizer.pt")
torch.jit.script(model).save("scripted.pt")
assert pickle.dumps(model).find(b"allpull") == -1
"""
    )
    assert (run.code, run.err) == (0, "")
    assert len(run.steps()) == 10
    source = f"""
import os, torch
os.chdir({str(tmp_path)!r})
model = torch.load("model.pt", weights_only=False)
torch.load("optimizer.pt", weights_only=False).step()
print(model(torch.ones(2, 8)).shape, torch.jit.load("scripted.pt")(torch.ones(2, 8)).shape, sorted(vars(model)))
"""
    assert "_compiled_call_impl" not in plain(source, tmp_path)


USES = """
copy.deepcopy(model)
pickle.loads(pickle.dumps(model))
torch.optim.swa_utils.AveragedModel(model)
torch.jit.script(model)
torch.jit.trace(model, x)
torch.fx.symbolic_trace(model)
torch.export.export(model, (x,)).module()
torch.compile(model, backend="eager", fullgraph=True)
torch.func.functionalize(model)
model.share_memory()
torch.nn.utils.parametrizations.weight_norm(model[0]) and model
"""


def test_what_is_made_of_the_model_computes_the_same(watched: Watch, tmp_path: Path) -> None:
    source = (
        "import copy, pickle, warnings\nwarnings.simplefilter('ignore')\n"
        + TRAINING
        + LOOP.replace("range(2)", "range(1)")
        + f"""
x = torch.arange(16.0).reshape(2, 8)
model.eval()
for use in {USES.strip().splitlines()}:
    print(use, eval(use)(x).sum().item().hex(), model(x).sum().item().hex())
"""
    )
    run = watched(source)
    assert (run.code, run.err) == (0, "")
    assert run.out == plain(source, tmp_path)
    assert [step.samples for step in run.steps()] == SAMPLES


def test_an_average_of_the_model_is_evaluated_and_never_trained(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import copy
average = copy.deepcopy(model).requires_grad_(False)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
    average.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=7):
            average(x)
"""
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [(span.name, span.step) for span in run.events("span")] == [("evaluation", 5), ("evaluation", 10)]


def test_what_runs_again_in_backward_is_backward(watched: Watch, tmp_path: Path) -> None:
    source = TRAINING.replace("nn.BatchNorm1d(16), ", "") + LOOP.replace(
        "model(x)", "checkpoint(model, x.requires_grad_(), use_reentrant=not epoch)"
    ).replace("\nfor epoch", "\nfrom torch.utils.checkpoint import checkpoint\nfor epoch")
    source += "print([loss.hex() for loss in losses])\n"
    run = watched(source)
    assert run.out == plain(source, tmp_path)
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [step.backward_passes for step in run.steps()] == 10 * [1]


def test_a_closure_that_is_called_many_times_is_one_step(watched: Watch, tmp_path: Path) -> None:
    source = (
        TRAINING
        + """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
x, y = torch.randn(20, 8), torch.randint(0, 3, (20,))

def closure():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    losses.append(loss.item())
    return loss

for _ in range(3):
    optimizer.step(closure)
print([loss.hex() for loss in losses])
"""
    )
    run = watched(source)
    assert run.out == plain(source, tmp_path)
    steps = run.steps()
    assert [step.samples for step in steps] == [20, 20, 20]
    assert sum(step.backward_passes or 0 for step in steps) == run.out.count("0x")
    assert all(step.forward_ns and step.backward_ns and step.optimizer_ns for step in steps)


def test_what_a_closure_does_is_not_the_optimizers_time(watched: Watch, tmp_path: Path) -> None:
    source = (
        TRAINING
        + """
import time

class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

evaluated, teacher = nn.Linear(8, 3), nn.Linear(8, 3)
optimizer = Own(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            teacher.load_state_dict(evaluated.state_dict())
            teacher.eval()
            loss = nn.functional.cross_entropy(model(x), y)
            time.sleep(0.05)
            loss.backward()
            losses.append(loss.item())
            return loss

        if epoch:
            optimizer.step(closure)
        else:
            optimizer.step(closure=closure)
print([loss.hex() for loss in losses])
"""
    )
    run = watched(source)
    assert run.out == plain(source, tmp_path)
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.backward_passes for step in steps] == 10 * [1]
    assert not run.events("span")
    for step in steps:
        assert step.forward_ns
        assert step.backward_ns
        assert 0 < (step.optimizer_ns or 0) < 50e6 < step.end_ns - step.begin_ns, step
    assert not run.events("switched_off")


COMPILED = """
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=16)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.two(self.one(x).relu())

def made_first(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.compile(model, backend=backend), optimizer

def compiled_first(model):
    model = torch.compile(model, backend=backend)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def in_place(model):
    model.compile(backend=backend)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def made_first_in_place(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.compile(backend=backend)
    return model, optimizer

def a_step_of_its_own(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(lambda x: model(x) + 0 * sum(p.norm() for p in model.parameters()), backend=backend)
    return call, optimizer

def with_its_loss(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def call(x):
        optimizer.zero_grad()
        answer = model(x)
        (0 * answer.sum()).backward(retain_graph=True)
        return answer

    return call, optimizer

def backend(graph, inputs):
    graphs.append(len(list(graph.graph.nodes)))
    return graph.forward

graphs = []
"""


def test_a_compiled_model_is_seen_and_compiled_as_if_it_were_not(watched: Watch, tmp_path: Path) -> None:
    source = (
        TRAINING
        + COMPILED
        + """
for way in (made_first, compiled_first, in_place, made_first_in_place, a_step_of_its_own, with_its_loss):
    for net in (Net(), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))):
        torch._dynamo.reset()
        model, optimizer = way(net)
"""
        + LOOP.replace("model.train()", "pass").replace("\n", "\n        ")
        + """
        print(way.__name__, graphs, [loss.hex() for loss in losses])
        graphs.clear()
        losses.clear()
"""
    )
    run = watched(source)
    assert (run.code, run.err) == (0, "")
    assert run.out == plain(source, tmp_path)  # the same graphs, as often
    steps = run.steps()
    assert [step.samples for step in steps] == 12 * 8 * [16]
    assert [step.backward_passes for step in steps] == 10 * 8 * [1] + 2 * 8 * [2]
    assert all(step.forward_ns and step.backward_ns and step.optimizer_ns for step in steps)
    assert not run.events("span")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_optimizer_that_is_compiled_steps_where_its_gradients_are_dropped(
    watched: Watch, tmp_path: Path, backend: str
) -> None:
    source = TRAINING + LOOP.replace("optimizer.step()", f"torch.compile(optimizer.step, backend={backend!r})()")
    source += "print([loss.hex() for loss in losses])\n"
    run = watched(source)
    assert (run.code, run.out) == (0, plain(source, tmp_path)), run.err
    assert "allpull" not in run.err
    steps = run.steps()
    assert [step.samples for step in steps] == [16 + 16, 16, 16, 6, *SAMPLES]  # two until it is known
    assert [step.optimizer_ns for step in steps] == 9 * [None]
    assert [event.part for event in run.events("switched_off")] == ["optimizers"]


@pytest.mark.slow
@pytest.mark.parametrize("has_closure", [False, True])
@pytest.mark.parametrize("is_made", [False, True])
def test_an_optimizer_around_another_takes_one_step(watched: Watch, has_closure: bool, is_made: bool) -> None:
    """As Lookahead, and SAM, which may give the inner one a closure; not all are made as torch's optimizers are."""
    run = watched(
        TRAINING
        + f"""
from collections import OrderedDict

class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        if {is_made}:
            super().__init__(inner.param_groups, {{}})
        else:
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
            self.defaults, self.state, self.param_groups = inner.defaults, inner.state, inner.param_groups
            self._patch_step_function()
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)

optimizer = Around(optimizer)
for number in range(40):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        if {has_closure}:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 40 * SAMPLES
    assert {step.backward_passes for step in steps} == {1}
    assert all(step.forward_ns and step.backward_ns and step.optimizer_ns for step in steps)


@pytest.mark.slow
def test_gradients_that_are_dropped_without_a_step_end_none(watched: Watch) -> None:
    """As in Opacus: each part of a batch clears the gradients, and what it adds up elsewhere is applied after three."""
    run = watched(
        TRAINING
        + """
sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
for number in range(24):
    for part in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,))).backward()
        for total, parameter in zip(sums, model.parameters()):
            total += parameter.grad
    for total, parameter in zip(sums, model.parameters()):
        parameter.grad = total.clone()
        total.zero_()
    optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert not run.events("switched_off")
    assert [step.backward_passes for step in run.steps()] == 24 * [3]


@pytest.mark.slow
def test_copies_that_take_over_the_attributes_of_a_network_run_with_their_own_weights(
    watched: Watch, tmp_path: Path
) -> None:
    """As in `higher`, learn2learn and DataParallel; also after the network itself is gone."""
    source = (
        TRAINING.replace(", momentum=0.9", "")
        + LOOP
        + """
def emptied(copied):
    copied._parameters = {name: torch.zeros_like(one) for name, one in copied._parameters.items()}
    copied._modules = {name: emptied(clone(one)) for name, one in copied._modules.items()}
    copied._buffers = dict(copied._buffers)
    return copied

def clone(module):
    copied = module.__new__(type(module))
    copied.__dict__ = module.__dict__.copy()
    return copied

import copy, gc
x = data.tensors[0]
model.eval()
print(model(x).sum().item(), emptied(clone(model))(x).sum().item(), emptied(copy.copy(model))(x).sum().item())
print(emptied(model._replicate_for_data_parallel())(x).sum().item(), copy.deepcopy(model)(x).sum().item())
left = emptied(clone(model))
model = optimizer = None
gc.collect()
print(left(x).sum().item(), [loss.hex() for loss in losses])
"""
    )
    run = watched(source)
    assert (run.code, run.err) == (0, "")
    assert run.out == plain(source, tmp_path)
    assert len(run.steps()) == 10


@pytest.mark.slow
def test_a_network_that_a_function_runs_without_gradients_is_not_evaluated(watched: Watch) -> None:
    """As in torchdiffeq's adjoint method: the backward pass runs it again, with gradients."""
    run = watched(
        """
import time, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        time.sleep(0.01)
        return self.inner(x)

class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x)
        return net(net(x))

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            y = net(net(ctx.saved_tensors[0].detach()))
        return (None, *torch.autograd.grad(y, tuple(net.parameters()), grad))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    Adjoint.apply(torch.randn(8, 4), *net.parameters()).sum().backward()
    optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert not run.events("span")
    steps = run.steps()
    assert len(steps) == 12
    assert all(step.forward_ns > 20_000_000 and step.backward_ns > 20_000_000 for step in steps[1:])
    assert {step.samples for step in steps[1:]} == {8}


@pytest.mark.parametrize("how", ["net", "torch.compile(net, backend='eager')"])
def test_a_network_of_which_each_optimizer_has_a_part_is_timed_as_a_whole(watched: Watch, how: str) -> None:
    """What lies between the two parts has no parameters, and is forward, too."""
    run = watched(
        f"""
import time, torch
from torch import nn

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return x

net = nn.Sequential(nn.Linear(8, 8), Slow(), nn.Linear(8, 1))
optimizers = [torch.optim.SGD(net[0].parameters()), torch.optim.Adam(net[2].parameters())]
called = {how}
for step in range(12):
    called(torch.randn(4, 8)).sum().backward()
    for one in optimizers:
        one.step()
        one.zero_grad()
"""
    )
    assert run.code == 0, run.err
    assert not run.events("switched_off")
    assert all(step.forward_ns > 20_000_000 for step in run.steps()[2:])
    assert all(step.end_ns - step.begin_ns < 2 * step.forward_ns for step in run.steps()[4:])


def test_a_list_of_layers_of_which_each_has_an_optimizer_is_not_what_is_called(watched: Watch) -> None:
    run = watched(
        """
import time, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        time.sleep(0.02)
        return x

net = Net()
optimizers = [torch.optim.SGD(layer.parameters()) for layer in net.layers]
for step in range(12):
    net(torch.randn(4, 8)).sum().backward()
    for one in optimizers:
        one.step()
        one.zero_grad()
"""
    )
    assert run.code == 0, run.err
    assert not run.events("switched_off")
    assert all(step.forward_ns > 20_000_000 for step in run.steps()[2:])


def test_a_wrapper_that_is_left_in_evaluation_mode_learns_as_the_network_in_it_does(watched: Watch) -> None:
    """As in Lightning, whose whole step runs inside DDP, and which brings back the mode of the module in it alone."""
    run = watched(
        TRAINING
        + """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        if not self.training:
            return self.model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        optimizer.step()

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
step = Step()
wrapped = DistributedDataParallel(step)
for epoch in range(3):
    wrapped.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=35):
            wrapped(x, y)
    dist.barrier()
    step.train()
    for x, y in loader:
        with wrapped.no_sync():
            wrapped(x, y)
dist.destroy_process_group()
"""
    )
    assert run.code == 0, run.err
    assert [step.samples for step in run.steps()] == 3 * SAMPLES
    assert [span.step for span in run.events("span")] == [0, 5, 10]
