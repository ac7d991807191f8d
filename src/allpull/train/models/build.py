"""From what was asked for to a network: a name of the table, or ``torchvision:NAME`` or ``timm:NAME``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from torch import nn

from allpull.errors import BadInput
from allpull.schema.trainspec import ModelSpec
from allpull.train.models import LIBRARIES, MODELS
from allpull.train.models.external import build_external

# the other options are those that only some families have
COMMON = {"name", "width", "norm", "dtype", "weights", "new_head"}


def build(spec: ModelSpec, *, channels: int, classes: int, pixels: tuple[int, int] | None = None) -> nn.Module:
    """The network that ``spec`` asks for, for images of ``channels`` and (height, width) ``pixels``.

    A family takes the options that its builder in ``MODELS`` has keywords for; ``pixels`` is one of those too.

    Raises:
        UnknownName: no such network.
        MissingPart: its library is not installed.
        BadInput: an option that this network has not, or values that do not fit each other or the images.
    """
    library, colon, name = spec.name.partition(":")
    if colon and library in LIBRARIES:
        _refuse(spec, [*_asked(spec), *_asked_of_all(spec)], known=())
        return build_external(library, name, channels=channels, classes=classes)
    builder = MODELS.load(spec.name)
    takes = inspect.signature(builder).parameters
    asked: dict[str, Any] = _asked(spec)
    _refuse(spec, [option for option in asked if option not in takes], known=[*takes])
    if "pixels" in takes:
        asked["pixels"] = pixels
    model: nn.Module = builder(channels, classes, spec.width, spec.norm, **asked)
    return model


def _asked(spec: ModelSpec) -> dict[str, Any]:
    """The options of some families only that differ from their defaults."""
    fields = [field for field in dataclasses.fields(spec) if field.name not in COMMON]
    return {field.name: getattr(spec, field.name) for field in fields if getattr(spec, field.name) != field.default}


def _asked_of_all(spec: ModelSpec) -> list[str]:
    plain = ModelSpec()
    return [option for option in ("width", "norm") if getattr(spec, option) != getattr(plain, option)]


def _refuse(spec: ModelSpec, options: list[str], *, known: list[str] | tuple[()]) -> None:
    if options:
        has = [field.name for field in dataclasses.fields(spec) if field.name in known and field.name not in COMMON]
        raise BadInput(
            f"model '{spec.name}' has no option {', '.join(f'model.{option}' for option in options)}",
            hint=f"it has {', '.join(f'model.{option}' for option in has)}" if has else "leave it at its default",
        )
