"""How many samples a batch holds, whatever class a framework gives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allpull.observe.hooks.inference.batch_size import Contents, content_of


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
    assert content_of(batch)[0] == samples


@pytest.mark.parametrize(
    ("batch", "content"),
    [
        ([Tensor(8, 3, 32, 32), Tensor(8)], (8, 8 * 3 * 32 * 32)),
        ({"labels": Tensor(8), "input_ids": Tensor(8, 77), "mask": Tensor(8, 77)}, (8, 8 * 77)),
        ({"boxes": Tensor(11, 4), "files": ("a", "b"), "images": Tensor(2, 3, 64, 64)}, (2, 2 * 3 * 64 * 64)),
        ({"ids": Tensor(6, 9), "classes": ["a", "b", "c"], "images": Tensor(6, 3)}, (6, 54)),  # of the whole data set
        ((["a", "b"], Tensor(2, 9)), (2, 18)),
        (Tensor(4, 5), (4, 20)),
        (["a", "b", "c"], (3, None)),
        (Graphs(num_graphs=8, x=Tensor(160, 3)), (8, 160)),
        ([Tensor(8, None), Tensor(8)], (8, 8)),  # ragged, or symbolic
        (None, (None, None)),
    ],
)
def test_the_largest_tensor_of_a_batch_has_its_elements(batch: Any, content: tuple[int | None, int | None]) -> None:
    assert content_of(batch) == content


@pytest.mark.parametrize(
    ("most", "batch", "samples"),
    [
        (8, (Tensor(31, 8), Tensor(8)), 8),  # pad_sequence and labels
        (8, (Tensor(31, 5, 40), Tensor(5)), 5),  # the last batch of a pass
        (8, (Tensor(3, 8), Tensor(8, 2)), 8),
        (8, (Tensor(31, 8), Tensor(31, 8)), 8),  # the next tokens are the targets
        (8, (Tensor(8, 8), Tensor(8)), 8),
        (64, (Tensor(33, 64), Tensor(33)), 33),  # as many features as samples of a whole batch
        (64, (Tensor(33, 10), Tensor(33, 10)), 33),
        (1, (Tensor(32, 10), Tensor(32)), 32),  # data sets that make batches themselves
        (1, (Tensor(32, 10), Tensor(10)), 32),
        (8, (Tensor(16, 3, 32, 32), Tensor(8)), 8),  # two views of each sample
        (8, (Tensor(10, 3, 32, 32), Tensor(5)), 5),  # and of the last batch of a pass
        (8, (Tensor(8, 3, 32, 32), Tensor(4)), 8),  # no more rows than samples
        (8, (Tensor(31, 8),), 31),
        (8, {"x": Tensor(31, 8), "y": Tensor(8)}, 31),
        (None, (Tensor(31, 8), Tensor(8)), 31),
    ],
)
def test_sequences_whose_first_dimension_is_time_are_counted_where_a_loader_says_how_many(
    most: int | None, batch: Any, samples: int
) -> None:
    iterator = SimpleNamespace(_allpull_most=most)
    contents = Contents()
    for _ in range(2):  # then as the batch before
        assert contents.of(batch, iterator)[0] == samples
