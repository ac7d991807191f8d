"""Digests of batches depend on every kind of content, and on nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from allpull.observe.hooks.inference.first_batches import MOST, MOST_ELEMENTS, digest_of  # noqa: E402
from allpull.schema.digest_events import FirstBatches as Event  # noqa: E402

pytestmark = pytest.mark.torch


def images(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(seed: int) -> Any:
    return torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda seed: images(seed, 8, 32), id="a tensor"),
        pytest.param(lambda seed: [images(0, 8, 32), labels(seed)], id="a pair of which one differs"),
        pytest.param(lambda seed: {"inputs": {"tokens": labels(seed)}}, id="mappings"),
        pytest.param(lambda seed: (["a text", f"another {seed}"], labels(0)), id="texts"),
        pytest.param(lambda seed: SimpleNamespace(x=images(seed, 8, 3), num_graphs=8), id="a class of its own"),
        pytest.param(lambda seed: images(seed, 4, 3, 64, 64).to(memory_format=torch.channels_last), id="large"),
        pytest.param(lambda seed: images(seed, 8, 3).to(torch.bfloat16), id="half precision"),
        pytest.param(lambda seed: torch.complex(images(seed, 8), images(0, 8)), id="complex"),
        pytest.param(lambda seed: images(seed, 32, 8).t(), id="with gaps in memory"),
    ],
)
def test_equal_content_alone_has_equal_digests(made: Any) -> None:
    one = digest_of(made(1))
    assert one is not None
    assert len(one) == 8
    assert one == digest_of(made(1))
    assert one != digest_of(made(2))


@pytest.mark.parametrize("batch", [None, 3, (), [], {}, torch.empty(0), torch.empty(3, device="meta"), object()])
def test_what_has_no_content_has_no_digest(batch: Any) -> None:
    assert digest_of(batch) is None


def test_a_batch_that_raises_has_no_digest() -> None:
    class Batch(dict[str, int]):
        def values(self) -> Any:
            raise RuntimeError

    assert digest_of(Batch(x=1)) is None


def test_of_large_tensors_few_elements_count() -> None:
    many = torch.zeros(2 * MOST_ELEMENTS)
    assert digest_of(many) == digest_of(many.index_fill(0, torch.tensor([1]), 1.0))
    assert digest_of(many) != digest_of(many.index_fill(0, torch.tensor([2]), 1.0))


def test_the_most_digests_fit_into_an_event() -> None:
    Event(kind="first_batches", digests=MOST * digest_of(images(1, 8)), iterable_workers=64, t_ns=0)
