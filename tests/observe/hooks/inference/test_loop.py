"""One process, many shapes of a training loop: steps, samples, phases and epochs are those of the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch, plain

from allpull.rundir.job_file import WatchOptions

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES = [16, 16, 16, 16, 6]

BY_GRAD = (
    TRAINING
    + """
def by_grad(x, y):
    parameters = list(model.parameters())
    return parameters, torch.autograd.grad(nn.functional.cross_entropy(model(x), y), parameters)
"""
)


def test_a_plain_loop_is_recorded_whole(watched: Watch) -> None:
    run = watched(TRAINING + LOOP)
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.step for step in steps] == list(range(10))
    assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]
    assert [step.backward_passes for step in steps] == 10 * [1]
    for before, after in zip(steps, steps[1:], strict=False):
        assert before.end_ns == after.begin_ns  # steps are contiguous
    for step in steps:
        parts = (step.input_ns, step.forward_ns, step.backward_ns, step.optimizer_ns)
        assert all(part and part > 0 for part in parts), step
        assert sum(part or 0 for part in parts) <= step.end_ns - step.begin_ns
    assert [step.step for step in steps if "first_batch" in step.tags] == [0, 5]
    assert run.header().boundary == "optimizer.step"
    assert run.events("end")[0].steps == 10


def test_losses_are_the_same_to_the_last_bit(watched: Watch, tmp_path: Path) -> None:
    source = TRAINING + LOOP + "print([loss.hex() for loss in losses])\n"
    assert watched(source).out == plain(source, tmp_path)


def test_accumulated_gradients_make_one_step(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
for i, (x, y) in enumerate(loader):
    nn.functional.cross_entropy(model(x), y).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert [(step.samples, step.backward_passes) for step in run.steps()] == [(32, 2), (32, 2)]


def test_gradients_without_a_backward_pass_are_of_the_batch_that_was_fetched(watched: Watch) -> None:
    run = watched(
        BY_GRAD
        + """
for epoch in range(6):
    for x, y in loader:
        parameters, gradients = by_grad(x, y)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        optimizer.step()
"""
    )
    steps = run.steps()
    assert [step.samples for step in steps] == [None, *(6 * SAMPLES)[1:]], "a first step may be no learning"
    assert [step.epoch for step in steps] == [epoch for epoch in range(6) for _ in SAMPLES]


def test_gradients_of_two_batches_without_a_backward_pass_have_no_samples(watched: Watch) -> None:
    run = watched(
        BY_GRAD
        + """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        parameters, gradients = by_grad(x, y)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
"""
    )
    assert {step.samples for step in run.steps()[1:]} == {None}


def test_an_evaluation_after_gradients_without_a_backward_pass_takes_no_samples(watched: Watch) -> None:
    run = watched(
        BY_GRAD
        + """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        parameters, gradients = by_grad(x, y)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        if i == 2:
            model.eval()
            with torch.no_grad():
                for x, y in DataLoader(data, batch_size=7):
                    model(x)
            model.train()
        optimizer.step()
"""
    )
    steps = run.steps()
    assert [step.samples for step in steps] == [None, *(2 * SAMPLES)[1:]]
    assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]


def test_a_step_before_the_training_is_no_batch_of_it(watched: Watch) -> None:
    run = watched(TRAINING + "x, y = next(iter(loader))\nmodel(x)\noptimizer.step()\n" + LOOP)
    steps = run.steps()[1:]
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]


def test_two_optimizers_make_one_step(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
critic = nn.Linear(3, 1)
second = torch.optim.Adam(critic.parameters())
for epoch in range(2):
    for x, y in loader:
        for chosen, loss in ((optimizer, model(x).square().mean()), (second, critic(torch.ones(1, 3)).sum())):
            chosen.zero_grad()
            loss.backward()
            chosen.step()
    torch.save(model.state_dict(), "model.pt")
"""
    )
    assert [(step.samples, step.backward_passes) for step in run.steps()] == [(samples, 2) for samples in 2 * SAMPLES]
    assert [span.step for span in run.events("span")] == [len(SAMPLES), 2 * len(SAMPLES)]  # after its step


