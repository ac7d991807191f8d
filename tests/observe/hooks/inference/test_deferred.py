"""Calls that are only noted give the records of calls that are followed one by one, whatever a program does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from allpull.observe.hooks.inference import deferred
from allpull.observe.hooks.inference.deferred import MOST_NOTES
from allpull.observe.hooks.inference.marks_listener import MarksListener
from allpull.observe.hooks.inference.note_replay import FIELDS
from allpull.observe.hooks.inference.step_inference import StepInference
from allpull.observe.hooks.torch.noted_calls import fetching, learning, running, stepping
from allpull.observe.hooks.torch.optimizers import watch_scalers
from allpull.observe.hooks.torch.untrained import Untrained
from allpull.observe.identity import Identity
from allpull.observe.recording.recorder import Recorder
from allpull.observe.recording.step_line import CHECKPOINT, COLLECTIVE, INPUT
from allpull.rundir import layout
from allpull.rundir.job_file import WatchOptions
from allpull.rundir.live.activity import ENDED_NS, PLACES, STEP

pytestmark = pytest.mark.torch

NEVER = 10**9  # steps


class Tensor:
    """All that is looked at of a tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Batches:
    """A loader's iterator."""

    _allpull_length = 0


class Asked:
    """A network that no optimizer trains."""

    training = False

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call_impl = call

    def modules(self) -> list[Any]:
        """Itself alone."""
        return [self]


