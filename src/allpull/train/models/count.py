"""Count the parameters of a model without allocating it."""

from __future__ import annotations

import torch
from torch import nn

from allpull.schema.trainspec import ModelSpec
from allpull.train.models.build import build


def trainable_parameters(
    model: str | ModelSpec, *, channels: int = 1, classes: int = 10, pixels: tuple[int, int] | None = None
) -> int:
    """Trainable parameters of a model, at its default options if only named, counted without allocating it.

    Raises:
        AllpullError: no such model, or its options do not fit.
    """
    spec = ModelSpec(name=model) if isinstance(model, str) else model
    with torch.device("meta"):
        made = build(spec, channels=channels, classes=classes, pixels=pixels)
    return trainable(made)


def trainable(model: nn.Module) -> int:
    """How many numbers a training of ``model`` moves."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
