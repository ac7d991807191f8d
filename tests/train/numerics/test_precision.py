"""Lower precisions train as single precision does; steps with infinities change nothing, on any rank or on all."""

from __future__ import annotations

import copy
import functools
import io
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.data.datasets.dataset import read  # noqa: E402
from allpull.errors import BadInput, MissingPart  # noqa: E402
from allpull.schema.trainspec import ModelSpec, TrainSpec  # noqa: E402
from allpull.train.models.build import build  # noqa: E402
from allpull.train.numerics.precision import AMPERE, Precision, allow_tf32, check_here, missing, optimized_parameters  # noqa: E402
from allpull.train.optim.lars import Lars  # noqa: E402
from allpull.train.optim.optimizer import sgd  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
STEPS = 24
BATCH = 32


@functools.cache
def digits(step):
    data = read("digits", "")
    some = slice(step * BATCH, (step + 1) * BATCH)
    images = torch.from_numpy(data.train.images[some]).permute(0, 3, 1, 2).float()
    return (images - data.mean) / data.std, torch.from_numpy(data.train.labels[some]).long()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors gain nothing by more, and lose much where processors are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ready(name, model, make=sgd):
    """``model`` in precision ``name``, and its optimizer."""
    precision = Precision(name, CPU)
    precision.prepare(model)
    optimizer = make(model, TrainSpec(lr=0.02, weight_decay=1e-4))
    precision.attach(optimizer)
    return precision, model, optimizer


def resnet(name, **options):
    torch.manual_seed(0)
    return ready(name, build(ModelSpec(width=8, **options), channels=1, classes=10))


def step(precision, model, optimizer, number, clip=None):
    images, labels = digits(number)
    logits = precision.forward(model, images)
    assert logits.dtype == torch.float32
    loss = nn.functional.cross_entropy(logits, labels)
    precision.backward(loss)
    precision.step(optimizer, clip)
    return loss.item()


@pytest.fixture(scope="module")
def curves():
    """LossCurve of the first steps on digits, by precision."""
    return {name: [step(*resnet_, i) for i in range(STEPS)] for name, resnet_ in trainings().items()}


def trainings():
    return {name: resnet(name) for name in ("fp32", "bf16", "fp16", "o2")}


@pytest.mark.parametrize("name", ["bf16", "fp16", "o2"])
def test_lower_precision_learns_as_single_precision_does(curves, name):
    """Micikevicius et al. 2017: the curves lie on each other. bfloat16 has 8 bits, so a loss near 2 is good to 0.01."""
    assert curves[name][0] == pytest.approx(curves["fp32"][0], abs=0.01)
    assert curves[name] == pytest.approx(curves["fp32"], abs=0.06)
    assert sum(curves[name][-12:]) == pytest.approx(sum(curves["fp32"][-12:]), rel=0.02)
    assert curves["fp32"][-1] < 0.8 * curves["fp32"][0]
    assert curves[name] != curves["fp32"]


def test_o2_and_autocast_to_fp16_are_the_same_arithmetic_on_a_network_of_convolutions_and_norms(curves):
    """Both multiply rounded weights in float16, and move single-precision ones: each is the other's oracle."""
    assert curves["o2"] == pytest.approx(curves["fp16"], rel=1e-4)


def test_single_precision_is_torch_alone_bit_for_bit():
    mine, plain = resnet("fp32"), resnet("fp32")
    _, model, optimizer = plain
    for number in range(3):
        step(*mine, number)
        images, labels = digits(number)
        torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
    for name, value in mine[1].state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert mine[0].state_dict() == mine[0].metrics() == {}
    seen = []
    mine[0].forward(lambda images: seen.append(torch.is_autocast_enabled("cpu")) or images, images)
    assert seen == [False]


