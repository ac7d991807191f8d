"""Played-back steps are the steps of the training, in whatever order shapes come; what cannot be captured is said.

There is no GPU in tests: a stand-in records a step by keeping it, so that playing it back makes it on the fixed inputs.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from allpull.schema.spec import RunSpec  # noqa: E402
from allpull.schema.trainspec import DataSpec, ParallelSpec, TrainSpec  # noqa: E402
from allpull.train.loop import train  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.numerics.cuda_graph import WARM_UP_STEPS, CudaRecorder, StepGraph, obstacle, rate_as_tensor, uneven  # noqa: E402
from allpull.train.numerics.precision import Precision  # noqa: E402
from allpull.train.optim.lars import Lars  # noqa: E402
from allpull.train.optim.optimizer import optimizer_of, set_rate  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Tape:
    """Keeps steps instead of recording them; its results lie at one address, as those of a CUDA graph do."""

    def __init__(self, *, fails: Exception | None = None) -> None:
        self.fails = fails
        self.recordings = 0
        self.played = 0
        self.within = 0

    def run(self, work):
        self.within += 1
        return work()

    def record(self, work):
        if self.fails:
            raise self.fails
        self.recordings += 1
        result = torch.zeros(())

        def play():
            self.played += 1
            return result.copy_(work())

        return play


class Training:
    """A linear model and SGD with a learning rate that falls, stepped by a ``StepGraph`` or by hand."""

    def __init__(self, model: nn.Module, recorder: Tape | None) -> None:
        self.model = model
        self.precision = Precision("fp32", CPU)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        rate_as_tensor(self.optimizer, CPU)
        self.graph = StepGraph(self.step, lambda: self.precision.discard(self.optimizer), recorder)
        self.losses: list[torch.Tensor] = []

    def step(self, inputs, targets, weight=1.0):
        loss = (self.model(inputs) - targets).square().mean() * weight
        self.precision.backward(loss)
        self.precision.step(self.optimizer)
        return loss.detach()

    def train(self, sizes, weight=1.0) -> None:
        torch.manual_seed(1)
        for number, size in enumerate(sizes):
            set_rate(self.optimizer, 0.1 / (number + 1))
            inputs, targets = torch.randn(size, 3), torch.randn(size, 1)
            self.losses.append(self.graph(inputs, targets, constants=(weight,)))


def pair(recorder):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return Training(model, recorder), Training(copy.deepcopy(model), None)


def assert_same(played, plain):
    assert torch.equal(torch.stack(played.losses), torch.stack(plain.losses))
    for mine, theirs in zip(played.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.grad is None


def test_the_twelfth_step_in_a_row_is_recorded_and_those_after_it_played_back():
    tape = Tape()
    played, plain = pair(tape)
    for training in (played, plain):
        training.train([4] * WARM_UP_STEPS)
    assert (tape.recordings, played.graph.playing) == (0, False)
    for training in (played, plain):
        training.train([4] * 5)
    assert (tape.recordings, tape.played, played.graph.playing) == (1, 5, True)
    assert tape.within == WARM_UP_STEPS + 5, "a step ran outside of the place where it was recorded"
    assert_same(played, plain)
    assert played.graph.reason == ""


def test_a_ragged_last_batch_is_never_recorded():
    epoch = [4] * 6 + [3]
    tape = Tape()
    played, plain = pair(tape)
    for training in (played, plain):
        training.train([4] * (WARM_UP_STEPS + 1) + [3] + epoch * 3)
    assert (tape.recordings, tape.played) == (1, 1 + 18)
    assert_same(played, plain)


def test_another_size_for_long_takes_the_place_of_the_first():
    tape = Tape()
    played, plain = pair(tape)
    for training in (played, plain):
        training.train([4] * 15 + [8] * 15 + [4])
    assert (tape.recordings, tape.played) == (2, 4 + 4)
    assert not played.graph.playing
    assert_same(played, plain)


def test_another_constant_is_another_step():
    """A batch of full size of which the other ranks have less: its share of the loss is another one."""
    tape = Tape()
    played, plain = pair(tape)
    for training in (played, plain):
        training.train([4] * 13)
        training.train([4], weight=0.5)
        training.train([4])
    assert tape.played == 3
    assert_same(played, plain)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([(4, 1), (4, 12), (5, 1), (5, 13), (2, 3)]), max_size=5))
def test_any_order_of_sizes_is_the_same_training(runs):
    sizes = [size for size, count in runs for _ in range(count)]
    played, plain = pair(Tape())
    for training in (played, plain):
        training.train(sizes)
    if sizes:
        assert_same(played, plain)


def test_a_recording_that_fails_is_not_tried_again_and_leaves_nothing_behind():
    tape = Tape(fails=RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might …"))
    played, plain = pair(tape)
    honest_record = tape.record

    def breaks_off(work):
        played.precision.backward(played.model(torch.ones(1, 3)).sum())  # gradients of half a step
        return honest_record(work)

    tape.record = breaks_off
    for training in (played, plain):
        training.train([4] * 20)
    assert played.graph.reason == "the step cannot be captured: operation not permitted when stream is capturing"
    assert not played.graph.playing
    assert_same(played, plain)


class Spoiled:
    """The end of a recording that was spoiled within: as with torch, an error of its own, and on the same stream."""

    def __init__(self, streams: list[object] | None = None, stream: object = None) -> None:
        self.streams, self.stream = streams, stream

    def __enter__(self) -> None:
        if self.streams is not None:
            self.streams.append(self.stream)

    def __exit__(self, *error: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_the_reason_is_the_first_error_and_is_said_at_once(heard):
    tape = Tape()
    played, _ = pair(tape)
    honest = played.graph._step

    def step(*inputs):
        if tape.recording:
            raise RuntimeError("item() in the loss\nCompile with …")
        return honest(*inputs)

    def record(work):
        tape.recording = True
        try:
            with Spoiled():
                work()
        finally:
            tape.recording = False

    tape.recording, tape.record, played.graph._step = False, record, step
    played.train([4] * (WARM_UP_STEPS + 1))
    assert played.graph.reason == "the step cannot be captured: item() in the loss"
    assert heard == ["train.cuda_graph: steps run eagerly: the step cannot be captured: item() in the loss"]


class Allocator:
    """Of torch's allocator and generator, what knows of a recording; ``ended``: the recording came to its end."""

    def __init__(self, *, ended: bool) -> None:
        self.said: list[tuple[str, object]] = []
        self._ended = ended

    def end(self, device, pool):
        if self._ended:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.said.append(("end", (device, pool)))

    def release(self, device, pool):
        self.said.append(("release", (device, pool)))

    def clone_state(self):
        return "its state, not recording"

    def graphsafe_set_state(self, state):
        self.said.append(("generator", state))


