"""Played-back steps are the steps of the training, in whatever order shapes come; what cannot be recorded is said.

There is no GPU in tests: a stand-in records a step by keeping it, so that playing it back makes it on the fixed inputs.
"""

from __future__ import annotations

import contextlib
import copy
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from allpull.train.graph import WARM_UP_STEPS, CudaRecorder, StepGraph, hold_rate, obstacle  # noqa: E402
from allpull.train.lars import Lars  # noqa: E402
from allpull.train.optimise import set_rate  # noqa: E402
from allpull.train.precision import Precision  # noqa: E402

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
        hold_rate(self.optimizer, CPU)
        self.graph = StepGraph(self.step, lambda: self.precision.forget(self.optimizer), recorder)
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
    assert played.graph.reason == "the step cannot be recorded: operation not permitted when stream is capturing"
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
    assert played.graph.reason == "the step cannot be recorded: item() in the loss"
    assert heard == ["train.cuda_graph: steps are made call by call: the step cannot be recorded: item() in the loss"]


def test_a_recording_that_fails_leaves_the_side_stream(monkeypatch):
    """By stand-ins for torch's streams and graphs: whatever they leave behind, the stream is the usual one again."""
    streams: list[object] = ["usual"]

    @contextlib.contextmanager
    def on(stream):
        depth = len(streams)
        streams.append(stream)
        try:
            yield
        finally:
            del streams[depth:]

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "side")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", lambda _graph, stream, capture_error_mode: Spoiled(streams, stream))
    with pytest.raises(RuntimeError, match="previous error"):
        CudaRecorder(CPU).record(lambda: torch.zeros(()))
    assert streams == ["usual"]


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
        assert obstacle(unfused, gpu, ranks=1, scaled=True).startswith("loss scaling with ")
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
    hold_rate(optimizer, CPU)
    held = optimizer.param_groups[0]["lr"]
    set_rate(optimizer, 0.25)
    assert held.item() == 0.25
    optimizer.load_state_dict(torch.optim.SGD(weights, lr=0.1).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    hold_rate(optimizer, CPU)
    hold_rate(optimizer, CPU)
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.1))
