"""How ranks share a step, as far as one process can tell."""

from __future__ import annotations

import math
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.errors import BadInput, MissingPart  # noqa: E402
from allpull.probe.buckets import single_rank_group  # noqa: E402
from allpull.schema.trainspec import ParallelSpec  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.parallel import ddp  # noqa: E402
from allpull.train.parallel.fsdp import LARGE, blocks  # noqa: E402
from allpull.train.parallel.full_state import HostCopies  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402
from allpull.train.parallel.reduce_after_backward import fill  # noqa: E402
from allpull.train.parallel.strategy import distribute  # noqa: E402
from allpull.train.parallel.sync_norm import sync_norms  # noqa: E402

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, ranks=1, device=CPU)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_single_rank_calls_the_network_itself(strategy):
    model = nn.Linear(2, 2)
    shared = distribute(model, ParallelSpec(strategy=strategy), ALONE)
    assert shared.module is shared.model is model
    with shared.gathered(), shared.micro_step(last=False):
        model(torch.ones(1, 2)).sum().backward()
    shared.after_backward()
    # 2 × the gradient [[1, 1], [1, 1]], and [1, 1] of the bias
    assert float(shared.clip(math.inf)) == pytest.approx(math.sqrt(6))


def test_a_network_is_translated_where_its_strategy_wants_it():
    shared = distribute(nn.Linear(2, 2), ParallelSpec(), ALONE, translate=nn.Sequential)
    assert isinstance(shared.module, nn.Sequential)
    assert list(shared.model_state()) == ["weight", "bias"]


def test_what_is_saved_is_a_copy():
    model = nn.Linear(2, 2)
    shared = distribute(model, ParallelSpec(), ALONE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    kept, memory = shared.model_state(), shared.optimizer_state(optimizer)
    before = kept["weight"].clone(), memory["state"][0]["momentum_buffer"].clone()
    optimizer.step()
    assert torch.equal(kept["weight"], before[0])
    assert torch.equal(memory["state"][0]["momentum_buffer"], before[1])


def test_copies_from_a_gpu_are_begun_one_after_the_other_and_waited_for_once():
    """By stand-ins: a tensor that says it is on a GPU, streams that note who waits for them."""
    noted = []

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)

    class Room:
        def copy_(self, value, *, non_blocking):
            noted.append(("copy", float(value.sum()), non_blocking))
            return self

    class Cuda:
        @staticmethod
        def current_stream(device):
            return types.SimpleNamespace(synchronize=lambda: noted.append(("wait", str(device))))

    values = [torch.full((2,), float(number)).as_subclass(OnGpu) for number in range(3)]
    with HostCopies(Cuda, lambda _value: Room()) as host:
        assert all(isinstance(host.copy(value, rank=0), Room) for value in values)
        assert host.copy(values[0], rank=1) is None
    assert noted == [("copy", 0.0, True), ("copy", 2.0, True), ("copy", 4.0, True), ("wait", "cuda:0")]


def test_copies_from_a_cpu_wait_for_nothing():
    value = torch.arange(6.0).reshape(2, 3).t()
    with HostCopies(cuda=None) as host:
        copy = host.copy(value, rank=0)
    assert copy.data_ptr() != value.data_ptr()
    assert torch.equal(copy, value)
    assert copy.stride() == value.stride()


def test_a_state_for_another_number_of_parameters_is_refused():
    shared = distribute(nn.Linear(2, 2), ParallelSpec(), ALONE)
    one, two = torch.optim.SGD(nn.Linear(2, 2).parameters()), torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="the optimizer has 1 parameters, and the state 2"):
        shared.load_optimizer_state(two, one.state_dict())


@pytest.mark.parametrize("fused", [False, True])
def test_momentum_gets_the_layout_of_its_weight_whatever_it_was_saved_in(fused):
    """Weights that FSDP2 shared are contiguous, ours channels last: a fused step takes memory for memory."""

    def stepped(loaded_as):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
        momentum = {"weight": torch.arange(108.0).reshape(4, 3, 3, 3), "bias": torch.arange(4.0)}
        memory = {number: {"momentum_buffer": momentum[name]} for number, name in enumerate(momentum)}
        memory[0]["momentum_buffer"] = memory[0]["momentum_buffer"].to(memory_format=loaded_as)
        shared = distribute(model, ParallelSpec(), ALONE)
        shared.load_optimizer_state(optimizer, {**optimizer.state_dict(), "state": memory})
        for weight, about in optimizer.state.items():
            assert about["momentum_buffer"].stride() == weight.stride()
            assert not about["momentum_buffer"].requires_grad
            weight.grad = torch.zeros_like(weight)
        before = model.weight.detach().clone()
        optimizer.step()
        assert torch.allclose(before - model.weight, 0.1 * 0.9 * momentum["weight"])
        return model.weight.detach()

    assert torch.equal(stepped(torch.contiguous_format), stepped(torch.channels_last))