def test_parts_of_a_batch_add_up_to_the_whole():
    """The scale stays the same until the step, so scaled gradients of parts may be added."""
    weights = {}
    for parts in (1, 4):
        precision, model, optimizer = resnet("fp16", norm="group")
        images, labels = digits(0)
        for i, t in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            precision.backward(nn.functional.cross_entropy(precision.forward(model, i), t, reduction="sum") / BATCH)
        precision.step(optimizer)
        weights[parts] = model.state_dict()
    start = resnet("fp16", norm="group")[1].state_dict()
    for name, value in weights[1].items():
        moved_by = (value - start[name]).norm()
        assert (weights[4][name] - value).norm() <= 0.01 * moved_by, name


@pytest.mark.parametrize("name", ["fp16", "o2"])
@pytest.mark.parametrize("kind", ["foreach", "fused", "lars"])
@pytest.mark.parametrize("bad_step", [0, 2])
def test_a_step_with_an_infinity_changes_nothing_but_the_scale(name, kind, bad_step):
    """Also the first step of a fused SGD, for which torch 2.13 takes uninitialised memory as momentum."""

    def make(model, spec):
        if kind == "lars":
            return Lars(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay)
        return torch.optim.SGD(model.parameters(), lr=spec.lr, momentum=0.9, **{kind: True})

    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    inputs = torch.randn(4, 8, 3)

    def train(bad):
        precision, model, optimizer = ready(name, copy.deepcopy(start), make)
        for number in range(4):
            loss = precision.forward(model, inputs[number]).square().mean()
            if number in bad:
                before = [weight.clone() for weight in optimized_parameters(optimizer)]
                precision.backward(loss * torch.inf)
                precision.step(optimizer)
                assert all(map(torch.equal, optimized_parameters(optimizer), before))
            elif number != bad_step:
                precision.backward(loss)
                precision.step(optimizer)
        return precision, model

    precision, model = train([bad_step])
    assert precision.metrics() == {"loss_scale": 2.0**15, "skipped_steps": 1.0}
    without, other = train([])
    assert without.metrics() == {"loss_scale": 2.0**16, "skipped_steps": 0.0}
    for name, value in model.state_dict().items():  # half the scale is exact, so all is equal
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "o2"])
def test_clipping_sees_gradients_of_their_true_size_and_binds(name):
    norms = []

    def clip(weights):
        norms.append(nn.utils.clip_grad_norm_(weights, 0.1).item())

    def plain_sgd(model, spec):
        return torch.optim.SGD(model.parameters(), lr=1.0)

    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    precision, model, optimizer = ready(name, copy.deepcopy(start), plain_sgd)
    inputs = torch.randn(16, 3)
    expected = torch.autograd.grad(start(inputs).square().mean(), [*start.parameters()])
    whole = torch.cat([gradient.flatten() for gradient in expected]).norm().item()
    precision.backward(precision.forward(model, inputs).square().mean())
    precision.step(optimizer, clip)
    assert norms == [pytest.approx(whole, rel=0.02)]
    assert norms[0] > 0.2
    pairs = zip(optimized_parameters(optimizer), start.parameters(), strict=True)
    assert sum((new - old).square().sum().item() for new, old in pairs) ** 0.5 == pytest.approx(0.1, rel=1e-3)


def test_o2_halves_all_but_norms_known_by_type_and_the_optimizer_has_single_precision():
    precision, model, optimizer = resnet("o2", norm_scale=True)
    kept = {
        type(module).__name__
        for module in model.modules()
        for p in module.parameters(recurse=False)
        if p.dtype == torch.float32
    }
    assert kept == {"BatchNorm2d"}
    assert model.stages[1].shortcut[1].weight.dtype == torch.float32  # a norm without one in its name
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16, torch.float32}
    assert {weight.dtype for weight in optimized_parameters(optimizer)} == {torch.float32}
    assert [len(group["params"]) for group in optimizer.param_groups] == [
        len(group["params"]) for group in resnet("fp32")[2].param_groups
    ]
    assert all(b.dtype == torch.float32 for b in model.buffers() if b.is_floating_point())
    assert set(precision.masters.weights) == {name for name, p in model.named_parameters() if p.dtype == torch.float16}


