"""The tables are the networks: parameters, work and order are those that torchvision and the papers give."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import UnknownName
from allpull.nets import NETS, network
from allpull.nets.net import Draft, Map

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "vgg16": 138_357_544,
    "inception_v3": 23_834_568,
}
"""As torchvision and Keras publish them, 1000 classes; Inception-v3 without its auxiliary classifier."""

MULTIPLY_ADDS = {
    "resnet18": 1.814e9,
    "resnet34": 3.664e9,
    "resnet50": 4.089e9,
    "resnet101": 7.801e9,
    "vgg16": 15.470e9,
    "inception_v3": 5.713e9,
}
"""torchvision's "GFLOPS" of its weights, which count a multiply-add once."""

TORCHVISION = {
    "resnet18": "c9ebc6768ee133b2",
    "resnet34": "2882cb0626d45ea5",
    "resnet50": "e49e1f349708ac17",
    "resnet101": "0fb4c333c5e3978c",
    "vgg16": "35c4623e0cd4a39d",
    "inception_v3": "6367f5803635567e",
}
"""SHA-256, first 16 digits, of a line "name (shape)" for each of torchvision 0.28's ``named_parameters()``."""


def listing(name: str) -> str:
    layers = network(name).layers
    return "\n".join(f"{layer.name}.{one.name} {one.shape}" for layer in layers for one in layer.parameters)


def test_every_network_of_the_table_is_checked_here():
    assert set(NETS.builtin) == set(PARAMETERS) == set(MULTIPLY_ADDS) == set(TORCHVISION)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_literature(name):
    assert network(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_work_is_that_of_the_literature(name):
    assert network(name).flops_forward == pytest.approx(2 * MULTIPLY_ADDS[name], rel=0.001)


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_shapes_and_order_are_those_of_torchvision(name):
    """Order decides which gradients share a bucket, so it has to be torch's to the last bias."""
    assert hashlib.sha256(listing(name).encode()).hexdigest()[:16] == TORCHVISION[name]


def test_a_bottleneck_halves_the_image_in_its_3x3_convolution():
    """Version 1.5: the first convolution of layer2.0 still works on 56×56 pixels, the second gives 28×28."""
    work = {layer.name: layer.flops_forward for layer in network("resnet50").layers}
    assert work["layer2.0.conv1"] == 2 * 256 * 128 * 56 * 56
    assert work["layer2.0.conv2"] == 2 * 128 * 128 * 9 * 28 * 28


def test_nine_tenths_of_vgg_are_linear_layers():
    net = network("vgg16")
    linear = [layer for layer in net.layers if layer.name.startswith("classifier")]
    assert sum(one.elements for layer in linear for one in layer.parameters) / net.parameters > 0.89
    assert sum(layer.flops_forward for layer in linear) / net.flops_forward < 0.01


def test_an_unknown_network_names_its_neighbour():
    with pytest.raises(UnknownName, match="did you mean 'resnet50'"):
        network("resnet-50")


@pytest.mark.torch
@given(
    size=st.tuples(st.integers(7, 20), st.integers(7, 20)),
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    stride=st.integers(1, 3),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    channels=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    bias=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_convolution_is_what_torch_makes_of_it(size, kernel, stride, padding, channels, bias):
    """torch itself, on a device without memory, is the oracle of shapes, parameters and FLOPs."""
    torch = pytest.importorskip("torch")
    counting = pytest.importorskip("torch.utils.flop_counter")
    with torch.device("meta"):
        module = torch.nn.Conv2d(*channels, kernel, stride, padding, bias=bias)
        with counting.FlopCounterMode(display=False) as counter:
            made = module(torch.empty(1, channels[0], *size))
    draft = Draft()
    x = Map(channels=channels[0], height=size[0], width=size[1])
    y = draft.conv("c", x, channels[1], kernel, stride=stride, padding=padding, bias=bias)
    assert (y.channels, y.height, y.width) == tuple(made.shape[1:])
    assert draft.layers[0].flops_forward == counter.get_total_flops()
    parameters = [(one.name, one.shape) for one in draft.layers[0].parameters]
    assert parameters == [(name, tuple(value.shape)) for name, value in module.named_parameters()]
