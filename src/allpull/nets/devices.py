"""The training speed of named devices, and the time of each layer that follows from it.

The figures are measured throughputs with their source, never peaks: a V100 reaches a quarter of its tensor cores'
peak. A throughput, the work of the network and two small terms give the achieved rate (``flops_per_s``), and that gives
the time of a layer:

    forward = LAUNCH_S + batch · FLOPs / rate        backward = LAUNCH_S + 2 · batch · FLOPs / rate

so that a step with the batch of the measurement takes exactly the measured time. This is good for whole networks and
rough for single layers, because normalisation and activations have no FLOPs here and their time is spread over the
convolutions. A network that was not measured on a device borrows the rate of ResNet-50. On the P100, where both are
known, that makes Inception-v3 10 % too fast, and VGG-16, whose large plain convolutions run at 2.7 times the rate,
far too slow: give its times yourself, or a device that has a row for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allpull.errors import UnknownName
from allpull.nets import network
from allpull.nets.net import Net

LAUNCH_S = 3.8e-6
"""Seconds of a kernel that does nothing, among others in a queue, on a V100: A. Gray, "Getting Started with CUDA
Graphs", NVIDIA developer blog, 2019. One a layer and direction, the least that it can be."""

OPTIMIZER_BYTES = 20
"""Moved for each parameter by SGD with momentum: it, its gradient and its momentum are read, two of them written."""

REFERENCE = "resnet50"

DEEP_LEARNING_EXAMPLES = (
    "NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5 README (21.03), batch from configs.yml"
)
LAMBDA = "lambdal/deeplearning-benchmark pytorch-train-throughput-v2-fp16.csv and config_v2, synthetic data, NCHW"
TF_BENCHMARKS = "tensorflow docs_src/performance/benchmarks.md, tf_cnn_benchmarks on DGX-1, synthetic data, 2017"
MLPERF = "training_results_v3.0 Dell/results/XE9680x8H100-SXM-80GB/resnet (an eighth of 55,926 on 8 GPUs, real data)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One published measurement: training images per second of one device at ``batch`` images."""

    net: str
    images_per_s: float
    batch: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device in one precision; ``memory_bytes_per_s`` is from its data sheet and used for the optimizer alone."""

    name: str
    precision: str
    memory_bytes_per_s: float
    measured: tuple[Throughput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one layer on one batch."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step on one batch: each layer, in the order of the network, and the optimizer."""

    layers: tuple[LayerTime, ...]
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """Forward, backward and optimizer together."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers) + self.optimizer_s


def _resnet50(images_per_s: float, batch: int, source: str) -> Throughput:
    return Throughput(net="resnet50", images_per_s=images_per_s, batch=batch, source=source)


_ALL = (
    Device(
        name="P100",
        precision="fp32",
        memory_bytes_per_s=732e9,
        measured=(
            _resnet50(219, 64, TF_BENCHMARKS),
            Throughput(net="inception_v3", images_per_s=142, batch=64, source=TF_BENCHMARKS),
            Throughput(net="vgg16", images_per_s=154, batch=64, source=TF_BENCHMARKS),
        ),
    ),
    Device(
        name="V100",
        precision="AMP, NHWC",
        memory_bytes_per_s=900e9,
        measured=(_resnet50(1200, 256, DEEP_LEARNING_EXAMPLES),),
    ),
    Device(
        name="V100-fp32",
        precision="fp32",
        memory_bytes_per_s=900e9,
        measured=(_resnet50(367, 112, DEEP_LEARNING_EXAMPLES),),
    ),
    Device(
        name="A100",
        precision="AMP, NHWC",
        memory_bytes_per_s=2039e9,
        measured=(_resnet50(2470, 256, DEEP_LEARNING_EXAMPLES),),
    ),
    Device(
        name="A100-tf32",
        precision="TF32",
        memory_bytes_per_s=2039e9,
        measured=(_resnet50(938, 256, DEEP_LEARNING_EXAMPLES),),
    ),
    Device(
        name="H100",
        precision="AMP, NCHW",
        memory_bytes_per_s=3350e9,
        measured=(_resnet50(2791, 1280, LAMBDA),),
    ),
    Device(
        name="H100-mxnet",
        precision="fp16, NHWC, fused layers",
        memory_bytes_per_s=3350e9,
        measured=(_resnet50(6990, 400, MLPERF),),
    ),
    Device(
        name="H200",
        precision="AMP, NCHW",
        memory_bytes_per_s=4800e9,
        measured=(_resnet50(3079, 2560, LAMBDA),),
    ),
)

DEVICES: Mapping[str, Device] = {device.name: device for device in _ALL}
"""Name → device. What people run in PyTorch has the plain name; other precisions and frameworks say so."""


def device(name: str) -> Device:
    """The device called ``name``.

    Raises:
        UnknownName: no such device.
    """
    if name not in DEVICES:
        raise UnknownName("device", name, DEVICES, hint="or give forward and backward times of your own")
    return DEVICES[name]


def flops_per_s(net: Net, on: Device) -> float:
    """The rate that ``on`` achieves in training ``net``, FLOP/s; ResNet-50's where ``net`` was not measured."""
    rows = {row.net: row for row in on.measured}
    row = rows.get(net.name, rows[REFERENCE])
    reference = net if row.net == net.name else network(row.net)
    beside_s = 2 * len(reference.layers) * LAUNCH_S + optimizer_s(reference, on)
    return 3 * row.batch * reference.flops_forward / (row.batch / row.images_per_s - beside_s)


def optimizer_s(net: Net, on: Device) -> float:
    """Seconds of SGD with momentum on ``net``: it is bound by memory."""
    return OPTIMIZER_BYTES * net.parameters / on.memory_bytes_per_s


def step_times(net: Net, on: Device, batch: int) -> StepTimes:
    """The times of one training step of ``net`` on ``batch`` samples.

    >>> round(64 / step_times(network("resnet50"), device("V100"), 64).step_s)
    1177
    """
    rate = flops_per_s(net, on)
    forward_s = [batch * layer.flops_forward / rate for layer in net.layers]
    layers = [LayerTime(forward_s=LAUNCH_S + one, backward_s=LAUNCH_S + 2 * one) for one in forward_s]
    return StepTimes(layers=tuple(layers), optimizer_s=optimizer_s(net, on))
