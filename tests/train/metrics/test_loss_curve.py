"""The curve of losses: every step in it once, told while an epoch goes on, and what is no number said at once."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from allpull import marks  # noqa: E402
from allpull.train.metrics.loss_curve import POINTS_AT_ONCE, LossCurve  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))


class Curve:
    """Hears points of the curve, and remarks."""

    def __init__(self) -> None:
        self.points: dict[int, float] = {}
        self.remarks: list[str] = []

    def metric(self, name: str, value: float, step: int) -> None:
        assert name == "train_loss"
        assert step not in self.points
        self.points[step] = value

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def told(losses, *, every, epoch_steps, saved=(), begun=()):
    """The curve of ``losses``, one per step, and the last `LossCurve`; ``saved``: where they are reduced."""
    curve = Curve()
    before = marks.listen(curve)
    try:
        kept = LossCurve(ALONE, every=every)
        kept.of_epoch = [*begun]
        for step, loss in enumerate(losses, start=1 + len(begun)):
            kept.add(torch.tensor(loss), step)
            if step in saved:
                kept.reduce(step)
            if step % epoch_steps == 0:
                kept.end_epoch(step)
    finally:
        marks.listen(before)
    return curve, kept


@given(
    st.integers(1, 4),
    st.integers(1, 60),
    st.integers(1, 3),
    st.sets(st.integers(1, 180), max_size=5),
    st.integers(0, 9),
)
def test_points_are_means_of_neighbours_whenever_they_are_shared(every, epoch_steps, epochs, saved, begun):
    """Also where a training goes on within an epoch: its first losses then come from the checkpoint."""
    losses = [float(step) for step in range(1, epoch_steps * epochs + 1)]
    begun = losses[: min(begun, epoch_steps - 1)]
    curve, kept = told(losses[len(begun) :], every=every, epoch_steps=epoch_steps, saved=saved, begun=begun)
    expected = {}
    for first in range(0, len(losses), epoch_steps):
        of_epoch = losses[first : first + epoch_steps]
        for start in range(0, epoch_steps, every):
            some = of_epoch[start : start + every]
            expected[first + start + len(some)] = sum(some) / len(some)
    assert curve.points == expected
    assert kept.this_run == losses[len(begun) :]


def test_points_are_told_before_the_epoch_ends():
    curve, _ = told([0.5] * 250, every=10, epoch_steps=10_000)
    assert list(curve.points) == [*range(10, 201, 10)]
    assert POINTS_AT_ONCE == 10


def test_accuracies_are_points_of_the_same_steps_and_begin_where_they_are_known():
    """Steps before a resume have a loss from the checkpoint, and no accuracy."""
    heard = []
    before = marks.listen(SimpleNamespace(metric=lambda *point: heard.append(point)))
    try:
        kept = LossCurve(ALONE, every=2)
        kept.of_epoch = [4.0, 2.0, 1.0]
        for step, top1 in ((4, 0.25), (5, 0.5), (6, 1.0)):
            kept.add(torch.tensor([3.0, top1, 1.0]), step)
        kept.end_epoch(6)
    finally:
        marks.listen(before)
    assert heard == [
        *[("train_loss", 3.0, 2), ("train_loss", 2.0, 4), ("train_top1", 0.25, 4), ("train_top5", 1.0, 4)],
        *[("train_loss", 3.0, 6), ("train_top1", 0.75, 6), ("train_top5", 1.0, 6)],
    ]


def test_a_loss_that_is_no_number_is_said_once():
    curve, _ = told([0.5] * 20 + [math.nan] * 30, every=1, epoch_steps=1000)
    assert curve.remarks == ["train_loss is nan at step 21: the training has diverged, or data are damaged"]
