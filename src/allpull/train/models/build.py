"""From what was asked for to a network: a name of the table, or ``torchvision:NAME`` or ``timm:NAME``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import ModuleType
from typing import Any

import torch
from torch import nn

from allpull.errors import BadInput, MissingPart, UnknownName
from allpull.schema.trainspec import ModelSpec
from allpull.train.models import LIBRARIES, MODELS

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


TWO_HEADED = ("googlenet", "inception_v3")  # of torchvision: in training they would answer twice
TORCHVISION_CHANNELS = 3  # its networks have no option for another number


def build_external(library: str, name: str, *, channels: int, classes: int) -> nn.Module:
    """Network ``name`` of ``library``, with random weights, for images of ``channels``.

    Raises:
        MissingPart: the library is not installed, or does not work with this torch.
        UnknownName: it has no such network.
        BadInput: torchvision's take three channels only.
    """
    models = _library(library)
    known = models.list_models()
    if name not in known:
        raise UnknownName(f"model of {library}", name, known)
    made: Any
    if library == "timm":
        made = models.create_model(name, pretrained=False, in_chans=channels, num_classes=classes)
    else:
        if channels != TORCHVISION_CHANNELS:
            raise BadInput(
                f"torchvision:{name} takes images of {TORCHVISION_CHANNELS} channels; these have {channels}",
                hint="take a network of our own or of timm, which fit any number",
            )
        one_head = {"aux_logits": False} if name in TWO_HEADED else {}
        made = models.get_model(name, weights=None, num_classes=classes, **one_head)
    model: nn.Module = made
    return model


def _library(library: str) -> ModuleType:
    try:
        return importlib.import_module("torchvision.models" if library == "torchvision" else library)
    except (ImportError, RuntimeError, OSError) as error:  # torchvision made for another torch fails in all three ways
        raise MissingPart(
            f"models of {library} cannot be had: {error}",
            hint=f"pip install {library}, in the version made for this torch; or take a model of --list-models",
        ) from error


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
