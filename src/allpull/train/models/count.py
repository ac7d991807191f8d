"""Count the parameters of a model without allocating it."""

from __future__ import annotations

import torch

from allpull.schema.spec import ModelSpec
from allpull.train.models import MODELS


def trainable_parameters(name: str, *, channels: int = 1, classes: int = 10) -> int:
    """Trainable parameters of a model at its default options, counted without allocating it.

    Raises:
        UnknownName: no such model.
    """
    spec = ModelSpec()
    with torch.device("meta"):
        model = MODELS.load(name)(channels, classes, spec.width, spec.norm)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
