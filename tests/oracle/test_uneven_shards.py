"""One rank with more samples: the price is that of the same samples on all ranks, whatever else the rank is late by."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.judged import assert_priced
from tests.oracle.records import Recording
from tests.oracle.training import Training, even


def with_samples(training: Training, shares: list[float]) -> Training:
    """Forward and backward of each rank take that many times as long."""
    (only,) = training.passes
    rows = [[share] for share in shares]
    longer = dataclasses.replace(only, forward=only.forward * rows, backward=only.backward * rows)
    return dataclasses.replace(training, passes=(longer,))


@pytest.mark.parametrize("chance_s", [0.0, 0.0012])
@pytest.mark.parametrize("ranks", [4, 8])
def test_the_truth_is_in_the_interval(judge: Judge, ranks: int, chance_s: float) -> None:
    """``chance_s``: this rank is also slower by as much as cores differ by, which is no finding."""
    healthy = even(ranks=ranks, steps=102, jitter=0.02).later("forward", chance_s, rank=1)
    counts = [48 if rank == 1 else 32 for rank in range(ranks)]
    uneven = with_samples(healthy, [count / 32 for count in counts])
    mended = with_samples(healthy, [sum(counts) / ranks / 32] * ranks)
    judged = judge(uneven, mended, Recording(samples=tuple(counts)))
    found = judged.finding("uneven-shards", ranks=[1])
    assert_priced(found, judged.truth, 0.0)
    assert [one.rule for one in judged.priced] == ["uneven-shards"], judged.said()
