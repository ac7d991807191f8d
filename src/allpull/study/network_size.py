"""Trainable parameters of the networks of a study, before anything is run and without the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from allpull.data.loader.open_feed import PACK, SYNTHETIC
from allpull.data.loader.pack_feed import inspect_packs
from allpull.errors import AllpullError, UnknownName
from allpull.nets import network
from allpull.schema.spec import RunSpec
from allpull.schema.trainspec import DataSpec, ModelSpec


class Shape(NamedTuple):
    """What a network needs to know of its data; ``pixels`` are those of a side."""

    channels: int
    classes: int
    pixels: int


NAMED_DATA: Mapping[str, Shape] = {
    "bigearthnet-resnet50": Shape(channels=12, classes=43, pixels=120),
    "imagenet-resnet50": Shape(channels=3, classes=1000, pixels=224),
}
"""Recipe → the shape of the data set that it is named after, which need not be here when a study is planned."""

EMBEDDED: Mapping[str, Shape] = {
    "digits": Shape(channels=1, classes=10, pixels=8),
    "fashion-mnist": Shape(channels=1, classes=10, pixels=28),
    SYNTHETIC: Shape(channels=3, classes=1000, pixels=224),
}


def of_trainings(trainings: Sequence[tuple[str, RunSpec]]) -> list[int | None]:
    """Trainable parameters of each training, given as its recipe and its specification.

    None where the data are neither here nor known by the name of the recipe, or torch is not installed.
    """
    return [_of_training(recipe, spec) for recipe, spec in trainings]


def of_rehearsal(cluster: Mapping[str, Any]) -> int | None:
    """Parameters of the network that the virtual accelerator of a cluster file trains; None if there is no such."""
    try:
        return network(str(cluster.get("accelerator", {}).get("model", "resnet50"))).parameters
    except UnknownName:
        return None


def _of_training(recipe: str, spec: RunSpec) -> int | None:
    shape = _shape(recipe, spec.data)
    return None if shape is None else _counted(spec.model, shape)


def _shape(recipe: str, data: DataSpec) -> Shape | None:
    """The data's shape: of the packs, if they are here; of a data set known by name; None if neither."""
    known = EMBEDDED.get(data.name) or NAMED_DATA.get(recipe)
    if data.name == PACK and data.path:
        try:
            packs = inspect_packs(data)
            known = Shape(packs.channels, packs.classes, packs.transform.size)
        except (AllpullError, OSError):
            pass
    if known is None:
        return None
    bands, classes = (getattr(data, name, 0) if data.name == SYNTHETIC else 0 for name in ("bands", "classes"))
    return Shape(bands or known.channels, classes or known.classes, data.size or known.pixels)


@cache
def _counted(model: ModelSpec, shape: Shape) -> int | None:
    try:
        from allpull.train.models.build import trainable_parameters  # noqa: PLC0415  torch, only where it is needed

        return trainable_parameters(
            model, channels=shape.channels, classes=shape.classes, pixels=(shape.pixels, shape.pixels)
        )
    except (ImportError, AllpullError):
        return None
