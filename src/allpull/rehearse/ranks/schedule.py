"""How long each part takes on a virtual accelerator, and how large its gradients are: cluster file → plan.

The cluster is a plain dictionary that the launcher has resolved and checked; times are in seconds:

    {"shrink": 20.0,
     "accelerator": {"model": "resnet50", "batch": 64, "device": "V100",
                     "forward_s": null, "backward_s": null, "layers": null,
                     "input_s": 0.0, "optimizer_s": null,
                     "epoch_steps": 100, "evaluation_s": 0.0, "evaluate_every": 1, "checkpoint_s": 0.0},
     "faults": [...]}

``layers`` is a list of {"forward_s", "backward_s"}, one for each layer of the network's table, as measured. Without
it, ``forward_s`` and ``backward_s`` are those of the whole network and are spread over its layers by their FLOPs (one
alone implies the other: backward is twice forward). Without those, ``device`` gives these times and the optimizer's.
An epoch has ``epoch_steps`` steps (null: all steps); after it every rank evaluates for ``evaluation_s``, if this epoch
is due (every ``evaluate_every`` epochs, null: never), and writes its checkpoint for ``checkpoint_s``. Other keys are
ignored.

``shrink`` divides the number of elements of each parameter and, in ``accelerator``, DDP's bucket sizes; the code that
shapes the links divides their rates by it, and times are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allpull.errors import BadInput
from allpull.nets import network
from allpull.nets.devices import LayerTime, device, optimizer_s, step_times
from allpull.nets.net import Net
from allpull.rehearse.ranks import faults as planted
from allpull.rehearse.ranks.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedParameter:
    """One parameter: its name as in the network's state_dict, and its number of elements after shrinking."""

    name: str
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """One layer: its parameters, and its seconds on the batch of a healthy rank."""

    parameters: tuple[PlannedParameter, ...]
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a rank needs; times are those of a healthy rank.

    ``epoch_steps`` None: all steps are one epoch; ``evaluate_every`` 0: no epoch is evaluated. ``passes``: forward and
    backward of a step, each of which reduces its gradients. ``bucket_mib`` None: DDP's own sizes.
    """

    layers: tuple[PlannedLayer, ...]
    shrink: float
    batch: int
    input_s: float
    optimizer_s: float
    epoch_steps: int | None
    evaluation_s: float
    evaluate_every: int
    checkpoint_s: float
    faults: tuple[Fault, ...]
    passes: int = 1
    bucket_mib: float | None = None

    @property
    def forward_s(self) -> float:
        """Forward pass of the whole network."""
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Backward pass of the whole network, without communication."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def step_s(self) -> float:
        """A step without communication: input, forward, backward, optimizer."""
        return self.input_s + self.passes * (self.forward_s + self.backward_s) + self.optimizer_s


def plan(cluster: Mapping[str, Any]) -> Plan:
    """The plan of a cluster.

    Raises:
        BadInput: unknown network or device, no times, or times that do not fit the network.
    """
    given: Mapping[str, Any] | None = cluster.get("accelerator")
    if given is None:
        raise BadInput("the cluster has no accelerator", hint="describe it in the table [accelerator]")
    net = network(given["model"])
    batch, shrink = int(given["batch"]), float(cluster.get("shrink") or 1.0)
    if shrink < 1 or batch < 1:
        raise BadInput(f"shrink is {shrink:g} and batch is {batch}", hint="both are at least 1")
    times = _times(net, given, batch)
    layers = [
        PlannedLayer(
            parameters=tuple(
                PlannedParameter(name=f"{layer.name}.{one.name}", elements=max(1, round(one.elements / shrink)))
                for one in layer.parameters
            ),
            forward_s=time.forward_s,
            backward_s=time.backward_s,
        )
        for layer, time in zip(net.layers, times, strict=True)
    ]
    return Plan(
        layers=tuple(layers),
        shrink=shrink,
        batch=batch,
        input_s=_seconds(given, "input_s"),
        optimizer_s=_optimizer_s(net, given),
        epoch_steps=given.get("epoch_steps") or None,
        evaluation_s=_seconds(given, "evaluation_s"),
        evaluate_every=given.get("evaluate_every", 1) or 0,
        checkpoint_s=_seconds(given, "checkpoint_s"),
        faults=planted.read(cluster.get("faults") or ()),
        passes=int(given.get("passes") or 1),
        bucket_mib=given.get("bucket_mib") or None,
    )


def _times(net: Net, given: Mapping[str, Any], batch: int) -> Sequence[LayerTime]:
    if given.get("layers") is not None:
        layers: Sequence[Mapping[str, Any]] = given["layers"]
        if len(layers) != len(net.layers):
            raise BadInput(
                f"accelerator.layers has {len(layers)} layers, {net.name} has {len(net.layers)}",
                hint="give the times of each layer with parameters, in the order of the forward pass",
            )
        return [
            LayerTime(forward_s=_seconds(layer, "forward_s"), backward_s=_seconds(layer, "backward_s"))
            for layer in layers
        ]
    forward_s, backward_s = given.get("forward_s"), given.get("backward_s")
    if forward_s is not None or backward_s is not None:
        forward = _seconds(given, "forward_s") if forward_s is not None else _seconds(given, "backward_s") / 2
        backward = _seconds(given, "backward_s") if backward_s is not None else 2 * forward
        shares = [layer.flops_forward / net.flops_forward for layer in net.layers]
        return [LayerTime(forward_s=forward * share, backward_s=backward * share) for share in shares]
    if given.get("device") is None:
        raise BadInput("accelerator: no times", hint="name a device, or give forward_s and backward_s, or layers")
    return step_times(net, device(given["device"]), batch).layers


def _optimizer_s(net: Net, given: Mapping[str, Any]) -> float:
    if given.get("optimizer_s") is not None or given.get("device") is None:
        return _seconds(given, "optimizer_s")
    return optimizer_s(net, device(given["device"]))


def _seconds(given: Mapping[str, Any], name: str) -> float:
    value = float(given.get(name) or 0.0)
    if not math.isfinite(value) or value < 0:
        raise BadInput(f"accelerator: {name} is {value}", hint="a finite number of seconds, at least 0")
    return value
