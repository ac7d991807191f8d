"""Which weights may be rounded before they are gathered: those that autocast rounds anyway, and no others."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fsdp = pytest.importorskip("allpull.train.parallel.fsdp", reason="this torch has no FSDP2")

from torch import nn  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402

from allpull.schema.trainspec import ParallelSpec  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.models.layers import Pointwise  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402
from allpull.train.parallel.strategy import distribute  # noqa: E402

pytestmark = pytest.mark.torch
HALF = (torch.bfloat16, torch.float16)


class Squared(nn.Linear):
    """A layer that does something of its own with its weights."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight**2, self.bias)


def called(layer, x, dtype):
    """Output and gradients under autocast, in single precision."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype):
        out = layer(x, x, x, need_weights=False)[0] if isinstance(layer, nn.MultiheadAttention) else layer(x)
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach().float(), x.grad, *(parameter.grad.float() for parameter in layer.parameters())]


def rounded(layer, dtype):
    """A copy of ``layer`` whose parameters were rounded beforehand, and are of that type."""
    other = copy.deepcopy(layer)
    for parameter in other.parameters():
        parameter.data = parameter.data.to(dtype)
    return other


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(8, 8), (2, 3, 8)),
        (lambda: nn.Conv1d(8, 8, 3), (2, 8, 9)),
        (lambda: nn.Conv2d(8, 8, 3), (2, 8, 9, 9)),
        (lambda: nn.Conv3d(8, 8, 3), (2, 8, 5, 5, 5)),
        (lambda: Pointwise(8, 8, 2, bias=True), (2, 8, 9, 9)),
        (lambda: nn.MultiheadAttention(8, 2), (5, 2, 8)),
    ],
)
def test_rounding_what_autocast_rounds_changes_no_bit(make, shape, dtype):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(shape)
    assert fsdp.rounded_parameters(layer) == {*layer.parameters()}
    pairs = zip(called(layer, x, dtype), called(rounded(layer, dtype), x, dtype), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(8),
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.LayerNorm(8),
        lambda: nn.Embedding(8, 8),
        lambda: Squared(8, 8),
        lambda: weight_norm(nn.Linear(8, 8)),
        lambda: nn.Linear(8, 8, dtype=torch.float64),
    ],
)
def test_what_autocast_leaves_alone_is_not_rounded(make):
    assert fsdp.rounded_parameters(make()) == set()


def test_rounding_the_weights_of_others_would_change_the_result():
    layer, x = Squared(8, 8), torch.randn(3, 8)
    ours, theirs = (called(one, x, torch.bfloat16)[0] for one in (layer, rounded(layer, torch.bfloat16)))
    assert not torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["resnet8", "resnet50", "vgg16_bn", "inception_v3"])
def test_of_a_networks_blocks_only_the_norms_are_left_to_the_root(name, monkeypatch):
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda *_: None)  # takes seconds, and is not looked at
    model = MODELS.load(name)(3, 10, 0, "batch")
    parts = fsdp.blocks(model)
    left = [{*part.parameters()} - fsdp.rounded_parameters(part) for part in parts]
    normed = {one for part in model.modules() if isinstance(part, nn.BatchNorm2d) for one in part.parameters()}
    assert set().union(*left) <= normed
    assert len(parts) > 2


def test_a_block_that_is_mostly_something_else_stays_as_it_is():
    """Else the root would keep most of it gathered throughout a step."""
    block = nn.Sequential(nn.Linear(8, 8), nn.Embedding(100, 8))
    assert fsdp.rounded_parameters(block) == set()
    assert len(fsdp.rounded_parameters(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(1)))) == 2


def test_a_torch_that_cannot_leave_norms_out_rounds_nothing_and_says_so(monkeypatch, heard):
    asked = []
    monkeypatch.setattr(fsdp, "can_exclude_parameters", lambda: False)
    monkeypatch.setattr(fsdp, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(fsdp, "fully_shard", lambda part, **options: asked.append(options))
    monkeypatch.setattr(fsdp, "Fsdp", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_: None)
    for rank in (0, 1):
        ranks = Ranks(rank=rank, ranks=2, device=torch.device("cpu"))
        model = MODELS.load("resnet8")(1, 10, 4, "batch")
        distribute(model, ParallelSpec(strategy="fsdp"), ranks, rounded_to=torch.bfloat16)
    assert len(asked) == 2 * (3 + 1)
    assert not any("mp_policy" in options for options in asked)
    (said,) = heard
    assert "sends weights in single precision" in said
