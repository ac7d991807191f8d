"""Networks: the published counts of parameters, torchvision's names, and options that do what they say."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from allpull.config.checks import find_contradictions  # noqa: E402
from allpull.config.contradictions import OF_FAMILY  # noqa: E402
from allpull.errors import BadInput, MissingPart, UnknownName  # noqa: E402
from allpull.schema.spec import ModelSpec, RunSpec  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.models.build import build, trainable_parameters  # noqa: E402
from allpull.train.models.layers import Blur, Pointwise  # noqa: E402

pytestmark = pytest.mark.torch

IMAGENET = {"channels": 3, "classes": 1000}
BIGEARTHNET = {"channels": 12, "classes": 43, "pixels": (120, 120)}


def on_meta(spec, **shape):
    with torch.device("meta"):
        return build(spec, **{**IMAGENET, **shape})


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


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("vgg16", 138_357_544),
        ("vgg16_bn", 138_365_992),
    ],
)
def test_counts_of_torchvision(name, parameters):
    """As torchvision's documentation of the weights gives them (num_params)."""
    assert trainable_parameters(name, **IMAGENET) == parameters


@pytest.mark.parametrize(
    ("spec", "shape", "parameters"),
    [
        (ModelSpec(name="resnet50", conv_bias=True, head="flatten"), BIGEARTHNET, 23_915_115),
        (ModelSpec(name="resnet101", conv_bias=True), IMAGENET, 44_601_832),
        (ModelSpec(name="inception_v3", norm_scale=False), IMAGENET, 23_817_352),
        (ModelSpec(name="vgg16"), IMAGENET, 138_357_544),
    ],
    ids=["ResNet-50 on BigEarthNet", "ResNet-101", "Inception-3", "VGG16"],
)
def test_counts_that_the_scaling_studies_print(spec, shape, parameters):
    assert trainable_parameters(spec, **shape) == parameters


def test_inception_without_auxiliary_head_has_keras_scales_on_top():
    """Keras has no scales; its 34,432 values that are not trained are means and variances, two a scale."""
    assert trainable_parameters("inception_v3", **IMAGENET) == 23_817_352 + 34_432 // 2


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16", "inception_v3"])
@pytest.mark.parametrize("blur", [False, True])
def test_names_are_those_of_torchvision(name, blur):
    known = {
        "resnet18": {"conv1.weight", "bn1.running_mean", "layer2.0.downsample.1.bias", "layer4.1.bn2.weight"},
        "resnet50": {"layer1.0.downsample.0.weight", "layer3.5.conv3.weight", "layer4.2.bn3.num_batches_tracked"},
        "vgg16": {"features.0.bias", "features.28.weight", "classifier.0.weight", "classifier.6.bias"},
        "inception_v3": {
            "Conv2d_1a_3x3.conv.weight", "Mixed_5b.branch5x5_2.bn.bias", "Mixed_6e.branch7x7dbl_5.conv.weight",
            "Mixed_7a.branch7x7x3_4.bn.weight", "Mixed_7c.branch3x3dbl_3b.conv.weight", "fc.weight",
        },
    }  # fmt: skip
    entries = {"resnet18": 122, "resnet50": 320, "vgg16": 32, "inception_v3": 94 * 6 + 2}
    if blur and not name.startswith("resnet"):
        with pytest.raises(BadInput, match=f"'{name}' has no option model.blur_pool"):
            on_meta(ModelSpec(name=name, blur_pool=True))
        return
    names = set(on_meta(ModelSpec(name=name, blur_pool=blur)).state_dict())
    assert known[name] <= names
    assert len(names) == entries[name]


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "vgg16", "vgg16_bn", "inception_v3"])
def test_torchvisions_own_weights_load(name):
    models = pytest.importorskip("torchvision.models", exc_type=(ImportError, RuntimeError))
    with torch.device("meta"):
        theirs = models.get_model(name, weights=None)
    on_meta(ModelSpec(name=name)).load_state_dict(theirs.state_dict(), strict=True, assign=True)