def spoil(monkeypatch, allocator):
    """Have recordings fail, by stand-ins for torch's streams, graphs and memory; the stack of streams."""
    streams: list[object] = ["usual"]

    @contextlib.contextmanager
    def on(stream):
        depth = len(streams)
        streams.append(stream)
        try:
            yield
        finally:
            del streams[depth:]

    def graph(_graph, pool, stream, capture_error_mode):
        assert (pool, capture_error_mode) == ((0, 7), "thread_local")
        return Spoiled(streams, stream)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "side")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "default_generators", (None, allocator))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", allocator.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", allocator.release, raising=False)
    return streams


@pytest.mark.parametrize("ended", [False, True])
def test_a_recording_that_fails_leaves_the_side_stream_and_nothing_that_records(monkeypatch, ended):
    """What torch leaves: it stays on the stream, its allocator defers all frees, its generator (before 2.13) counts.

    A recording that ended, because its error was Python's alone, gives its memory back itself, and only once.
    """
    allocator = Allocator(ended=ended)
    streams = spoil(monkeypatch, allocator)
    with pytest.raises(RuntimeError, match="previous error"):
        CudaRecorder(torch.device("cuda", 1)).record(lambda: torch.zeros(()))
    assert streams == ["usual"]
    memory = [] if ended else [("end", (1, (0, 7))), ("release", (1, (0, 7)))]
    assert allocator.said == [*memory, ("generator", "its state, not recording")]


def test_a_recording_that_fails_keeps_nothing_of_the_step():
    """Activations of a large batch fill a GPU: they must be gone before the step is made call by call."""
    made: list[weakref.ref[torch.Tensor]] = []
    tape = Tape()
    played, _ = pair(tape)
    honest = played.graph._step

    def step(*inputs):
        if made or tape.recordings:
            return honest(*inputs)
        activations = torch.zeros(8)
        made.append(weakref.ref(activations))
        raise RuntimeError("not while recording")

    def record(work):
        played.graph._step = step
        return work()

    tape.record = record
    gc.disable()
    try:
        played.train([4] * (WARM_UP_STEPS + 1))
    finally:
        gc.enable()
    assert played.graph.reason.endswith("not while recording")
    assert made[0]() is None