def test_an_optimizer_that_steps_group_by_group_makes_one_step(watched: Watch) -> None:
    """As DeepSpeed's ZeRO, which shows it one group of parameters at a time."""
    run = watched(
        TRAINING
        + """
groups = [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[3].parameters()]}]
optimizer = torch.optim.SGD(groups, lr=0.1)
for epoch in range(2):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        every = optimizer.param_groups
        for group in every:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = every
        optimizer.zero_grad()
"""
    )
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [(step.samples, step.backward_passes) for step in steps] == [(samples, 1) for samples in 2 * SAMPLES]
    assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]


def test_a_network_that_learns_without_backward_is_recorded_step_by_step(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
for x, y in loader:
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    optimizer.step()
"""
    )
    assert [step.backward_passes for step in run.steps()] == 5 * [None]


def test_a_checkpoint_takes_the_records_along_however_the_process_ends(watched: Watch) -> None:
    """As Ray ends its workers: without Python's exit functions, within a second of the last step."""
    run = watched(
        TRAINING
        + """
import os
for x, y in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
os._exit(0)
"""
    )
    assert [step.samples for step in run.steps()] == SAMPLES
    assert [span.name for span in run.events("span")] == ["checkpoint"]


def test_a_loop_without_a_loader_takes_samples_from_the_network(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""
    )
    assert [(step.samples, step.input_ns) for step in run.steps()] == [(5, None)] * 4
    assert all(step.forward_ns for step in run.steps())


def test_a_loader_that_fetches_ahead_keeps_samples_with_their_steps(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
def ahead(loader):
    it = iter(loader)
    now = next(it)
    for later in it:
        yield now
        now = later
    yield now

for x, y in ahead(loader):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    )
    assert [step.samples for step in run.steps()] == SAMPLES


@pytest.mark.parametrize("modes", ["said", "unsaid"])
def test_evaluation_is_its_own_phase(watched: Watch, modes: str) -> None:
    to_evaluate, to_train = ("model.eval()", "model.train()") if modes == "said" else ("pass", "pass")
    run = watched(
        TRAINING
        + f"""
for epoch in range(2):
    {to_train}
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    {to_evaluate}
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=7):
            model(x)
    torch.save(model.state_dict(), "/dev/null")
"""
    )
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES  # none of what was evaluated
    assert [step.step for step in steps if step.evaluation_ns] == [5]  # after the first epoch; the last is a span only
    assert [span.name for span in run.events("span")] == ["evaluation", "checkpoint"] * 2
    assert len(run.events("epoch")) == 2


@pytest.mark.parametrize("begin", ["model.eval()", "model.train(False)"])
def test_train_ends_an_evaluation(watched: Watch, begin: str) -> None:
    """What follows, as a plot on rank 0, is none; and ``train`` is torch's own again, whoever calls it."""
    run = watched(
        TRAINING
        + f"""
import time
plain = nn.Module.train
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    {begin}
    nn.Linear(2, 2).train()
    with torch.no_grad():
        model(x)
    model.train()
    assert nn.Module.train is plain
    time.sleep(0.5)
"""
    )
    spans = run.events("span")
    assert [span.name for span in spans] == ["evaluation"] * 2
    assert all(span.end_ns - span.begin_ns < 0.4e9 for span in spans)
    assert [step.samples for step in run.steps()] == 2 * SAMPLES


def test_train_that_a_program_replaces_while_it_evaluates_stays_the_programs(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import threading, time
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    if epoch == 1:
        before = nn.Module.train
        def mine(self, mode=True):
            return before(self, mode)
        nn.Module.train = mine
    other = threading.Thread(target=nn.Linear(2, 2).train)
    other.start()
    other.join()
    with torch.no_grad():
        model(x)
    model.train()
    time.sleep(0.5)
assert nn.Module.train is mine
"""
    )
    assert run.code == 0, run.err
    assert len(run.events("span")) == 4
    assert all(span.end_ns - span.begin_ns < 0.4e9 for span in run.events("span"))


VALIDATING = """
def ahead(loader):
    it = iter(loader)
    now = next(it)
    for later in it:
        yield now
        now = later
    yield now

head = nn.Linear(3, 1)
critic = torch.optim.SGD(head.parameters(), lr=0.1) if {optimizers} == 2 else None
for epoch in range(2):
    for i, (x, y) in enumerate({loader}):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        {between}
        if critic:
            critic.zero_grad()
            head(model(x)).mean().backward()
            critic.step()
        {after}
"""
VALIDATE = "[model(data.tensors[0][j:j + 10]) for j in range(0, 70, 10)] if i == 2 else None"


@pytest.mark.parametrize("loader", ["loader", "ahead(loader)"])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_validation_on_slices_between_two_steps_is_evaluation(watched: Watch, optimizers: int, loader: str) -> None:
    """Without ``eval()`` and without a loader of its own."""
    source = VALIDATING.replace("{between}", "").replace("{loader}", loader)
    source = source.replace("{after}", f"with torch.no_grad(): {VALIDATE}").replace("{optimizers}", str(optimizers))
    run = watched(TRAINING + source)
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.backward_passes for step in steps] == 10 * [optimizers]
    assert [step.step for step in steps if step.evaluation_ns] == [3, 8]
    assert [(span.name, span.step) for span in run.events("span")] == [("evaluation", 3), ("evaluation", 8)]
    assert [step.step for step in steps if "evaluation" in step.tags] == [3, 8]


TURNS = """
def ahead(loader, batches):
    it = iter(loader)
    now = [next(it) for _ in range(batches)]
    for later in it:
        yield now.pop(0)
        now.append(later)
    yield from now

head = nn.Linear(3, 1)
critic = torch.optim.SGD(head.parameters(), lr=0.1)
for epoch in range(2):
    for i, (x, y) in enumerate({loader}):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        {turn}
"""


@pytest.mark.parametrize(("loader", "every"), [("ahead(loader, 1)", 2), ("ahead(loader, 3)", 1), ("list(loader)", 1)])
def test_a_batch_that_was_fetched_ahead_counts_once_for_two_optimizers(watched: Watch, loader: str, every: int) -> None:
    """Where the second steps less often, its gradients accumulate."""
    turn = "head(model(x)).mean().backward()\n        if i % {every} == 0:\n            critic.step()"
    source = TURNS.replace("{loader}", loader).replace("{turn}", turn).replace("{every}", str(every))
    run = watched(TRAINING + source)
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 2 * SAMPLES


def test_samples_without_gradients_for_the_second_optimizer_are_no_evaluation(watched: Watch) -> None:
    """As a GAN makes them, on the batch of which the first has learned already."""
    source = VALIDATING.replace("{loader}", "loader").replace("{after}", "").replace("{optimizers}", "2")
    run = watched(TRAINING + source.replace("{between}", f"with torch.no_grad(): {VALIDATE}"))
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.backward_passes for step in steps] == 10 * [2]
    assert not any(step.evaluation_ns for step in steps)
    assert not run.events("span")
    for step in steps:
        parts = (step.input_ns, step.forward_ns, step.backward_ns, step.optimizer_ns)
        assert all(part and part > 0 for part in parts), step
        assert sum(part or 0 for part in parts) <= step.end_ns - step.begin_ns


def test_an_evaluation_before_the_first_step_counts(watched: Watch) -> None:
    first = "model.eval()\nwith torch.no_grad():\n    model(torch.randn(5, 8))\n"
    run = watched(TRAINING + first + LOOP)
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.step for step in steps if step.evaluation_ns] == [0]
    assert [(span.name, span.step) for span in run.events("span")] == [("evaluation", 0)]


def test_train_false_is_evaluation_without_a_loader_too(watched: Watch) -> None:
    """As DeepSpeed's engine sets its network to evaluation."""
    evaluated = """
    model.train(False)
    with torch.no_grad():
        model(torch.randn(20, 8))
        model(torch.randn(20, 8))
"""
    run = watched(TRAINING + LOOP + evaluated)
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.step for step in steps if step.evaluation_ns] == [5]
    assert [(span.name, span.step) for span in run.events("span")] == [("evaluation", 5), ("evaluation", 10)]


def test_a_network_that_never_trains_in_training_mode_asks_itself_within_its_steps(watched: Watch) -> None:
    """Batch norm is frozen so: what it answers without gradients is learned from."""
    asks = "model.train(False)\n        with torch.no_grad(): model(x)\n        optimizer.zero_grad()"
    run = watched(TRAINING + LOOP.replace("model.train()", "pass").replace("optimizer.zero_grad()", asks))
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert not any(step.evaluation_ns for step in run.steps())


def test_a_frozen_layer_is_no_evaluation(watched: Watch) -> None:
    run = watched(TRAINING + LOOP.replace("model.train()", "model.train(); model[1].eval()"))
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert not run.events("span")


def test_a_skipped_step_is_a_step_that_says_so(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss * (float("inf") if i == 2 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )
    assert [("skipped" in step.tags, step.samples) for step in run.steps()] == [
        (False, 16), (False, 16), (True, 16), (False, 16), (False, 6),
    ]  # fmt: skip


def test_workers_and_iterable_data_count_the_same(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (data[i] for i in range(len(data)))

if __name__ == "__main__":
    loader = DataLoader(Stream(), batch_size=16, num_workers=1, persistent_workers=True)
"""
        + LOOP.replace("\n", "\n    ")
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert run.ranks == [0]


@pytest.mark.slow
def test_only_asked_for_steps_are_recorded_and_all_are_counted(watched: Watch) -> None:
    run = watched(TRAINING + LOOP, watch=WatchOptions(steps=(3, 6)))
    assert [step.step for step in run.steps()] == [3, 4, 5]
    assert [(event.on, event.step) for event in run.events("watching")] == [(True, 3), (False, 6)]


@pytest.mark.slow
def test_a_signal_stops_and_starts_recording(watched: Watch) -> None:
    toggled = "\n        if len(losses) in (3, 6): import os, signal; os.kill(os.getpid(), signal.SIGUSR2)\n"
    run = watched(
        TRAINING + LOOP.replace("\n        losses.append(loss.item())\n", "\n        losses.append(0)" + toggled)
    )
    assert [step.step for step in run.steps()] == [0, 1, 2, 3, 7, 8, 9]


def test_words_of_the_program_are_believed(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import allpull
for epoch in range(2):
    allpull.epoch(epoch)
    for x, y in loader:
        with allpull.phase("augment"):
            x = x + 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        allpull.step(samples=1)
"""
    )
    steps = run.steps()
    assert [step.step for step in steps] == list(range(10))
    assert [step.samples for step in steps[1:]] == 9 * [1]
    assert all(step.named and step.named["augment"] > 0 for step in steps)
    assert [epoch.epoch for epoch in run.events("epoch")] == [0, 1]


def test_a_loop_without_torch_speaks_for_itself(watched: Watch) -> None:
    run = watched(
        """
import sys, time, allpull
for _ in range(3):
    with allpull.phase("forward"):
        time.sleep(0.001)
    allpull.step(samples=4)
assert "torch" not in sys.modules
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 3 * [4]
    assert all((step.forward_ns or 0) > 900_000 for step in run.steps())


NO_OPTIMIZER = TRAINING.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n", "")
BY_HAND = """
for epoch in range(2):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        {update}
"""
UPDATES = {
    "parameter.update": """with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None""",
    "gradient.clear": "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1); p.grad.zero_()",  # as in fastai
}


@pytest.mark.parametrize("boundary", UPDATES)
def test_updates_by_hand_end_steps(watched: Watch, boundary: str) -> None:
    run = watched(NO_OPTIMIZER + BY_HAND.format(update=UPDATES[boundary]))
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 2 * SAMPLES
    assert [step.backward_passes for step in steps] == 10 * [1]
    assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]
    assert all(step.forward_ns and step.backward_ns and step.optimizer_ns for step in steps[1:-1])
    assert [(event.boundary, event.step) for event in run.events("boundary")] == [(boundary, 0)]
    assert not run.events("remark")


def test_updates_by_hand_after_several_backward_passes_make_one_step(watched: Watch) -> None:
    accumulated = """
for i, (x, y) in enumerate(loader):
    nn.functional.cross_entropy(model(x), y).backward()
    if i % 2:
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
"""
    run = watched(NO_OPTIMIZER + accumulated)
    assert [(step.samples, step.backward_passes) for step in run.steps()] == [(32, 2), (32, 2)]


def test_an_optimizer_that_never_steps_hides_no_updates(watched: Watch) -> None:
    run = watched(TRAINING + BY_HAND.format(update=UPDATES["parameter.update"]))
    assert [step.backward_passes for step in run.steps()] == [3] + 7 * [1]  # it might still have stepped


def test_updates_that_nothing_shows_end_steps_at_the_next_batch(watched: Watch) -> None:
    hidden = "for p in model.parameters(): p.data.add_(p.grad.data, alpha=-0.1); p.grad.data.zero_()"
    run = watched(NO_OPTIMIZER + BY_HAND.replace("range(2)", "range(4)").format(update=hidden))
    assert [step.backward_passes for step in run.steps()] == [8] + 12 * [1]
    assert [event.boundary for event in run.events("boundary")] == ["loader.next"]


@pytest.mark.parametrize("keeps", [False, True])
def test_trainings_one_after_the_other_are_all_recorded(watched: Watch, keeps: bool) -> None:
    """Updates through `data`, which share no version with the parameter; networks before may be gone, or kept."""
    run = watched(
        f"""
import torch
kept = []
for training in range(3):
    model = torch.nn.Linear(8, 1)
    kept.append(model if {keeps} else None)
    for _ in range(30):
        for p in model.parameters():
            p.grad = None
        model(torch.randn(16, 8)).square().mean().backward()
        for p in model.parameters():
            p.data = p.data - 0.01 * p.grad
"""
    )
    assert (run.code, run.err) == (0, "")
    passes = [step.backward_passes or 0 for step in run.steps()]
    assert sum(passes) >= 89
    assert 84 <= len(passes) <= 90


@pytest.mark.parametrize("loads", [False, True])
def test_an_optimizer_that_accumulates_for_long_makes_one_step_of_it(watched: Watch, loads: bool) -> None:
    rows = (
        "DataLoader(data, batch_size=1)"
        if loads
        else "((torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(70))"
    )
    run = watched(
        TRAINING.replace("nn.BatchNorm1d(16), ", "")
        + f"""
for step in range(3):
    for x, y in {rows}:
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [step.backward_passes for step in run.steps()] == 3 * [70]
    assert not run.events("boundary")


@pytest.mark.parametrize("kind", ["", "    def __eq__(self, other): return self is other"])
def test_an_optimizer_of_which_only_zero_grad_is_called_hides_no_updates(watched: Watch, kind: str) -> None:
    """Updates through `data`, which no version shows; the second one has no hash."""
    run = watched(
        TRAINING
        + f"""
class Mine(torch.optim.SGD):
    pass
{kind}

optimizer = Mine(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
"""
    )
    assert (run.code, run.err) == (0, "")
    assert len(run.steps()) >= 11


@pytest.mark.parametrize("how", ["closure", "another"])
def test_a_step_that_raises_costs_no_later_one(watched: Watch, how: str) -> None:
    """As where a batch that does not fit in memory is tried again in a smaller size."""
    run = watched(
        TRAINING
        + f"""
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        raise RuntimeError("no")

first = None if {how == "closure"} else Fails(model.parameters(), lr=0.1)
for number in range(12):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,)))
        loss.backward()
        if number == 0 and {how == "closure"}:
            raise RuntimeError("out of memory")
        return loss
    try:
        if {how == "closure"}:
            optimizer.step(closure)
        else:
            first.step(closure)
    except RuntimeError:
        if {how != "closure"}:
            optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert len(run.steps()) >= 11


def test_plain_tensors_are_parameters_too(watched: Watch) -> None:
    run = watched(
        """
import torch
w = torch.zeros(8, 1, requires_grad=True)
for _ in range(6):
    x = torch.randn(16, 8)
    (x @ w - x.sum(1, keepdim=True)).square().mean().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
"""
    )
    assert [step.backward_passes for step in run.steps()] == 6 * [1]


def test_backward_passes_without_updates_say_why_there_are_no_steps(watched: Watch) -> None:
    run = watched(NO_OPTIMIZER + BY_HAND.replace("range(2)", "range(1)").format(update="pass"))
    assert run.steps() == []
    (remark,) = run.events("remark")
    assert remark.text.startswith("5 backward passes were seen, but no update of a parameter, so")
    assert "allpull.step()" in remark.text
