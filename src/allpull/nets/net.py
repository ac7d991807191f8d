"""What the table of a network holds, and the few kinds of layer that the tables are made of.

A layer is a module with parameters; what has none (pooling, activations, sums) is not in the table. Work is counted
as FLOPs of convolutions and linear layers, two per multiply-add, as fvcore and torchvision count their "GFLOPS"
times two; normalisation, activations and bias count nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One trainable tensor: ``name`` within its layer, and its shape as in torch."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One module with parameters: ``name`` as in the state_dict, and the FLOPs of its forward pass per sample."""

    name: str
    parameters: tuple[Parameter, ...]
    flops_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A network for square images of ``image`` pixels a side; ``layers`` in the order of the forward pass.

    That is also the order in which torch defines them, so the parameters one after the other are those of
    ``module.named_parameters()``.
    """

    name: str
    image: int
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(parameter.elements for layer in self.layers for parameter in layer.parameters)

    @property
    def flops_forward(self) -> int:
        """FLOPs of one forward pass of one sample."""
        return sum(layer.flops_forward for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The shape of the activations between two layers, per sample."""

    channels: int
    height: int
    width: int

    def pooled(self, kernel: int, stride: int, padding: int = 0) -> Map:
        """The shape after a pooling or a convolution with this kernel; partial windows are dropped.

        >>> Map(channels=3, height=224, width=224).pooled(7, 2, 3)
        Map(channels=3, height=112, width=112)
        """
        height = (self.height + 2 * padding - kernel) // stride + 1
        width = (self.width + 2 * padding - kernel) // stride + 1
        return Map(channels=self.channels, height=height, width=width)


@dataclass(slots=True)
class Draft:
    """Builds the table of a network: each call appends a layer and returns the shape of its output."""

    layers: list[Layer] = field(default_factory=list)

    def conv(
        self, name: str, x: Map, channels: int, kernel: int | Pair, *, stride: int = 1, padding: int | Pair = 0,
        bias: bool = False,
    ) -> Map:  # fmt: skip
        """A convolution of ``x`` to ``channels``; kernel and padding are (rows, columns) or one number for both."""
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        above, beside = (padding, padding) if isinstance(padding, int) else padding
        height = (x.height + 2 * above - rows) // stride + 1
        width = (x.width + 2 * beside - columns) // stride + 1
        parameters = [Parameter(name="weight", shape=(channels, x.channels, rows, columns))]
        if bias:
            parameters.append(Parameter(name="bias", shape=(channels,)))
        multiply_adds = channels * x.channels * rows * columns * height * width
        self.layers.append(Layer(name=name, parameters=tuple(parameters), flops_forward=2 * multiply_adds))
        return Map(channels=channels, height=height, width=width)

    def norm(self, name: str, x: Map) -> Map:
        """Batch normalisation of ``x``: a scale and a shift per channel."""
        parameters = tuple(Parameter(name=one, shape=(x.channels,)) for one in ("weight", "bias"))
        self.layers.append(Layer(name=name, parameters=parameters, flops_forward=0))
        return x

    def linear(self, name: str, features_in: int, features: int) -> int:
        """A linear layer with bias; returns ``features``."""
        parameters = (
            Parameter(name="weight", shape=(features, features_in)),
            Parameter(name="bias", shape=(features,)),
        )
        self.layers.append(Layer(name=name, parameters=parameters, flops_forward=2 * features_in * features))
        return features

    def finish(self, name: str, image: int) -> Net:
        """The finished table."""
        return Net(name=name, image=image, layers=tuple(self.layers))