def test_o2_adds_up_steps_that_half_precision_would_lose():
    """Above 1 float16 has steps of 2^-10: a hundred of 1e-4 are lost one by one, and together they are 0.01."""

    def make(model, spec):
        return torch.optim.SGD(model.parameters(), lr=2e-4)

    line = nn.Linear(1, 1, bias=False)
    line.weight.data.fill_(1.5)
    precision, model, optimizer = ready("o2", line, make)
    for _ in range(100):
        precision.backward(-0.5 * precision.forward(model, torch.ones(1, 1)).sum())  # 1 · 2^16 would be infinite
        precision.step(optimizer)
    assert model.state_dict()["weight"].item() == pytest.approx(1.51, abs=1e-5)
    assert model.weight.dtype == torch.float16
    assert model.weight.item() == pytest.approx(1.51, abs=2**-11)
    lost = torch.tensor(1.5).half()
    assert lost + torch.tensor(1e-4).half() == lost


LAYERS = {
    "group": lambda: [nn.GroupNorm(2, 4)],
    "instance": lambda: [nn.InstanceNorm2d(4, affine=True)],
    "batch without weights": lambda: [nn.BatchNorm2d(4, affine=False)],
    "layer and response": lambda: [nn.LayerNorm(16), nn.LocalResponseNorm(2)],
    "blurred": lambda: [build(ModelSpec(name="resnet18", width=4, blur_pool=True), channels=4, classes=3)],
}


@pytest.mark.parametrize("layers", LAYERS)
def test_o2_trains_with_any_norm_and_with_buffers_that_are_filters(layers):
    if layers == "blurred":
        try:
            nn.functional.pad(torch.ones(1, 1, 2, 2).half(), (1, 1, 1, 1), mode="replicate")
        except RuntimeError:
            pytest.skip("this torch cannot repeat borders in float16 on a CPU")
    torch.manual_seed(0)
    start = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *LAYERS[layers]())
    images = torch.randn(8, 2, 16, 16)
    precision, model, optimizer = ready("o2", copy.deepcopy(start))
    with torch.no_grad():
        torch.testing.assert_close(precision.forward(model.eval(), images), start.eval()(images), rtol=0.02, atol=0.02)
    model.train()
    for _ in range(6):  # until the scale is small enough
        precision.backward(precision.forward(model, images).square().mean())
        precision.step(optimizer)
    assert precision.metrics()["skipped_steps"] < 6
    assert not torch.equal(model.state_dict()["0.weight"], start.state_dict()["0.weight"])


