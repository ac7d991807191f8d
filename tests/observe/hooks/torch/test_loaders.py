"""Batches in every way that programs fetch them: samples stay with the steps that learn from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch, plain

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES = [16, 16, 16, 16, 6]

TRAIN = """
def train(x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

OWN_LOADER = """
class Doubled(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield 2 * x, y

class Backwards(torch.utils.data.Sampler):
    def __iter__(self):
        return reversed(range(70))

    def __len__(self):
        return 70
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loaders_samplers_and_workers_of_the_programs_own(watched: Watch, method: str) -> None:
    run = watched(
        TRAINING
        + OWN_LOADER
        + f"""
if __name__ == "__main__":
    torch.multiprocessing.set_start_method({method!r})
    loader = Doubled(data, batch_size=16, sampler=Backwards(), num_workers=2)
"""
        + LOOP.replace("\n", "\n    ").replace("range(2)", "range(1)")
        + """
    loader = DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(Backwards(), 16, drop_last=False))
"""
        + LOOP.replace("\n", "\n    ").replace("range(2)", "range(1)")
    )
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [step.epoch for step in run.steps()] == 5 * [0] + 5 * [1]
    assert run.ranks == [0]  # a worker that imported the program again is none


def test_a_loader_in_a_thread_leaves_samples_to_the_network(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import queue, threading

def ahead(loader):
    fetched = queue.Queue(2)

    def fetch():
        for batch in loader:
            fetched.put(batch)
        fetched.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    yield from iter(fetched.get, None)

for epoch in range(2):
    for x, y in ahead(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [(step.samples, step.input_ns) for step in run.steps()] == [(samples, None) for samples in 2 * SAMPLES]
    assert run.events("epoch") == []


def test_an_evaluation_amid_an_epoch_takes_no_samples_from_it(watched: Watch) -> None:
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

for i, (x, y) in enumerate(ahead(loader)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if i == 2:
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=7):
                model(x)
"""
    )
    steps = run.steps()
    assert [step.samples for step in steps] == SAMPLES
    assert [(span.name, span.step) for span in run.events("span")] == [("evaluation", 3)]
    assert [event.step for event in run.events("epoch")] == [0]
    assert [bool(step.evaluation_ns) for step in steps] == [False, False, False, True, False]


def test_two_loaders_side_by_side_count_those_of_the_last(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
other = DataLoader(data, batch_size=10, shuffle=True)
for (x, y), (more, _) in zip(loader, other):
    optimizer.zero_grad()
    (nn.functional.cross_entropy(model(x), y) + model(more).square().mean()).backward()
    optimizer.step()
"""
    )
    assert [step.samples for step in run.steps()] == 5 * [10]
    assert [step.epoch for step in run.steps()] == 5 * [0]


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_two_loaders_in_turn_have_the_epochs_of_the_first(watched: Watch, is_exhausted: bool) -> None:
    """Several tasks: the pass of the second loader is part of the epoch; one of the first begins the next."""
    run = watched(
        TRAINING
        + f"""
others = DataLoader(TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,))), batch_size=10)
for epoch in range(3):
    tasks = [iter(loader), iter(others)]
    for step in range(10):
        x, y = next(tasks[step % 2])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if {is_exhausted}:
        assert next(tasks[0], None) is None
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [step.epoch for step in run.steps()] == [epoch for epoch in range(3) for _ in range(10)]
    assert [step.samples for step in run.steps()] == 3 * [16, 10, 16, 10, 16, 10, 16, 10, 6, 10]


def test_loaders_in_turn_are_asked_nothing_that_changes_the_program(watched: Watch, tmp_path: Path) -> None:
    """A sampler that draws random numbers to tell its length, and an iterator that knows no attribute of ours."""
    source = (
        TRAINING
        + """
class Buckets(torch.utils.data.Sampler):
    def __iter__(self):
        return iter([batch.tolist() for batch in torch.randperm(70).split(10)])

    def __len__(self):
        return len(list(iter(self)))

class Proxy:
    def __init__(self, batches):
        self.__dict__["batches"] = batches

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)

    def __getattr__(self, name):
        raise KeyError(name)

    __setattr__ = __getattr__

class Own(DataLoader):
    def _get_iterator(self):
        return Proxy(super()._get_iterator())

tasks = [iter(DataLoader(data, batch_sampler=Buckets())), iter(Own(data, batch_size=10, shuffle=True))]
for step in range(14):
    x, y = next(tasks[step % 2])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(torch.rand(1).item().hex())
"""
    )
    run = watched(source)
    assert (run.code, run.err) == (0, "")
    assert run.out == plain(source, tmp_path)
    assert [step.samples for step in run.steps()] == 14 * [10]


