"""Tables of real networks, one family per file, and of the speed of real devices on them. Standard library only."""

from __future__ import annotations

from allpull.nets.net import Net
from allpull.registry import Table

NETS = Table(
    kind="network",
    group="allpull.nets",
    builtin={
        "inception_v3": "allpull.nets.inception:inception_v3",
        "resnet101": "allpull.nets.resnet:resnet101",
        "resnet18": "allpull.nets.resnet:resnet18",
        "resnet34": "allpull.nets.resnet:resnet34",
        "resnet50": "allpull.nets.resnet:resnet50",
        "vgg16": "allpull.nets.vgg:vgg16",
    },
)
"""Name → function () → Net."""


def network(name: str) -> Net:
    """The network called ``name``.

    Raises:
        UnknownName: no such network.

    >>> network("resnet50").parameters
    25557032
    """
    net: Net = NETS.load(name)()
    return net