def test_a_recording_is_let_go_before_the_process_group_is():
    """NCCL waits for every graph that uses a communicator before it destroys that, for ever if need be."""
    tape = Tape()
    played, plain = pair(tape)
    for training in (played, plain):
        training.train([4] * (WARM_UP_STEPS + 2))
    recording = weakref.ref(played.graph._play)
    played.graph.close()
    assert recording() is None
    assert not played.graph.playing
    assert_same(played, plain)


def test_the_trainer_lets_its_recording_go(monkeypatch, tmp_path):
    closed: list[None] = []
    monkeypatch.setattr(StepGraph, "close", lambda _: closed.append(None))
    train(RunSpec(train=TrainSpec(epochs=1, stop_after=1)), Ranks(rank=0, ranks=1, device=CPU), tmp_path)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("data", "compression", "ranks", "even"),
    [
        ({"name": "pack"}, "none", 2, False),
        ({"name": "pack"}, "powersgd", 1, True),
        ({"name": "pack", "on_odd": "substitute"}, "none", 2, True),
        ({"name": "pack", "on_odd": "substitute", "by_files": True}, "none", 3, False),
        ({"name": "digits"}, "bf16", 2, True),
        ({"name": "digits"}, "powersgd", 2, False),
    ],
)
def test_ranks_record_a_step_together_or_not_at_all(data, compression, ranks, even):
    """NCCL: whether an operation is captured must be the same on all ranks; who leaves a sample out is alone.

    PowerSGD counts its steps on the host, which a recording does not: it would never begin to compress.
    """
    found = uneven(DataSpec(**data), ParallelSpec(compression=compression), ranks)
    assert (found == "") == even


def test_obstacles_are_known_beforehand(monkeypatch):
    weights = [nn.Parameter(torch.ones(2))]
    gpu = torch.device("cuda", 0)
    fused, plain = (torch.optim.SGD(weights, lr=0.1, fused=fused) for fused in (True, False))
    lars = Lars(weights, lr=0.1)
    alone = {"ranks": 1, "scaled": False}
    assert obstacle(fused, CPU, **alone) == "CUDA graphs need a GPU, and this rank computes on cpu"
    assert obstacle(fused, gpu, **alone) == obstacle(lars, gpu, **alone) == ""
    assert obstacle(plain, gpu, **alone) == "SGD reads its learning rate on the host, unless it is fused"
    assert obstacle(fused, gpu, ranks=1, scaled=True) == ""
    for unfused in (plain, lars):
        assert obstacle(unfused, gpu, ranks=1, scaled=True).startswith("with loss scaling ")
    for backend, expected in (("gloo", "gradients go through gloo"), ("nccl", "")):
        monkeypatch.setattr(dist, "get_backend", lambda backend=backend: backend)
        found = obstacle(fused, gpu, ranks=2, scaled=False)
        assert found.startswith(expected)
        assert bool(found) == bool(expected)
    shared = types.SimpleNamespace(param_groups=[{"params": [types.SimpleNamespace(full_tensor=None)], "fused": True}])
    assert "fsdp" in obstacle(shared, gpu, **alone)


def test_rates_are_held_in_tensors_also_after_loading():
    weights = [nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD(weights, lr=0.1, fused=True)
    rate_as_tensor(optimizer, CPU)
    held = optimizer.param_groups[0]["lr"]
    set_rate(optimizer, 0.25)
    assert held.item() == 0.25
    optimizer.load_state_dict(torch.optim.SGD(weights, lr=0.1).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    rate_as_tensor(optimizer, CPU)
    rate_as_tensor(optimizer, CPU)
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.1))


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_rate_that_is_a_tensor_makes_the_same_steps(name):
    """As CUDA graphs need it; three steps at three rates, without another tensor for the rate."""
    ended = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = MODELS.load("resnet8")(1, 10, 4, "batch").double()
        optimizer = optimizer_of(model, TrainSpec(optimizer=name, lr=0.1))
        if captured:
            rate_as_tensor(optimizer, torch.device("cpu"))
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(3):
            model(torch.randn(4, 1, 8, 8).double()).square().sum().backward()
            set_rate(optimizer, 0.1 / (step + 1))
            optimizer.step()
            optimizer.zero_grad()
        if captured:
            assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
        ended.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*ended, rtol=1e-6, atol=1e-7)  # the tensor is single precision