def test_by_default_nothing_is_asked_of_ddp_but_views_and_quiet_buffers():
    asked = ddp.options(ParallelSpec())
    assert set(asked.values()) == {False, True}
    assert asked.pop("gradient_as_bucket_view") is True
    assert len(asked) == 1


def test_ddp_times_no_step_after_its_first_ten():
    """Its clocks are events on a GPU: one that a CUDA graph has recorded must not be asked a hundred steps later."""
    with single_rank_group(torch.device("cpu")):
        module = ddp.wrap(nn.Linear(1, 1), ParallelSpec(), Ranks(rank=0, ranks=1, device=torch.device("cpu"))).module
        for _ in range(201):
            module(torch.ones(1, 1)).sum().backward()
        timed = module._get_ddp_logging_data()["iteration"]
    assert 0 < timed <= 10


def test_options_come_to_ddp_in_its_own_words():
    asked = ddp.options(ParallelSpec(bucket_mb=(0.5,), static_graph=True, bucket_view=False))
    assert (asked["bucket_cap_mb"], asked["static_graph"], asked["gradient_as_bucket_view"]) == (0.5, True, False)


@pytest.mark.parametrize("asked", [{"bucket_mb": (1.0, 25.0)}, {"batched_copy": True}])
def test_an_older_torch_says_what_it_lacks(asked, monkeypatch):
    class Older:
        def __init__(self, module, broadcast_buffers=True, bucket_cap_mb=None): ...

    monkeypatch.setattr(ddp, "DistributedDataParallel", Older)
    assert ddp.options(ParallelSpec()) == {"broadcast_buffers": False, "gradient_as_bucket_view": True}
    with pytest.raises(MissingPart, match=f"parallel.{next(iter(asked))}"):
        ddp.options(ParallelSpec(**asked))


def test_a_static_graph_takes_no_parts_of_a_batch():
    """In torch 2.13 it ends in an internal assertion."""

    class Static:
        static_graph = True

    with pytest.raises(BadInput, match="static_graph"):
        ddp.Ddp(Static(), ALONE).micro_step(last=False)


def test_buckets_are_filled_in_order_and_the_last_size_repeats():
    parameters = [nn.Parameter(torch.zeros(quarter << 16)) for quarter in (1, 1, 1, 1, 9, 1, 1)]  # quarters of a MiB
    sizes = [[len(one) >> 16 for one in bucket] for bucket in fill(parameters, [0.25, 0.5, 1.0])]
    assert sizes == [[1], [1, 1], [1], [9], [1, 1]]  # one that fits nowhere has a bucket of its own


def test_a_bucket_has_one_type():
    parameters = [nn.Parameter(torch.zeros(4, dtype=dtype)) for dtype in 2 * (torch.float16, torch.float32)]
    assert [[one.dtype for one in bucket] for bucket in fill(parameters, [25.0])] == [
        2 * [torch.float16],
        2 * [torch.float32],
    ]


@pytest.mark.parametrize(("name", "count"), [("resnet8", 3), ("resnet50", 17), ("inception_v3", 17), ("vgg16", 9)])
def test_networks_are_gathered_block_by_block(name, count):
    """Residual blocks, 16 in ResNet-50, and its classifier; Inception's 5 + 11 and classifier; VGG's 6 + 3 largest."""
    with torch.device("meta"):
        model = MODELS.load(name)(3, 1000, 0, "batch")
    found = blocks(model)
    assert len(found) == count
    inside = {id(parameter) for block in found for parameter in block.parameters()}
    rest = [parameter.numel() for parameter in model.parameters() if id(parameter) not in inside]
    assert sum(rest) < 3 * LARGE


class Activated(nn.BatchNorm2d):
    """A norm with more to it, as timm has them."""


def test_a_norm_that_would_lose_what_it_does_besides_is_refused():
    with pytest.raises(BadInput, match="Activated"):
        sync_norms(nn.Sequential(Activated(3)), Ranks(rank=0, ranks=2, device=CPU))


def test_a_single_rank_keeps_its_norms():
    model = nn.Sequential(nn.BatchNorm2d(3))
    sync_norms(model, ALONE)
    assert type(model[0]) is nn.BatchNorm2d
