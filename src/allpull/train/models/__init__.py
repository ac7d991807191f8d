"""Networks, one family a file."""

import torch

from allpull.registry import Table
from allpull.schema.spec import ModelSpec

MODELS = Table(
    kind="model",
    group="allpull.models",
    builtin={
        "resnet8": "allpull.train.models.resnet:resnet8",
        "resnet14": "allpull.train.models.resnet:resnet14",
        "resnet20": "allpull.train.models.resnet:resnet20",
    },
)
"""Name → function (channels, classes, width, norm) → module."""


def trainable_parameters(name: str, *, channels: int = 1, classes: int = 10) -> int:
    """Trainable parameters of a model at its default options, counted without allocating it.

    Raises:
        UnknownName: no such model.
    """
    spec = ModelSpec()
    with torch.device("meta"):
        model = MODELS.load(name)(channels, classes, spec.width, spec.norm)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
