"""Normalisation layers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from allpull.errors import BadInput

Norm = Callable[[int], nn.Module]
GROUPS = 8  # of group normalisation, or as many as divide the channels
EPSILON = 1e-5  # torch's own


def norm_maker(name: str, *, scale: bool = True, epsilon: float = EPSILON) -> Norm:
    """A function from channels to a layer of normalisation ``name``: batch, group or none.

    Without ``scale`` the factor of each channel stays at 1 and is not trained, as in Keras with ``scale=False``; the
    tensor of ones is still there, so that names and weights fit both ways.

    Raises:
        BadInput: no such normalisation.
    """
    makers: dict[str, Norm] = {
        "batch": partial(nn.BatchNorm2d, eps=epsilon),
        "group": lambda channels: nn.GroupNorm(_groups(channels), channels, eps=epsilon),
        "none": lambda _: nn.Identity(),
    }
    if name not in makers:
        raise BadInput(f"no normalisation '{name}'; known: {', '.join(makers)}")
    return makers[name] if scale else lambda channels: _without_scale(makers[name](channels))


def _groups(channels: int) -> int:
    return next(groups for groups in range(GROUPS, 0, -1) if channels % groups == 0)


def _without_scale(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
        layer.weight.requires_grad_(False)
    return layer
