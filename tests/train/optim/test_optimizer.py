"""What the optimizer decays, and the learning rates that it takes: warm-up, steps, cosine, polynomial, constant."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402

from allpull.schema.spec import TrainSpec  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.optim.optimizer import learning_rate, sgd, split_by_decay  # noqa: E402


def test_no_norm_and_no_bias_is_decayed():
    """Also those of the shortcuts, which a filter by name misses."""
    model = MODELS.load("resnet8")(1, 10, 16, "batch")
    decayed, free = split_by_decay(model)
    assert all(parameter.dim() > 1 for parameter in decayed)
    assert all(parameter.dim() == 1 for parameter in free)
    assert len(decayed) + len(free) == len(list(model.parameters()))
    groups = sgd(model, TrainSpec()).param_groups
    assert [group["weight_decay"] for group in groups] == [1e-4, 0.0]
    assert {group["momentum"] for group in groups} == {0.9}


def test_warm_up_is_linear_and_ends_at_the_scaled_rate():
    """Goyal et al. 2017: learning rate × global batch / 256."""
    spec = TrainSpec(epochs=90, lr=0.1, warmup_epochs=5.0, schedule="step", step_epochs=30.0)
    rates = [learning_rate(spec, global_batch=8192, step=step, steps_per_epoch=156) for step in range(5 * 156)]
    assert rates[-1] == pytest.approx(3.2)
    assert np.diff(rates) == pytest.approx(np.full(5 * 156 - 1, rates[0]))


@pytest.mark.parametrize(("epoch", "factor"), [(29, 1.0), (30, 0.1), (59, 0.1), (60, 0.01), (89, 0.01)])
def test_step_schedule_divides_by_ten_each_thirty_epochs(epoch, factor):
    spec = TrainSpec(epochs=90, lr=0.1, warmup_epochs=5.0, schedule="step", step_epochs=30.0)
    rate = learning_rate(spec, global_batch=256, step=epoch * 10, steps_per_epoch=10)
    assert rate == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(("epoch", "factor"), [(5, 1.0), (29, 1.0), (30, 0.1), (60, 0.01), (79, 0.01), (80, 0.001)])
def test_milestones_divide_by_ten_after_30_60_and_80_epochs(epoch, factor):
    """The schedule of HAL's 90 epochs; the warm-up of 5 is within the first 30."""
    spec = TrainSpec(epochs=90, lr=0.1, warmup_epochs=5.0, schedule="milestones", milestones=(30.0, 60.0, 80.0))
    rate = learning_rate(spec, global_batch=512, step=epoch * 10, steps_per_epoch=10)
    assert rate == pytest.approx(0.2 * factor)
    assert learning_rate(spec, global_batch=512, step=24, steps_per_epoch=10) == pytest.approx(0.1)


def test_all_parameters_decay_as_in_plain_sgd():
    """One step of torch's own SGD on every parameter gives the same weights; gamma and biases shrink too."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(MODELS.load("resnet8")(1, 10, 16, "batch"))
    ours, theirs = made
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    for model, optimizer in (
        (ours, sgd(ours, TrainSpec(**options, decay="all"))),
        (theirs, torch.optim.SGD(theirs.parameters(), **options)),
    ):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_cosine_ends_near_nothing_and_never_rises():
    spec = TrainSpec(epochs=4, lr=0.1, warmup_epochs=0.0)
    rates = [learning_rate(spec, global_batch=256, step=step, steps_per_epoch=25) for step in range(100)]
    assert rates[0] == 0.1
    assert rates[-1] < 1e-4
    assert all(later <= earlier for earlier, later in zip(rates, rates[1:], strict=False))
    assert rates[50] == pytest.approx(0.1 * 0.5 * (1 + math.cos(math.pi / 2)))


@pytest.mark.parametrize(("step", "rate"), [(0, 0.05), (1, 0.1), (2, 0.1), (10**6, 0.1)])
def test_a_constant_rate_stays_after_the_warm_up(step, rate):
    spec = TrainSpec(epochs=2, lr=0.1, warmup_epochs=2.0, schedule="constant")
    assert learning_rate(spec, global_batch=256, step=step, steps_per_epoch=1) == pytest.approx(rate)


def test_a_polynomial_of_power_1_is_a_straight_line_to_nothing():
    spec = TrainSpec(epochs=10, lr=0.1, warmup_epochs=0.0, schedule="polynomial", power=1.0)
    rates = [learning_rate(spec, global_batch=256, step=step, steps_per_epoch=10) for step in range(101)]
    assert rates == pytest.approx(np.linspace(0.1, 0.0, 101))


def test_nesterov_looks_ahead():
    """Sutskever et al. 2013: with a constant gradient g and momentum μ the first step is lr · g · (1 + μ)."""
    layer = torch.nn.Linear(1, 1, bias=False)
    start = layer.weight.item()
    layer.weight.grad = torch.ones(1, 1)
    sgd(layer, TrainSpec(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.0)).step()
    assert layer.weight.item() == pytest.approx(start - 0.1 * 1.9)
