"""How many samples a batch holds, whatever class a framework gives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allpull.observe.hooks.inference.batch_size import samples_of


class Tensor:
    """Something with a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Annotated:
    """A batch that also holds classes, whose annotations and functions are no samples."""

    def __init__(self, **parts: Any) -> None:
        self.kind = Tensor
        self.other = pytest
        vars(self).update(parts)


class Graphs(Annotated):
    """As PyTorch Geometric joins graphs: rows of ``x`` are nodes of all of them."""

    num_nodes = 160


class Lazy:
    """A batch whose properties fail outside its own framework."""

    def __init__(self) -> None:
        self.x = Tensor(7, 2)

    @property
    def num_graphs(self) -> int:
        raise RuntimeError("not joined")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (Annotated(x=Tensor(6, 3)), 6),
        (Annotated(texts=["a", "b", "c"]), 3),
        (Annotated(), None),
        (Annotated(batch_size=5, x=Tensor(9, 3)), 5),
        (Graphs(num_graphs=8, x=Tensor(160, 3)), 8),
        ((Graphs(num_graphs=8, x=Tensor(160, 3)), Tensor(3)), 8),
        (Graphs(x=Tensor(160, 3)), None),
        (Graphs(node_stores=[SimpleNamespace(x=Tensor(99, 2)), SimpleNamespace(batch_size=4)]), 4),
        ([Graphs(x=Tensor(20, 3)), Graphs(x=Tensor(20, 3))], 2),
        (Lazy(), 7),
    ],
)
def test_samples_of_batches_of_their_own_class(batch: Any, samples: int | None) -> None:
    assert samples_of(batch) == samples
