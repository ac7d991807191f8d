"""Compute against batch: planted lines are found, and what one batch cannot tell is refused."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.predict.terms.compute import fitted


def work(*batches: float, fixed: float = 0.02, each: float = 0.001) -> dict[float, np.ndarray]:
    return {batch: np.full(4, fixed + each * batch) for batch in batches}


@pytest.mark.parametrize("batches", [(16, 32), (16, 32, 64), (8, 16, 32, 64)])
def test_a_planted_line_is_found(batches: tuple[float, ...]) -> None:
    fit = fitted(work(*batches))
    assert fit.seconds(128) == pytest.approx(0.02 + 0.128)
    assert fit.refusal(128) is None or max(batches) < 64
    assert fit.refusal(1024) is not None


def test_one_batch_gives_itself_alone() -> None:
    fit = fitted(work(32))
    assert fit.seconds(32) == pytest.approx(0.052)
    assert fit.refusal(32) is None
    assert "32 samples per rank" in (fit.refusal(64) or "")


def test_a_negative_fixed_part_becomes_none_and_a_negative_slope_an_error() -> None:
    fit = fitted({16.0: np.full(2, 0.01), 32.0: np.full(2, 0.03)})
    assert fit.fixed_s == pytest.approx(0)
    assert fit.seconds(24).min() > 0
    with pytest.raises(ValueError, match="took less time"):
        fitted({16.0: np.full(2, 0.03), 32.0: np.full(2, 0.01)})
