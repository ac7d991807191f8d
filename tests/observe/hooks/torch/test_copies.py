"""Which moves of tensors are copies to an accelerator, and that programs see nothing of their being timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.observe.hooks.torch import copies
from allpull.observe.recording.step_line import COPY

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch")


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was entered and left, with "meta" in the place of the accelerator: this torch can copy to it."""
    seen: list[Any] = []
    inference: Any = SimpleNamespace(recorder=object(), enter=lambda place: seen.append(place) or 7, leave=seen.append)
    for name in ("to", "cuda"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))  # so that it is put back
    monkeypatch.setattr(copies, "ACCELERATOR", "meta")
    copies.watch_copies(inference)
    return seen


MOVES: list[tuple[Callable[[Any], Any], bool]] = [
    (lambda x: x.to("meta"), True),
    (lambda x: x.to("meta", torch.float64, non_blocking=True), True),
    (lambda x: x.to(torch.device("meta")), True),
    (lambda x: x.to(device="meta"), True),
    (lambda x: x.to("cpu"), False),
    (lambda x: x.to(torch.float64), False),
    (lambda x: x.to(dtype=torch.float64, copy=True), False),
    (lambda x: x.to(torch.zeros(1)), False),
    (lambda x: torch.zeros(1, device="meta").to("meta", torch.float64), False),  # it is there already
]


@pytest.mark.parametrize(("move", "is_copy"), MOVES)
def test_a_copy_is_what_leaves_the_host(entered: list[Any], move: Callable[[Any], Any], is_copy: bool) -> None:
    assert move(torch.ones(2)).shape[0] in (1, 2)
    assert entered == ([COPY, 7] if is_copy else [])


def test_a_device_is_named_in_many_ways() -> None:
    named = [("cuda",), ("cuda:1",), (torch.device("cuda", 1),), (0,), (SimpleNamespace(is_cuda=True),)]
    others = [("cpu",), (torch.float32,), (torch.ones(1),), (), (True,), (None,)]
    assert [copies._is_to_accelerator(args, {}) for args in named] == [True] * 5
    assert [copies._is_to_accelerator(args, {}) for args in others] == [False] * 6
    assert copies._is_to_accelerator((), {"device": "cuda:0", "dtype": None})
    assert copies._is_to_accelerator((), {"other": SimpleNamespace(is_cuda=True)})


def test_the_programs_own_errors_pass_through(entered: list[Any]) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2).cuda()  # this torch has none, or no such device
    assert entered == [COPY, 7]


def test_function_modes_see_what_they_saw_before(entered: list[Any]) -> None:
    class Log(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Log() as log:
        torch.ones(2).to(torch.float64)
    assert log.names == ["ones", "to"]
    assert entered == []


@pytest.mark.slow
def test_compiled_programs_are_as_before(entered: list[Any]) -> None:
    """One graph, no break, the same result: inside it nothing is timed, around it is."""

    def double(x: Any) -> Any:
        return x.to(torch.float64) * 2

    compiled = torch.compile(double, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), double(torch.ones(2)))

    def move(x: Any) -> Any:
        return x.to("meta") * 2

    assert torch.compile(move, backend="eager", fullgraph=True)(torch.ones(2)).device.type == "meta"
    assert set(entered) <= {COPY, 7}