class Program:
    """A program that calls what the hooks wrap, at moments that advance by themselves."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, defers: bool) -> None:
        for folder in layout.FOLDERS:
            (directory / folder).mkdir(parents=True)
        self.now = 10**9
        who = Identity(rank=0, local_rank=0, ranks=1, host="here")
        self.recorder = Recorder(
            str(directory), who, budget=1 << 28, warmup_steps=5, clock_ns=lambda: self.now, realtime_ns=lambda: 0
        )
        self.recorder._lines.cost = None
        monkeypatch.setattr(self.recorder.queue, "since", lambda: self.now % 1000)
        failures: list[Any] = []
        self.session: Any = SimpleNamespace(
            job=SimpleNamespace(watch=WatchOptions()),
            begin=lambda: self.recorder,
            recorder=self.recorder,
            part_failed=lambda part, error: failures.append((part, error)),
        )
        self.failures = failures
        self.calls = StepInference(self.session)
        if not defers:
            self.calls.deferred._wait = NEVER
        self.calls.ready()
        self.recorder.arrival = lambda: [(0, (self.now - 500, self.now))] if self.now % 3 else []
        self.calls.makes_optimizer()
        self.iterator = Batches()
        self.calls.pass_begun(self.iterator, self, self.now)
        self.wrap()
        self.steps_file = directory / layout.steps_file(0)
        self.events_file = directory / layout.events_file(0)
        self.noted = 0
        self.collectives = 0
        self.shown: list[list[int]] = []
        self.runs_backward = True

    def wrap(self) -> None:
        """Wrap what a loop calls in every step; ``within`` is what the program does inside each call."""
        calls = self.calls.deferred
        self.within: Callable[[], Any] = lambda: None

        def call(*_: Any) -> Any:
            return self.within()

        network = SimpleNamespace(_call_impl=call, training=True)
        self.fetch = fetching(calls, call, lambda _: None)
        self.forward = running(calls, lambda: network, lambda: network, None, self.follows)
        self.network = network
        self.asked = asked = Asked(call)
        follow = Untrained(self.calls, lambda _: None).follow
        self.ask = running(calls, lambda: asked, lambda: asked, None, follow, is_trained=False)
        self.backward = learning(calls, call, lambda _: None)
        self.optimizer = object()
        self.pre, self.post = stepping(calls, lambda _args, _kwargs: None)

    def follows(self, _: Any, inputs: Any, learns: bool) -> int:
        """A forward pass that is not noted begins."""
        return self.calls.deferred.followed().forward_begins(inputs, learns)

    def fetches(self, within: Callable[[], Any]) -> Any:
        """The program fetches a batch."""
        self.within = within
        return self.fetch(self.iterator)

    def runs(self, within: Callable[[], Any], *, learns: bool = True) -> None:
        """The program runs its network."""
        self.within, self.network.training = within, learns
        self.forward(Tensor(16, 3))

    def asks(self, rng: random.Random, asks: float) -> None:
        """Perhaps the program asks a network that it does not train."""
        while rng.random() < asks:
            self.after(rng)
            self.within = lambda: self.after(rng)
            self.ask(Tensor(16, 3))

    def learns_from_it(self, within: Callable[[], Any]) -> None:
        """The program runs backward."""
        self.within = within
        self.backward()

    def step(self, rng: random.Random, *, loads: bool, odd: float, collectives: float = 0.0, asks: float = 0.0) -> None:
        """One step: input, forward, backward, optimizer, and with probability ``odd`` something else around each."""
        calls = self.calls
        for _ in range(1 + (rng.random() < odd)):
            if loads:
                self.after(rng)
                self.loads(rng, odd)
            else:
                for _ in range(rng.randrange(3)):
                    self.after(rng)
                    self.make_tensor(rng)
            self.otherwise(rng, odd)
            self.asks(rng, asks)
            for _ in range(rng.randrange(1, 4) if calls.in_parts else rng.random() > odd / 3):
                self.after(rng)
                if calls.in_parts and not loads:
                    self.make_tensor(rng)

                def inside() -> None:
                    self.otherwise(rng, odd)
                    self.calls_collectives(rng, collectives, odd)
                    self.after(rng)

                self.runs(inside, learns=rng.random() > odd / 3)
            self.otherwise(rng, odd)
            self.calls_collectives(rng, collectives, odd)
            self.asks(rng, asks)
            self.after(rng)
            if self.runs_backward and rng.random() >= odd / 4:
                self.learns_from_it(lambda: self.after(rng))
        self.otherwise(rng, odd)
        self.after(rng)
        self.pre(self.optimizer, (), {})
        self.after(rng)
        if rng.random() < odd / 4:
            return  # it raised
        self.post(self.optimizer, (), {})
        self.noted += calls.deferred.is_on

    def loads(self, rng: random.Random, odd: float) -> None:
        """The program fetches a batch, perhaps the first of another pass."""

        def batch() -> Any:
            self.after(rng)
            if rng.random() < odd / 4:
                raise StopIteration
            return [Tensor(rng.choice((16, 16, 5)), 3), Tensor(rng.choice((16, 99)))]

        try:
            self.fetches(batch)
        except StopIteration:
            self.calls.pass_begun(self.iterator, self, self.now)
            self.loads(rng, odd)

    def otherwise(self, rng: random.Random, odd: float) -> None:
        """Perhaps something that ends the notes."""
        if rng.random() > odd:
            return
        self.after(rng)
        one = rng.randrange(5)
        if one == 0:
            depth = self.calls.deferred.enter(rng.choice((COLLECTIVE, CHECKPOINT)))
            self.after(rng)
            self.calls.checkpoints.end(depth)
        elif one == 1:
            self.calls.evaluation_begins(lambda: True)
        elif one == 2:
            recorder = self.calls.recorder
            if recorder is not None:
                recorder.metric("loss", 1.0)
        elif one == 3:
            self.calls.boundary.toggle()
        else:
            self.make_tensor(rng)

    def calls_collectives(self, rng: random.Random, often: float, odd: float) -> None:
        """Perhaps some collectives, as ``torch.collectives`` reports them."""
        while rng.random() < often:
            calls = self.calls.deferred
            depth, inside, begin = calls.collective_begins(0)
            self.otherwise(rng, odd / 4)
            self.after(rng)
            end = calls.collective_ends(depth)
            calls.collective(inside + 1, self.collectives, begin, end - begin, end)
            self.collectives += 1

    def make_tensor(self, rng: random.Random) -> None:
        """A tensor is made of an array."""
        is_input = self.calls.deferred.tensor_begins()
        self.after(rng)
        if is_input:
            self.calls.deferred.tensor_ends()

    def after(self, rng: random.Random) -> None:
        """Time passes: microseconds mostly, sometimes so long that records are due."""
        self.shown.append(self.live)
        self.now += rng.choice((1_000, 50_000, 700_000, 3_000_000, 250_000_000 if rng.random() < 0.02 else 5_000))

    @property
    def live(self) -> list[int]:
        """What another process sees."""
        return [*self.recorder.live[: PLACES + 1], self.recorder.live[ENDED_NS]]

    def lines(self) -> tuple[list[Any], list[Any]]:
        """The steps and the events, once the program has ended."""
        self.calls.finish()
        self.recorder.close(ended_well=True)
        assert self.failures == []
        steps = [json.loads(line) for line in self.steps_file.read_text().splitlines()[1:]]
        events = [json.loads(line) for line in self.events_file.read_text().splitlines()[1:]]
        return steps, [event for event in events if event.pop("kind") != "watching"]  # its clock is not ours


@pytest.mark.parametrize("seed", range(24))
def test_notes_give_the_same_records(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, odd = bool(seed % 2), (0.0, 0.02, 0.2)[seed % 3]
    collectives, asks = 0.5 if seed % 4 > 1 else 0.0, 0.5 if seed >= 12 else 0.0
    programs = [Program(tmp_path / name, monkeypatch, defers=name == "noted") for name in ("noted", "live")]
    for program in programs:
        program.calls.in_parts = seed % 5 > 2
        program.runs_backward = seed % 6 != 5  # otherwise gradients come from torch.autograd.grad
    for step in range(400):
        for program in programs:
            program.shown.clear()
            program.step(random.Random(f"{seed} {step}"), loads=loads, odd=odd, collectives=collectives, asks=asks)
        noted, live = programs
        assert noted.shown == live.shown, step  # in each phase, and between them
        assert noted.live == live.live, step
        assert noted.calls.step_number == live.calls.step_number == noted.recorder.live[STEP]
        assert noted.steps_file.stat().st_size == live.steps_file.stat().st_size  # what a SIGKILL here would leave
    assert programs[0].noted > (300 if odd == 0 and not (asks and (collectives or not loads)) else 0)
    assert programs[1].noted == 0
    lines = programs[0].lines()
    assert lines == programs[1].lines()
    assert any("collectives" in step for step in lines[0]) == (collectives > 0)


def test_what_is_noted_is_on_disk_when_records_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)
    for _ in range(300):
        program.step(rng, loads=True, odd=0)
        begin_ns = json.loads(program.steps_file.read_text().splitlines()[-1]).get("begin_ns", program.now)
        assert program.now - begin_ns < 600_000_000


def test_a_forked_child_forgets_the_notes_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)
    for _ in range(20):
        program.step(rng, loads=True, odd=0)
    assert program.calls.deferred.is_on
    before, size = program.live, program.steps_file.stat().st_size
    live = program.recorder.live
    program.recorder.disown()
    program.step(rng, loads=True, odd=0)
    program.recorder.close(ended_well=True)
    assert [*live[: PLACES + 1], live[ENDED_NS]] == before
    assert program.steps_file.stat().st_size == size


def test_an_error_of_ours_ends_the_notes_and_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)
    for _ in range(20):
        program.step(rng, loads=True, odd=0)

    def fails() -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(program.recorder, "write_step", fails)
    recorder = program.calls.recorder
    assert recorder is program.recorder
    monkeypatch.undo()
    assert [part for part, _ in program.failures] == ["notes"]
    for _ in range(20):
        program.step(rng, loads=True, odd=0)
    assert not program.calls.deferred.is_on
    assert [part for part, _ in program.failures] == ["notes"]
    assert recorder.step_number == recorder.live[STEP] == 40  # the lost steps shift no other


def test_a_step_that_never_ends_fills_no_memory_and_is_repeated_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [Program(tmp_path / name, monkeypatch, defers=name == "noted") for name in ("noted", "live")]
    repeats = Mock(side_effect=deferred.replay)
    monkeypatch.setattr(deferred, "replay", repeats)
    for program in programs:
        rng, calls = random.Random(0), program.calls
        for _ in range(20):
            program.step(rng, loads=True, odd=0)
        repeats.reset_mock()
        for _ in range(3 * MOST_NOTES):
            program.after(rng)
            program.fetches(lambda: [Tensor(16, 3)])
            program.after(rng)
            program.runs(lambda: None)
            program.after(rng)
            program.learns_from_it(lambda: None)
            assert len(calls.deferred.notes) < 2 * MOST_NOTES
        assert calls.deferred.is_on == (program is programs[0])
        assert repeats.call_count <= 3 * 3 * FIELDS
        program.step(rng, loads=True, odd=0)
    assert programs[0].lines() == programs[1].lines()


def test_a_training_thread_loses_nothing_when_another_thread_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)

    def train() -> None:
        program.calls._thread = get_ident()
        for _ in range(30):
            program.step(rng, loads=True, odd=0)

    thread = Thread(target=train)
    thread.start()
    thread.join()
    assert program.calls.deferred.is_on
    steps, _ = program.lines()
    assert [step["step"] for step in steps] == list(range(30))


def test_a_note_that_a_signal_handler_cut_off_is_of_no_later_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [Program(tmp_path / name, monkeypatch, defers=True) for name in ("cut", "whole")]
    for program in programs:
        rng, deferred = random.Random(0), program.calls.deferred
        for step in range(40):
            if step == 20:
                deferred.settle()
                deferred.notes.extend((INPUT, program.now, program.now, None) if program is programs[0] else ())
            program.step(rng, loads=True, odd=0)
        assert deferred.is_on
    assert programs[0].lines() == programs[1].lines()


def test_a_metric_of_another_thread_is_of_the_step_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)
    for _ in range(30):
        program.step(rng, loads=True, odd=0)
    thread = Thread(target=MarksListener(program.calls).metric, args=("loss", 1.0, None))
    thread.start()
    thread.join()
    assert program.calls.deferred.is_on
    _, events = program.lines()
    assert [event["step"] for event in events if event.get("name") == "loss"] == [30]


@pytest.mark.torch
@pytest.mark.parametrize("enabled", [False, True])
def test_a_scaler_that_is_off_leaves_calls_noted(
    enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalers = pytest.importorskip("torch.amp.grad_scaler")
    monkeypatch.setattr(scalers.GradScaler, "step", lambda _, optimizer: optimizer.step())
    program, rng = Program(tmp_path, monkeypatch, defers=True), random.Random(0)
    watch_scalers(program.calls)
    scaler, calls = scalers.GradScaler("cpu", enabled=enabled), program.calls

    def step() -> None:
        program.pre(program.optimizer, (), {})
        program.after(rng)
        program.post(program.optimizer, (), {})

    for _ in range(20):
        program.after(rng)
        program.fetches(lambda: [Tensor(16, 3)])
        program.runs(lambda: None)
        program.learns_from_it(lambda: None)
        program.after(rng)
        scaler.step(SimpleNamespace(step=step))
        program.noted += calls.deferred.is_on
    assert program.noted == (0 if enabled else 19)  # all but the first
    steps, _ = program.lines()
    assert len(steps) == 20
    assert all(record["optimizer_ns"] > 0 for record in steps)
