"""LARS against the paper's algorithm, averages against their closed form, schedules against those of the loop."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from allpull.schema.spec import ModelSpec, TrainSpec  # noqa: E402
from allpull.train.models.build import build  # noqa: E402
from allpull.train.optim import schedule  # noqa: E402
from allpull.train.optim.ema import Average, decay_of  # noqa: E402
from allpull.train.optim.lars import Lars  # noqa: E402
from allpull.train.optim.master_weights import MasterWeights  # noqa: E402
from allpull.train.optim.optimizer import lars, learning_rate  # noqa: E402

pytestmark = pytest.mark.torch


def one_tensor_at_a_time(weights, gradients, momenta, *, rate, momentum, decay, trust):
    """You, Gitman & Ginsburg 2017, algorithm 1, in words of one tensor."""
    for weight, gradient, velocity in zip(weights, gradients, momenta, strict=True):
        w, g = weight.square().sum().sqrt().item(), gradient.square().sum().sqrt().item()
        local = trust * w / (g + decay * w) if w > 0 and g > 0 else 1.0
        velocity.copy_(momentum * velocity + rate * local * (gradient + decay * weight))
        weight.sub_(velocity)


@pytest.mark.parametrize("decay", [0.0, 5e-5])
def test_lars_steps_as_the_paper_says(decay):
    torch.manual_seed(0)
    start = [torch.randn(4, 3, 3, 3), torch.randn(7, 5), torch.zeros(6), torch.randn(3)]
    start = [tensor.double() for tensor in start]
    mine = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    theirs, momenta = [tensor.clone() for tensor in start], [torch.zeros_like(tensor) for tensor in start]
    optimizer = Lars(mine, lr=1.0, momentum=0.9, weight_decay=decay, trust=0.01)
    for rate in (2.0, 1.0, 0.5):
        gradients = [torch.randn_like(tensor) for tensor in start]
        gradients[3].zero_()
        for parameter, gradient in zip(mine, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        one_tensor_at_a_time(theirs, gradients, momenta, rate=rate, momentum=0.9, decay=decay, trust=0.01)
        for parameter, tensor in zip(mine, theirs, strict=True):
            torch.testing.assert_close(parameter.detach(), tensor, rtol=1e-12, atol=1e-14)


def test_the_step_of_lars_does_not_depend_on_the_scale_of_the_loss():
    """The point of it: the first step of a tensor has length lr · trust · ‖w‖ whatever the gradient's."""
    for scale in (1e-4, 1.0, 1e4):
        torch.manual_seed(1)
        weight = torch.nn.Parameter(torch.randn(20, 30))
        before = weight.detach().clone()
        weight.grad = scale * torch.randn(20, 30)
        Lars([weight], lr=3.0, trust=0.002).step()
        assert (weight.detach() - before).norm() == pytest.approx(3.0 * 0.002 * before.norm().item(), rel=1e-4)


def test_lars_leaves_norms_and_biases_to_plain_sgd_and_goes_on_from_its_state():
    torch.manual_seed(0)
    model = build(ModelSpec(name="resnet8", width=4), channels=1, classes=3)
    optimizer = lars(model, TrainSpec(lr=0.1, weight_decay=0.01))
    assert [group["adapt"] for group in optimizer.param_groups] == [True, False]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    bias = model.head.bias
    before = bias.detach().clone()
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(bias.detach(), before - 0.1 * bias.grad)
    other = lars(model, TrainSpec())
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.state[bias]["momentum_buffer"], optimizer.state[bias]["momentum_buffer"])


def test_lars_passes_over_what_has_no_gradient_and_calls_its_closure():
    still, moving = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = Lars([still, moving], lr=1.0)

    def closure():
        loss = moving.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0
    assert torch.equal(still, torch.ones(2))
    assert (moving < 1).all()


@given(st.floats(0.05, 1000), st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_the_average_is_the_sum_with_falling_weights(half_life, values):
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    layer.weight.data.fill_(1.0)
    average = Average(layer, half_life_steps=half_life)
    for step, value in enumerate(values, 1):
        layer.weight.data.fill_(value)
        average.after(step)
    n, decay = len(values), 0.5 ** (1 / half_life)
    expected = decay**n + sum((1 - decay) * decay ** (n - 1 - i) * value for i, value in enumerate(values))
    with average.in_place():
        assert layer.weight.item() == pytest.approx(expected, abs=1e-9)


def test_the_average_moves_at_its_turns_alone():
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    layer.weight.data.fill_(0.0)
    average = Average(layer, half_life_steps=3, every_steps=3)
    found = []
    layer.weight.data.fill_(1.0)
    for step in range(1, 8):
        average.after(step)
        with average.in_place():
            found.append(layer.weight.item())
    assert found == [0.0, 0.0, 0.5, 0.5, 0.5, 0.75, 0.75]
    average.restart()
    with average.in_place():
        assert layer.weight.item() == 1.0


def test_the_network_has_the_average_only_within_also_after_an_error():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    average = Average(model, half_life_steps=1)
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(2.0)
        model[1].running_mean.add_(4.0)
    average.after(1)

    def look_and_fail():
        with average.in_place():
            torch.testing.assert_close(model[0].weight.detach(), start + 1.0)
            assert model[1].running_mean.tolist() == [2.0, 2.0]
            raise KeyError

    with pytest.raises(KeyError):
        look_and_fail()
    torch.testing.assert_close(model[0].weight.detach(), start + 2.0)
    assert model[1].running_mean.tolist() == [4.0, 4.0]


def test_of_a_network_in_half_precision_the_masters_are_averaged():
    """A step of 2⁻¹⁴ is lost in float16 beside 1, and so would be an average of float16."""
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    masters = MasterWeights(layer)
    average = Average(layer, half_life_steps=1, masters=masters)
    masters.weights["weight"].data.add_(2**-14)
    masters.give_weights()
    average.after(1)
    with average.in_place():
        assert layer.state_dict()["weight"].item() == 1 + 2**-15
        assert layer.weight.dtype == torch.float16
    assert layer.state_dict()["weight"].item() == 1 + 2**-14


@given(st.floats(1, 1e5), st.integers(1, 100))
def test_a_half_life_halves(half_life, every):
    assert decay_of(half_life, every_steps=every) ** (half_life / every) == pytest.approx(0.5)


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 37), st.floats(0, 6), st.floats(0.001, 10), st.integers(1, 4096))
def test_the_cosine_is_bit_for_bit_this_one(step, steps_per_epoch, warmup_epochs, lr, batch):
    """Trainings of last year are to be repeated to the last digit."""
    warmup, peak = warmup_epochs * steps_per_epoch, lr * batch / 256
    if step + 1 <= warmup:
        expected = peak * (step + 1) / warmup
    else:
        done = (step - warmup) / max(1.0, 10 * steps_per_epoch - warmup)
        expected = round(peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done))), 12)
    spec = TrainSpec(epochs=10, lr=lr, warmup_epochs=warmup_epochs)
    assert learning_rate(spec, global_batch=batch, step=step, steps_per_epoch=steps_per_epoch) == expected


@given(st.floats(0, 50), st.integers(51, 300), st.floats(0.5, 4))
def test_a_polynomial_rises_to_its_peak_and_falls_to_nothing(warmup, steps, power):
    rates = [schedule.polynomial(1.0, step, warmup_steps=warmup, steps=steps, power=power) for step in range(steps + 5)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) <= 1.0
    assert rates[steps] == rates[-1] == 0.0