def test_a_batch_that_fails_ends_no_pass(watched: Watch) -> None:
    """The program goes on with the next one, and with another loader beside this one."""
    run = watched(
        TRAINING
        + """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 70

    def __getitem__(self, place):
        if place == 20:
            raise ValueError(place)
        return data[place]

broken = DataLoader(Broken(), batch_size=16)
for epoch in range(2):
    first, second = iter(broken), None
    for step in range(4):
        if step == 2:
            second = iter(loader)
        try:
            x, y = next(first if step < 2 or step == 3 else second)
        except ValueError:
            x, y = next(first)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [step.epoch for step in run.steps()] == 4 * [0] + 4 * [1]


def test_a_first_batch_that_another_thread_fetches_costs_no_epoch(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
import threading

for epoch in range(2):
    batches, first = iter(loader), []
    thread = threading.Thread(target=lambda: first.append(next(batches)))
    thread.start()
    thread.join()
    for x, y in [*first, *batches]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    )
    assert (run.code, run.err) == (0, "")
    assert [event.epoch for event in run.events("epoch")] == [0, 1]


def test_a_loader_that_the_program_does_not_return_to_ends_its_epoch(watched: Watch) -> None:
    """Its iterator is still there, and has more batches: the next loader is at first taken for one beside it."""
    run = watched(
        TRAINING
        + TRAIN
        + """
first = iter(loader)
for _ in range(3):
    train(*next(first))
others = DataLoader(data, batch_size=35)
for epoch in range(3):
    for batch in others:
        train(*batch)
"""
    )
    assert [step.epoch for step in run.steps()] == [0, 0, 0, 0, 0, 1, 1, 2, 2]


def test_loaders_one_after_the_other_have_epochs_of_their_own(watched: Watch) -> None:
    run = watched(
        TRAINING
        + TRAIN
        + """
others = DataLoader(data, batch_size=35)
for epoch in range(2):
    for batch in loader:
        train(*batch)
        if epoch:
            break
    for batch in others:
        train(*batch)
"""
    )
    assert [step.epoch for step in run.steps()] == [0] * 5 + [1] * 2 + [2] + [3] * 2


def test_a_network_that_only_makes_samples_for_another_is_not_evaluated(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
second = torch.optim.Adam(critic.parameters())
for epoch in range(2):
    for x, y in loader:
        with torch.no_grad():
            fake = model(x)
        second.zero_grad()
        critic(fake).mean().backward()
        second.step()
        optimizer.zero_grad()
        (-critic(model(x)).mean()).backward()
        optimizer.step()
"""
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert not any(step.evaluation_ns or "evaluation" in step.tags for step in run.steps())
    assert not run.events("span")


AHEAD = """
def ahead(batches):
    it = iter(batches)
    now = next(it)
    for later in it:
        yield now
        now = later
    yield now
"""
"""Fetches a batch before the last one is learned from, as accelerate does."""


@pytest.mark.parametrize("fetch", ["iter", "ahead"])
def test_a_teacher_asked_without_gradients_is_part_of_the_step_and_evaluation_before_it_is_not(
    watched: Watch, fetch: str
) -> None:
    """One batch is evaluated after each pass, without ``eval()``; the next pass begins with the teacher."""
    run = watched(
        TRAINING
        + AHEAD
        + f"fetch = {fetch}\n"
        + """
for epoch in range(2):
    for x, y in fetch(loader):
        with torch.no_grad():
            target = model(x).softmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=len(data)):
            model(x)
"""
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [span.step for span in run.events("span")] == [5, 10]
    assert [step.step for step in run.steps() if step.evaluation_ns] == [5]


@pytest.mark.parametrize("fetch", ["iter", "ahead"])
def test_a_teacher_put_into_evaluation_mode_in_each_step_is_part_of_it_from_the_second_on(
    watched: Watch, fetch: str
) -> None:
    """It is known as a copy of the network once that has learned. Now and then it is evaluated on another loader."""
    run = watched(
        TRAINING
        + AHEAD
        + f"fetch = {fetch}\n"
        + """
import copy
teacher = copy.deepcopy(model)
for epoch in range(2):
    for i, (x, y) in enumerate(fetch(loader)):
        if i == 3:
            teacher.eval()
            with torch.no_grad():
                for a, b in DataLoader(data, batch_size=len(data)):
                    teacher(a)
        teacher.eval()
        with torch.no_grad():
            target = teacher(x).softmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
"""
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [step.step for step in run.steps() if step.evaluation_ns] == [1, 3, 8]


@pytest.mark.parametrize("fetch", ["iter", "ahead"])
@pytest.mark.parametrize("how", ["eval()", "no_grad()", "checkpoint"])
def test_an_evaluation_after_the_batch_of_a_step_was_fetched_leaves_it_that_batch(
    watched: Watch, fetch: str, how: str
) -> None:
    """As in `for i, (x, y) in enumerate(loader): if i % 3 == 0: evaluate()`, from the first step on."""
    mode, back = ("pass", "pass") if how == "no_grad()" else ("model.eval()", "model.train()")
    after = "torch.save(model.state_dict(), 'weights.pt')" if how == "checkpoint" else "pass"
    run = watched(
        TRAINING
        + AHEAD
        + f"fetch = {fetch}\n"
        + f"""
model(data.tensors[0]).mean().backward()
optimizer.step()
for epoch in range(2):
    for i, (x, y) in enumerate(fetch(loader)):
        if i % 3 == 0:
            {mode}
            with torch.no_grad():
                for size in (30, 70):
                    for a, b in DataLoader(data, batch_size=size):
                        model(a)
            {after}
            {back}
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    )
    assert [step.samples for step in run.steps()] == [70, *(2 * SAMPLES)]
    assert [step.step for step in run.steps() if step.evaluation_ns] == [1, 4, 6, 9]
    assert [event.step for event in run.events("epoch")] == [1, 6]


@pytest.mark.parametrize("fetch", ["iter", "ahead"])
def test_modes_that_are_set_for_each_batch_after_its_fetch_leave_batches_to_their_steps(
    watched: Watch, fetch: str
) -> None:
    """As engines of ignite and skorch do."""
    run = watched(
        TRAINING
        + AHEAD
        + f"fetch = {fetch}\n"
        + """
for epoch in range(2):
    for x, y in fetch(loader):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for a, b in fetch(DataLoader(data, batch_size=30)):
        model.eval()
        with torch.no_grad():
            model(a)
"""
    )
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert [event.step for event in run.events("epoch")] == [0, 5]
    assert [span.step for span in run.events("span")] == [5, 10]


def test_an_average_of_the_weights_that_is_evaluated_now_and_then_is_no_teacher(watched: Watch) -> None:
    """On what it keeps in memory, after the batch of the step was fetched: so in every second step."""
    run = watched(
        TRAINING
        + """
import copy
average = copy.deepcopy(model)
for i, (x, y) in enumerate(loader):
    if i % 2 == 0:
        average.eval()
        with torch.no_grad():
            average(data.tensors[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    )
    assert [step.step for step in run.steps() if step.evaluation_ns] == [2, 4]


def test_parts_of_a_model_in_groups_and_two_optimizers_are_one_network(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)

model = Net()
groups = [{"params": layer.parameters(), "lr": 0.1 / (1 + i)} for i, layer in enumerate(model.layers)]
optimizer = torch.optim.SGD(groups, lr=0.1)
second = torch.optim.Adam(model.head.parameters())
for _ in range(3):
    nn.functional.mse_loss(model(torch.ones(5, 8)), torch.ones(5, 3)).backward()
    optimizer.step()
    second.step()
    optimizer.zero_grad()
    second.zero_grad()
"""
    )
    assert [step.samples for step in run.steps()] == 3 * [5]
    assert all(step.forward_ns for step in run.steps())


REPEATED = """
class Repeated:
    def __init__(self, sampler): self.sampler = sampler
    def __iter__(self):
        while True:
            yield from self.sampler

class KeepsWorkers(DataLoader):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self): return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

if __name__ == "__main__":
    loader = KeepsWorkers(data, batch_size=16, num_workers=1)
"""
"""The loader of timm and of ultralytics: one iterator for all epochs."""


@pytest.mark.parametrize("fetch", ["iter", "ahead"])
def test_each_pass_of_an_endless_iterator_is_an_epoch(watched: Watch, fetch: str) -> None:
    """Also where a batch is fetched before the last one is learned from, and where calls are only noted."""
    loop = LOOP.replace("range(2)", "range(24)").replace("in loader", f"in {fetch}(loader)").replace("\n", "\n    ")
    run = watched(TRAINING + AHEAD + REPEATED + loop)
    assert (run.code, run.err) == (0, "")
    steps = run.steps()
    assert [step.samples for step in steps] == 24 * SAMPLES
    assert [step.epoch for step in steps] == [epoch for epoch in range(24) for _ in range(5)]
    assert run.events("end")[0].steps == 120
    assert {mark.asked_ns is None for mark in run.events("epoch")[1:]} == {True}


@pytest.mark.parametrize("loader", ["loader", "ahead(loader)", "keeps"])
def test_an_epoch_begins_when_the_program_asks_its_loader(watched: Watch, loader: str) -> None:
    """After what it does when the last epoch is over, and before what the loader does to begin."""
    program = """
import time
from torch.utils.data import RandomSampler

class Slow(RandomSampler):
    def __iter__(self):
        time.sleep(0.2)
        return super().__iter__()

if __name__ == "__main__":
    loader = DataLoader(data, batch_size=16, sampler=Slow(data))
    keeps = DataLoader(data, batch_size=16, sampler=Slow(data), num_workers=1, persistent_workers=True)
"""
    loop = LOOP.replace("in loader", f"in {loader}").replace("range(2)", "range(3)")
    assert "\nfor epoch in" in loop
    loop = loop.replace("\nfor epoch in range(3):", "\nfor epoch in range(3):\n    time.sleep(0.3)").replace(
        "\n", "\n    "
    )
    run = watched(TRAINING + AHEAD + program + loop)
    assert (run.code, run.err) == (0, "")
    steps = {step.step: step for step in run.steps()}
    for mark in run.events("epoch")[1:]:
        assert mark.asked_ns - steps[mark.step - 1].end_ns >= 300_000_000
        assert mark.t_ns - mark.asked_ns >= 200_000_000


def test_a_loader_that_says_less_than_it_gives_makes_one_epoch_of_a_pass(watched: Watch) -> None:
    """As accelerate's, which says how much of a pass is for this rank, and fetches it for all."""
    shared = """
class ForAll(DataLoader):
    def __len__(self): return super().__len__() // 2
    def __iter__(self): yield from super().__iter__()

loader = ForAll(data, batch_size=16)
"""
    run = watched(TRAINING + shared + LOOP)
    assert (run.code, run.err) == (0, "")
    assert [step.epoch for step in run.steps()] == [0] * 5 + [1] * 5


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_forked_workers_time_what_they_make_for_the_loader_that_is_learned_from(watched: Watch, method: str) -> None:
    """10 ms for each sample, in batches of 16 by two workers; batches of the loader that evaluates are not in it."""
    run = watched(
        TRAINING
        + """
import time

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        time.sleep(0.01)
        return data[i % 70]
"""
        + f"""
if __name__ == "__main__":
    torch.multiprocessing.set_start_method({method!r})
    loader = DataLoader(Slow(), batch_size=16, num_workers=2, prefetch_factor=3)
"""
        + LOOP.replace("\n", "\n    ")
        + """
    with torch.no_grad():
        for x, y in DataLoader(Slow(), batch_size=40, num_workers=1):
            model(x)
"""
    )
    assert (run.code, run.err) == (0, "")
    work = run.events("loader")
    assert bool(work) == (method == "fork")
    if work:
        assert {one.ahead for one in work} == {3}
        assert {one.loader for one in work} <= {1, 2}  # one iterator for each of two epochs
        assert sum(sum(one.batches) for one in work) == 10
        assert sum(sum(one.making_ns) for one in work) >= 10 * 16 * 10_000_000
        assert work[-1].step == 10
        assert max(one.step for one in work if one.loader == 1) <= 6  # when it ended, not when that was written
