"""The probe of compute: each step in its parts, buckets in the order of backward, and what cannot be had is said."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from allpull.probe import compute
from allpull.probe.buckets import ready_times, single_rank_group
from allpull.probe.step_timing import Moments, Trained, noise, sgd
from allpull.rundir.read.probes import read_probe
from allpull.schema.probed import ComputeResult
from allpull.schema.probes import ComputeAnswer
from allpull.schema.trainspec import TrainSpec
from allpull.train.optim.optimizer import optimizer_of

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Slow(nn.Module):
    """Linear layers, each of which sleeps in forward for 20 ms; ``seen`` counts calls."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(layers))
        self.seen = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        time.sleep(0.02)
        flat = images.flatten(1)
        for layer in self.layers:
            flat = layer(flat)
        return flat


def images(batch: int = 4) -> torch.Tensor:
    return noise((batch, 3, 2, 2), CPU)


def test_the_parts_of_a_step_make_the_step_and_the_sleep_is_in_forward():
    model = Slow()
    found = compute.timed(model, images(), 12, "fp32", 0.01)
    steps = len(found["step_s"])
    assert steps == compute.LEAST
    assert model.seen == compute.WARMUP + steps
    for step_s, *parts in zip(*(found[name] for name in ("step_s", *compute.PARTS)), strict=True):
        assert step_s == pytest.approx(sum(parts))
    assert min(found["forward_s"]) >= 0.02
    assert found["issue_s"] is None


def test_a_step_trains_and_finite_weights_stay_finite():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    before = [one.clone() for one in model.parameters()]
    trained, moments = Trained(model, images=images(), classes=5, precision="fp32"), Moments(CPU)
    for _ in range(10):
        trained.step(moments.mark)
    assert len(moments.host_s) == 40
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(one).all() for one in model.parameters())


def test_no_step_asks_the_device_also_where_losses_are_scaled(monkeypatch):
    """As on a GPU, by the optimizer that the probe takes there: each question would be a wait for the whole step."""
    asked = []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: (asked.append(tensor.shape), item(tensor))[1])
    for fused, expected in ((True, 0), (False, 5)):
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
        trained = Trained(model, images=images(), classes=5, precision="fp16")
        trained._optimizer = sgd(model, fused=fused)
        asked.clear()
        for _ in range(5):
            trained.step(lambda: None)
        assert len(asked) == expected
        assert all(torch.isfinite(one).all() for one in model.parameters())


def test_the_optimizer_that_is_timed_is_the_trainers():
    model = nn.Linear(12, 5)
    ours = Trained(model, images=images(), classes=5, precision="fp32")._optimizer
    theirs = optimizer_of(model, TrainSpec())
    assert type(ours) is type(theirs)
    for name in ("momentum", "nesterov", "fused", "foreach"):
        assert ours.defaults[name] == theirs.defaults[name]


def test_bf16_is_the_arithmetic_of_forward():
    seen = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    model[1].register_forward_hook(lambda *given: seen.append(given[2].dtype))
    Trained(model, images=images(), classes=5, precision="bf16").step(lambda: None)
    Trained(model, images=images(), classes=5, precision="fp32").step(lambda: None)
    assert seen == [torch.bfloat16, torch.float32]


def test_buckets_hold_all_gradients_and_come_in_the_order_of_backward():
    model = Slow(layers=6)
    with single_rank_group(CPU):
        found = ready_times(model, images(), classes=12, precision="fp32", bucket_bytes=700, steps=4)
    total = sum(one.numel() * one.element_size() for one in model.parameters())
    assert sum(one["size_bytes"] for one in found["buckets"]) == total
    assert len(found["buckets"]) > 2
    for step, backward_s in enumerate(found["backward_s"]):
        ready = [one["ready_s"][step] for one in found["buckets"]]
        assert ready == sorted(ready)
        assert 0 < ready[0] <= ready[-1] <= backward_s
    assert len(found["backward_s"]) == 4


def setting(model: nn.Module) -> compute.Setting:
    made = object.__new__(compute.Setting)
    made.device, made.classes, made.shape = CPU, 12, (3, 2, 2)
    made.model = lambda: model
    return made


ASKED = {"precisions": ["fp32"], "threads": [1], "batches": [1, 2, 4], "seconds": 0.01}


def test_memory_that_does_not_do_ends_the_batches_and_is_said(monkeypatch):
    class Short(Slow):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            if len(given) == 2:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand more")
            return super().forward(given)

    monkeypatch.setattr(compute, "PATIENCE", 1e6)
    left_out: list[str] = []
    points = list(compute.measure(setting(Short()), ASKED, left_out))
    assert [one["batch"] for one in points] == [1]
    assert left_out == ["fp32, 1 thread, batch 2 and more: DefaultCPUAllocator: can't allocate memory"]


def test_batches_that_would_take_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(compute, "PATIENCE", 1e-3)
    left_out: list[str] = []
    points = list(compute.measure(setting(Slow()), ASKED, left_out))
    assert [one["batch"] for one in points] == [1]
    assert "batch 2 and more: it would take some" in left_out[0]


def test_tf32_is_for_gpus():
    left_out: list[str] = []
    assert list(compute.measure(setting(Slow()), {**ASKED, "precisions": ["tf32"]}, left_out)) == []
    assert left_out == ["tf32: only GPUs have it"]


def test_flops_of_a_linear_layer_are_counted():
    """Forward 2·in·out; backward as many for the weights, and none for images, which need no gradient."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False))
    assert compute.flop_per_sample(setting(model)) == 2 * (2 * 12 * 5)


@pytest.mark.slow
@pytest.mark.ranks
def test_a_model_is_measured_at_every_batch(probed, tmp_path):
    result, record = probed(
        "compute", "resnet8", "--size", "8", "--channels", "1", "--classes", "10", "--batch", "1,4", "--threads", "1",
        "--precision", "fp32", "--for", "0.1s", "--bucket-size", "64KiB", "--set", "model.width=8",
    )  # fmt: skip
    found = ComputeAnswer.model_validate(record)
    assert read_probe(tmp_path / "runs" / result["run"], "compute", ComputeAnswer) == found
    result = ComputeResult.model_validate(result)
    assert [(one.batch, one.precision, one.threads) for one in result.points] == [(1, "fp32", 1), (4, "fp32", 1)]
    assert all(len(one.step_s) >= compute.LEAST for one in found.points)
    (buckets,) = result.buckets
    assert sum(one.size_bytes for one in buckets.buckets) == 4 * result.parameters
    assert buckets.batch == 4
    assert all(one.ready_share > 0 for one in buckets.buckets)
    assert result.flop_per_sample is not None
    assert result.left_out == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("resnet7",), "no model 'resnet7'"),
        (("resnet8", "--for", "0s"), "not between 0 and an hour"),
        (("resnet8", "--precision", "fp8"), "no precision 'fp8'"),
        (("resnet8", "--batch", "0"), "'0' is not a number"),
        (("resnet8", "--bucket-size", "0"), "a bucket holds something"),
        (("vgg16", "--size", "8"), "at least 32×32"),
        (("resnet8", "--set", "model.name=vgg16"), "the model is given without it"),
        (("resnet8", "--set", "model.nme=3"), "model.nme: this probe does not use it"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(refused, arguments, expected):
    assert expected in refused("compute", *arguments)
