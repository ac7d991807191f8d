"""Training does not depend on the number of ranks, nor on being stopped."""

from __future__ import annotations

import pytest

from allpull.analyse.replicas import replicas
from allpull.rundir.read.run import read_run

pytestmark = pytest.mark.slow

EXACT = ("train.epochs=2", "train.log_every=1", "model.dtype=float64", "model.width=8", "observe.counters=false")


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("norm", "limit", "samples"),
    [
        pytest.param("none", 150, [32, 32, 11], marks=pytest.mark.slow),
        ("group", 129, [32, 32, 0]),
    ],
)
def test_one_rank_of_64_and_two_of_32_have_the_same_losses(train_digits, norm, limit, samples):
    """Without batch statistics and in float64, and with a ragged last batch, even where a rank has none of its samples.

    Those of rank 1 are ``samples`` an epoch.
    """
    options = (*EXACT, f"model.norm={norm}", f"data.limit={limit}", "train.lr=0.05")
    one = train_digits(1, *options, "train.batch=64")
    two = train_digits(2, *options, "train.batch=32")
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert len(one.metric("train_loss")) == 6
    assert [step["samples"] for step in two.steps(rank=1)] == samples * 2
    assert two.metric("train_loss") == pytest.approx(one.metric("train_loss"), abs=1e-9, rel=0)
    assert two.metric("test_loss") == pytest.approx(one.metric("test_loss"), abs=1e-9, rel=0)
    assert two.metric("test_top1") == one.metric("test_top1")
    assert one.metric("train_loss")[0] != one.metric("train_loss")[-1]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "per_epoch", "graph"),
    [(2, 12, "false"), (3, 8, "false"), (3, 8, "true")],
)
def test_stopping_in_mid_epoch_and_resuming_is_as_not_stopping(train_digits, ranks, per_epoch, graph):
    """Bit for bit, with batch statistics, momentum and augmentation; sums of three depend on the order of addition."""
    short = ("train.epochs=3", "train.log_every=1", "model.width=8", "observe.counters=false")
    options = (*short, f"parallel.static_graph={graph}")
    whole = train_digits(ranks, *options)
    first = train_digits(ranks, *options, "train.stop_after=17")
    rest = train_digits(ranks, *options, resume=first.directory)
    assert (whole.code, first.code, rest.code) == (0, 0, 0), rest.err
    assert [step["step"] for step in rest.steps()] == list(range(17, 3 * per_epoch))
    assert rest.steps()[0]["tags"][0] == "resumed"
    assert {step["backward_passes"] for step in whole.steps()} == {1}, "those that settle the buckets are of no step"
    whole_epochs = 17 // per_epoch  # before the one in which it was stopped, of which all losses are kept
    assert rest.metric("train_loss") == whole.metric("train_loss")[whole_epochs * per_epoch :]
    assert rest.metric("test_loss") == whole.metric("test_loss")[whole_epochs:]


@pytest.mark.ranks
def test_training_stops_at_the_accuracy_and_the_training_part_has_curves(train_digits):
    """The curves of two ranks have the points of the loss; the last evaluation is the first that reaches the goal."""
    options = (
        "train.epochs=9",
        "train.log_every=4",
        "train.log_accuracy=true",
        "train.stop_at_top1=0.8",
        "train.check_replicas=20",
    )
    run = train_digits(2, *options, "observe.counters=false")
    assert run.code == 0, run.err
    *before, last = run.metric("test_top1")
    assert last >= 0.8 > max(before, default=0)
    assert len(before) < 8
    assert "train.stop_at_top1" in run.err
    top1, top5 = run.metric("train_top1"), run.metric("train_top5")
    assert len(top1) == len(top5) == len(run.metric("train_loss"))
    assert 0.5 < top1[-1] < top5[-1] <= 1
    assert top1[0] < top1[-1]
    copies = replicas(read_run(run.directory).events)
    assert copies is not None
    assert copies.differ == []
    assert copies.checked == len(run.steps()) // 20 + (len(run.steps()) % 20 > 0)


@pytest.mark.slow
@pytest.mark.ranks
def test_resuming_within_an_epoch_refuses_another_global_batch(train_digits):
    first = train_digits(1, "train.epochs=2", "train.stop_after=5", "observe.counters=false")
    rest = train_digits(2, "train.epochs=2", "observe.counters=false", resume=first.directory)
    assert rest.code == 2
    assert "the global batch has changed since" in rest.err
    assert "then: 64; now: 128" in " ".join(rest.err.split())
    assert "Traceback" not in rest.err