def stored(content):
    """``content`` as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def states(training):
    return {name: part.state_dict() for name, part in zip(("precision", "model", "optimizer"), training, strict=True)}


def load(training, state):
    for part, name in zip(training, ("precision", "model", "optimizer"), strict=True):
        part.load_state_dict(state[name])


@pytest.mark.parametrize("name", ["bf16", "fp16", "o2"])
def test_going_on_from_a_checkpoint_is_as_never_having_stopped(name):
    whole = resnet(name)
    for number in range(3):
        step(*whole, number)
    if name != "bf16":
        precision, model, optimizer = whole
        precision.backward(precision.forward(model, digits(3)[0]).sum() * torch.inf)
        precision.step(optimizer)
    kept = stored(states(whole))
    assert all(v.dtype != torch.float16 for v in kept["model"].values()), "the checkpoint has rounded weights"
    torch.manual_seed(7)
    rest = ready(name, build(ModelSpec(width=8), channels=1, classes=10))
    load(rest, kept)
    assert rest[0].metrics() == whole[0].metrics()
    for number in (4, 5):
        assert step(*rest, number) == step(*whole, number)
    for key, value in states(whole)["model"].items():
        assert torch.equal(value, rest[1].state_dict()[key]), key


@pytest.mark.parametrize(("before", "after"), [("fp32", "o2"), ("o2", "fp32"), ("fp16", "bf16")])
def test_a_checkpoint_can_be_gone_on_from_in_another_precision(before, after):
    first = resnet(before)
    step(*first, 0)
    rest = resnet(after)
    load(rest, stored(states(first)))
    for key, value in first[1].state_dict().items():
        assert torch.equal(value, rest[1].state_dict()[key]), key
    step(*rest, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": 1},
        {"growth_tracker": -1},
        {"skipped_steps": True},
        {"scale": None},
    ],
    ids=str,
)
def test_a_state_of_loss_scaling_that_is_none_is_refused(wrong):
    precision, model, optimizer = resnet("fp16")
    step(precision, model, optimizer, 0)
    before = precision.state_dict()
    with pytest.raises(BadInput, match="loss scaling"):
        precision.load_state_dict({**before, **wrong})
    assert precision.state_dict() == before


def test_a_step_that_broke_off_is_forgotten():
    for name in ("fp32", "o2"):
        precision, model, optimizer = resnet(name)
        images, _ = digits(0)
        precision.backward(precision.forward(model, images).sum())
        if precision.masters is not None:
            precision.masters.take_gradients()
            precision._scaler.unscale_(optimizer)
            precision.backward(precision.forward(model, images).sum())
        precision.discard(optimizer)
        assert all(p.grad is None for p in (*model.parameters(), *optimized_parameters(optimizer)))
        assert step(precision, model, optimizer, 0) == step(*resnet(name), 0)


def test_devices_without_the_arithmetic_are_refused_with_what_to_take(monkeypatch):
    with pytest.raises(MissingPart, match=r"train.precision=tf32: TF32 needs an NVIDIA GPU") as caught:
        Precision("tf32", CPU)
    assert caught.value.hint == "use train.precision=fp32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingPart, match=r"train.precision=tf32"):
        check_here("tf32")
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100")
    for capability, without in (((7, 0), ["tf32", "bf16"]), (AMPERE, []), ((9, 0), [])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, found=capability: found)
        assert [name for name in ("fp32", "tf32", "bf16", "fp16", "o2") if missing(name, gpu)] == without
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    assert missing("bf16", gpu) == "Tesla V100 has compute capability 7.0, and bfloat16 needs 8.0"
    with pytest.raises(MissingPart) as caught:
        Precision("bf16", gpu)
    assert "fp16" in caught.value.hint


def test_tf32_is_switched_for_matrices_and_convolutions_together():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        for allowed in (True, False):
            allow_tf32(allowed)
            assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_float64_is_for_proofs_and_nothing_less():
    Precision("fp32", CPU).prepare(nn.Linear(1, 1).double())
    with pytest.raises(BadInput, match="float64"):
        Precision("bf16", CPU).prepare(nn.Linear(1, 1).double())


RANK = """
import sys, torch, torch.distributed as dist
from torch import nn
from allpull.schema.trainspec import TrainSpec
from allpull.train.optim.optimizer import sgd
from allpull.train.numerics.precision import Precision, optimized_parameters
rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
for name in ("fp16", "o2"):
    torch.manual_seed(rank)  # so that ranks would have other weights, if they were not given the same
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    precision = Precision(name, torch.device("cpu"))
    precision.prepare(model)
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = sgd(model, TrainSpec())
    precision.attach(optimizer)
    told = []
    for number in range(5):
        loss = precision.forward(wrapped, torch.randn(4, 3)).square().mean()
        bad = {1: torch.inf, 3: torch.nan}.get(number, 1.0) if rank == number % 2 else 1.0
        precision.backward(loss * bad)
        precision.step(optimizer)
        told.append(precision.metrics()["skipped_steps"])
    assert told == [0, 1, 1, 2, 2], (rank, told)
    own = torch.cat([weight.detach().flatten() for weight in optimized_parameters(optimizer)])
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    assert torch.equal(*both) and own.isfinite().all(), name
    assert torch.equal(torch.cat([v.flatten() for v in model.state_dict().values()]).sort()[0], own.sort()[0])
dist.destroy_process_group()
print("agreed")
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_ranks_leave_out_the_same_steps_whoever_has_the_infinity(tmp_path):
    """Two ranks under Gloo, of which the second has an infinity in step 1 and no number in step 3."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, err = rank.communicate(timeout=240)
        assert out == "agreed\n", err
