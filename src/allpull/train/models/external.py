"""Networks of torchvision and timm, where these are installed."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import nn

from allpull.errors import BadInput, MissingPart, UnknownName

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
