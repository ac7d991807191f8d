"""Build the requested network: a name of ``MODELS``, ``torchvision:NAME`` or ``timm:NAME``; count its parameters."""

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

# all other options exist only in some families
COMMON = {"name", "width", "norm", "dtype", "weights", "new_head"}


def build(spec: ModelSpec, *, channels: int, classes: int, pixels: tuple[int, int] | None = None) -> nn.Module:
    """The network of ``spec`` for images of ``channels`` and (height, width) ``pixels``.

    A family accepts the options that are keywords of its builder in ``MODELS``; ``pixels`` is one of them.

    Raises:
        UnknownName: no such network.
        MissingPart: its library is not installed.
        BadInput: an option that this network lacks, or values that contradict each other or the images.
    """
    library, colon, name = spec.name.partition(":")
    if colon and library in LIBRARIES:
        _refuse(spec, [*_family_options(spec), *_common_options(spec)], known=())
        return build_external(library, name, channels=channels, classes=classes)
    builder = MODELS.load(spec.name)
    takes = inspect.signature(builder).parameters
    options: dict[str, Any] = _family_options(spec)
    _refuse(spec, [option for option in options if option not in takes], known=[*takes])
    if "pixels" in takes:
        options["pixels"] = pixels
    model: nn.Module = builder(channels, classes, spec.width, spec.norm, **options)
    return model


def _family_options(spec: ModelSpec) -> dict[str, Any]:
    """The options of single families that differ from their defaults."""
    fields = [field for field in dataclasses.fields(spec) if field.name not in COMMON]
    return {field.name: getattr(spec, field.name) for field in fields if getattr(spec, field.name) != field.default}


def _common_options(spec: ModelSpec) -> list[str]:
    plain = ModelSpec()
    return [option for option in ("width", "norm") if getattr(spec, option) != getattr(plain, option)]


def _refuse(spec: ModelSpec, options: list[str], *, known: list[str] | tuple[()]) -> None:
    if options:
        available = [
            field.name for field in dataclasses.fields(spec) if field.name in known and field.name not in COMMON
        ]
        raise BadInput(
            f"model '{spec.name}' has no option {', '.join(f'model.{option}' for option in options)}",
            hint=f"it accepts {', '.join(f'model.{option}' for option in available)}"
            if available
            else "leave it at its default",
        )


TWO_HEADED = ("googlenet", "inception_v3")  # of torchvision: in training they return two outputs
TORCHVISION_CHANNELS = 3  # its networks accept no other number


def build_external(library: str, name: str, *, channels: int, classes: int) -> nn.Module:
    """Network ``name`` of ``library``, with random weights, for images of ``channels``.

    Raises:
        MissingPart: the library is not installed, or does not work with this torch.
        UnknownName: it has no such network.
        BadInput: torchvision's networks accept only three channels.
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
                f"torchvision:{name} needs images of {TORCHVISION_CHANNELS} channels; these have {channels}",
                hint="use one of allpull's own networks or of timm, which accept any number",
            )
        one_head = {"aux_logits": False} if name in TWO_HEADED else {}
        made = models.get_model(name, weights=None, num_classes=classes, **one_head)
    model: nn.Module = made
    return model


def _library(library: str) -> ModuleType:
    try:
        return importlib.import_module("torchvision.models" if library == "torchvision" else library)
    except (ImportError, RuntimeError, OSError) as error:  # torchvision for another torch fails in any of these ways
        raise MissingPart(
            f"models of {library} are not available: {error}",
            hint=f"pip install {library}, in the version for this torch; or use a model of --list-models",
        ) from error


def trainable_parameters(
    model: str | ModelSpec, *, channels: int = 1, classes: int = 10, pixels: tuple[int, int] | None = None
) -> int:
    """The number of trainable parameters of a model, by name with default options or by spec, without allocating it.

    Raises:
        AllpullError: no such model, or its options are invalid.
    """
    spec = ModelSpec(name=model) if isinstance(model, str) else model
    with torch.device("meta"):
        model_on_meta = build(spec, channels=channels, classes=classes, pixels=pixels)
    return trainable(model_on_meta)


def trainable(model: nn.Module) -> int:
    """The number of trainable parameters of ``model``."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