def test_weights_with_an_auxiliary_head_load_without_it():
    model = on_meta(ModelSpec(name="inception_v3"))
    state = {**model.state_dict(), "AuxLogits.fc.weight": torch.empty(1000, 768, device="meta")}
    assert model.load_state_dict(state, strict=True, assign=True).unexpected_keys == []
    assert "AuxLogits.fc.weight" in state  # what was given is not changed


@pytest.mark.parametrize(
    ("name", "options", "pixels"),
    [
        ("resnet18", {"width": 4}, 33),
        ("resnet18", {"width": 16, "blur_pool": True, "zero_init": True}, 17),
        ("resnet50", {"width": 4, "norm": "group", "stride": "v1", "conv_bias": True}, 32),
        ("resnet50", {"width": 16, "head": "flatten", "blur_pool": True}, 72),
        ("resnet34", {"width": 4, "norm": "none"}, 1),
        ("vgg16", {"width": 2}, 32),
        ("vgg16_bn", {"width": 2}, 40),
        ("inception_v3", {}, 75),
    ],
)
def test_logits_and_gradients_come_out(name, options, pixels):
    torch.manual_seed(0)
    model = build(ModelSpec(name=name, **options), channels=2, classes=3, pixels=(pixels, pixels))
    logits = model(torch.randn(2, 2, pixels, pixels))
    assert logits.shape == (2, 3)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    assert torch.isfinite(logits).all()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(33, 400), st.integers(33, 400))
def test_the_flat_head_fits_every_size_of_image(height, width):
    spec = ModelSpec(name="resnet18", width=1, head="flatten")
    model = on_meta(spec, channels=1, classes=5, pixels=(height, width))
    assert model(torch.empty(2, 1, height, width, device="meta")).shape == (2, 5)


def test_strides_stand_where_the_versions_put_them():
    strides = {
        version: [
            on_meta(ModelSpec(name="resnet50", stride=version)).get_submodule(f"layer2.0.conv{index}").stride[0]
            for index in (1, 2, 3)
        ]
        for version in ("v1", "v1.5")
    }
    assert strides == {"v1": [2, 1, 1], "v1.5": [1, 2, 1]}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_blocks_that_start_at_zero_pass_their_input_on(name):
    torch.manual_seed(0)
    model = build(ModelSpec(name=name, width=8, zero_init=True), channels=3, classes=2)
    block = model.get_submodule("layer1.1")
    x = torch.rand(2, block.conv1.in_channels, 6, 6)
    assert torch.equal(block(x), x)


def test_blur_keeps_a_flat_picture_and_removes_the_finest_stripes():
    flat, stripes = torch.full((1, 3, 9, 7), 0.7), torch.ones(1, 3, 8, 8)
    stripes[..., ::2] = -1
    assert Blur(2)(flat).shape == (1, 3, 5, 4)
    assert torch.allclose(Blur(2)(flat), torch.tensor(0.7))
    assert torch.equal(Blur(1)(stripes)[..., 1:-1], torch.zeros(1, 3, 8, 6))


def test_a_scale_that_is_left_out_stays_one():
    model = build(ModelSpec(name="resnet18", width=4, norm_scale=False), channels=1, classes=2)
    assert model.bn1.weight.requires_grad is False
    assert torch.equal(model.bn1.weight, torch.ones(4))
    assert model.bn1.bias.requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "resnet8", "conv_bias": True}, "'resnet8' has no option model.conv_bias"),
        ({"name": "inception_v3", "width": 8}, "a fixed width"),
        ({"name": "inception_v3"}, "at least 75×75"),
        ({"name": "vgg16"}, "at least 32×32"),
        ({"name": "vgg16", "norm": "group"}, "vgg16 has no norms"),
        ({"name": "resnet50", "head": "flatten"}, "larger than 32 pixels"),
        ({"name": "resnet50", "zero_init": True, "norm": "none"}, "trained scale"),
        ({"name": "timm:resnet50", "norm": "group"}, "has no option model.norm"),
    ],
)
def test_what_cannot_be_built_says_why(options, words):
    with pytest.raises(BadInput, match=words):
        on_meta(ModelSpec(**options), pixels=(20, 20))


