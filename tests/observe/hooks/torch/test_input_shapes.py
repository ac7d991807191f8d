"""Shapes of input are counted where cuDNN tries out algorithms for each, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allpull.observe.hooks.torch.input_shapes import MOST, InputShapes


class Program:
    """A program on a device, at its boundary between steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, benchmark: bool = True, convolves: bool = True) -> None:
        torch = SimpleNamespace(
            backends=SimpleNamespace(cudnn=SimpleNamespace(benchmark=benchmark)),
            cuda=SimpleNamespace(is_initialized=lambda: True),
        )
        monkeypatch.setitem(__import__("sys").modules, "torch", torch)
        self.events: list[dict[str, Any]] = []
        self.removed: list[Any] = []
        journal = SimpleNamespace(event=lambda event, _: self.events.append(event))
        inference: Any = SimpleNamespace(
            session=None,
            failed=set(),
            recorder=SimpleNamespace(journal=journal, step_number=100),
            boundary=SimpleNamespace(remove=self.removed.append),
        )
        self.networks: Any = SimpleNamespace(see_inputs=None, convolves=lambda: convolves)
        self.part = InputShapes(inference, self.networks)

    def train(self, shapes: list[tuple[int, ...]]) -> list[int]:
        """Run steps on inputs of these shapes; what is recorded."""
        for step, shape in enumerate(shapes):
            self.part.at_step(step)
            if self.networks.see_inputs is not None:
                self.networks.see_inputs([None, SimpleNamespace(shape=shape), SimpleNamespace(shape=(step,))])
        self.part.finish()
        return [event["shapes"] for event in self.events]


def test_new_shapes_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    assert program.train([(8, 3, 32 + step // 2, 32) for step in range(100)]) == [0, 14, 30, 46, 48]


def test_one_shape_is_one_shape_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Program(monkeypatch).train([(8, 3, 32, 32)] * 100) == [0, 1]
    assert Program(monkeypatch).train([(8, 3, step, 32) for step in range(2000)])[-1] == MOST


@pytest.mark.parametrize("given", [{"benchmark": False}, {"convolves": False}])
def test_nothing_is_counted_where_nothing_is_tried_out(monkeypatch: pytest.MonkeyPatch, given: dict[str, bool]) -> None:
    program = Program(monkeypatch, **given)
    assert program.train([(8, 3, step, 32) for step in range(100)]) == []
    assert program.networks.see_inputs is None
    assert set(program.removed) == {program.part.at_step}
