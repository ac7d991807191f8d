"""Models, optimizer and schedule, each by itself."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402

from allpull.schema.spec import TrainSpec  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.models.build import trainable_parameters  # noqa: E402
from allpull.train.numerics.cuda_graph import rate_as_tensor  # noqa: E402
from allpull.train.optim.optimizer import learning_rate, optimizer_of, set_rate, sgd, split_by_decay  # noqa: E402


def test_resnet20_has_the_published_number_of_parameters():
    """He et al. 2015 give 0.27 M for CIFAR-10; with projection shortcuts (option B) it is 272,474."""
    assert trainable_parameters("resnet20", channels=3) == 272_474


def test_resnet9_has_the_convolutions_of_its_author():
    """Page 2018, for CIFAR-10: 3 → 64 → 128, 128 → 128 twice, → 256 → 512, 512 → 512 twice, and no bias in the head."""
    pairs = [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512)]
    norms = 2 * sum(channels for _, channels in pairs)
    assert trainable_parameters("resnet9", channels=3) == 9 * sum(a * b for a, b in pairs) + norms + 5120 == 6_573_120


@pytest.mark.parametrize("name", ["resnet8", "resnet9", "resnet14", "resnet20"])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_every_model_for_small_images_gives_logits_for_the_smallest(name, norm):
    model = MODELS.load(name)(1, 10, 4, norm)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


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


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_rate_that_is_a_tensor_makes_the_same_steps(name):
    """As CUDA graphs need it; three steps at three rates, without another tensor for the rate."""
    ended = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = MODELS.load("resnet8")(1, 10, 4, "batch").double()
        optimizer = optimizer_of(model, TrainSpec(optimizer=name, lr=0.1))
        if captured:
            rate_as_tensor(optimizer, torch.device("cpu"))
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(3):
            model(torch.randn(4, 1, 8, 8).double()).square().sum().backward()
            set_rate(optimizer, 0.1 / (step + 1))
            optimizer.step()
            optimizer.zero_grad()
        if captured:
            assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
        ended.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*ended, rtol=1e-6, atol=1e-7)  # the tensor is single precision