def test_a_name_nobody_knows_is_told_with_its_neighbour():
    with pytest.raises(UnknownName, match="did you mean 'resnet50'"):
        on_meta(ModelSpec(name="resnet_50"))


def test_options_that_contradict_each_other_are_found_before_torch_is_needed():
    def found(**options):
        return [
            line.split(":")[0] for line in find_contradictions(RunSpec(model=ModelSpec(name="resnet50", **options)))
        ]

    assert found(zero_init=True, norm="none") == found(zero_init=True, norm_scale=False) == ["model.zero_init"]
    assert found(norm_scale=False, norm="none") == ["model.norm_scale"]
    assert found(zero_init=True) == found(norm="none") == []


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_library_that_is_not_there_is_one_clear_error(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(MissingPart, match=f"models of {library} are not available") as caught:
        on_meta(ModelSpec(name=f"{library}:resnet50"))
    assert f"pip install {library}" in caught.value.hint


def test_names_of_libraries_are_handed_on(monkeypatch):
    """Their calls as documented: torchvision.models.get_model and timm.create_model."""
    vision, timm = types.ModuleType("torchvision.models"), types.ModuleType("timm")
    for module in (vision, timm):
        module.list_models = lambda: ["resnet50", "inception_v3"]
    vision.get_model = lambda name, **given: ("vision", name, given)
    timm.create_model = lambda name, **given: ("timm", name, given)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", vision)
    monkeypatch.setitem(sys.modules, "timm", timm)
    plain = {"weights": None, "num_classes": 1000}
    assert on_meta(ModelSpec(name="torchvision:resnet50")) == ("vision", "resnet50", plain)
    assert on_meta(ModelSpec(name="torchvision:inception_v3"))[2] == {**plain, "aux_logits": False}
    asked = {"pretrained": False, "in_chans": 12, "num_classes": 1000}
    assert on_meta(ModelSpec(name="timm:resnet50"), channels=12) == ("timm", "resnet50", asked)
    with pytest.raises(BadInput, match="3 channels; these have 12"):
        on_meta(ModelSpec(name="torchvision:resnet50"), channels=12)
    with pytest.raises(UnknownName, match="no model of timm 'resnet5'; did you mean 'resnet50'"):
        on_meta(ModelSpec(name="timm:resnet5"))


def test_every_name_of_the_table_counts():
    assert all(trainable_parameters(name) > 0 for name in MODELS.names())


@pytest.mark.parametrize("channels_in", [2, 15, 16])
@pytest.mark.parametrize("pixels", [7, 8])
def test_a_strided_convolution_of_few_channels_is_the_same_convolution(channels_in: int, pixels: int) -> None:
    """Few channels go another way, around a fault of oneDNN; in float64 torch's own way is sound for all."""
    torch.manual_seed(0)
    ours = Pointwise(channels_in, 8, 2, bias=True).double()
    x, y = (torch.randn(3, channels_in, pixels, pixels, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y.data = x.data.clone()
    plain = torch.nn.functional.conv2d(y, ours.weight, ours.bias, stride=2)
    found = ours(x)
    assert torch.allclose(found, plain, rtol=1e-12)
    weights = torch.randn_like(plain)
    (found * weights).sum().backward()
    (plain * weights).sum().backward()
    assert torch.allclose(x.grad, y.grad, rtol=1e-12)


def test_options_that_only_some_families_have_are_those_that_their_builders_take():
    """What is refused before ranks start is what ``build`` would refuse in each of them."""
    common = {"channels", "classes", "width", "norm", "pixels", "with_norm", "blocks", "kind"}
    taken = {name: {*inspect.signature(MODELS.load(name)).parameters} - common for name in MODELS.builtin}
    assert {name: set(OF_FAMILY[name]) for name in taken} == taken
