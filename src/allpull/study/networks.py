"""How many trainable parameters the network of a point has; needs torch for allpull's own models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from allpull.data.loader import open_feed
from allpull.errors import AllpullError
from allpull.nets import network
from allpull.schema.spec import RunSpec
from allpull.schema.trainspec import DataSpec
from allpull.study.points import Point

IMAGENET = (3, 1000, 224)
"""Channels, classes and pixels of a data set that is not here."""

ASSUMED = "networks are counted for 3 channels and 1,000 classes where the data set is not on this machine"


def trainable_parameters(points: Sequence[Point]) -> tuple[dict[str, int | None], list[str]]:
    """The trainable parameters of every point by id, None where the network is not known; and notes."""
    counts: dict[str, int | None] = {}
    notes: dict[str, None] = {}
    known: dict[str, tuple[int | None, str | None]] = {}
    for point in points:
        spec = point.job.spec
        if spec is None:
            counts[point.id] = _of_table(point.job.configuration.get("cluster"))
            continue
        key = repr((spec.model, spec.data))
        if key not in known:
            known[key] = _of_model(spec)
        counts[point.id], note = known[key]
        if note is not None:
            notes[note] = None
    return counts, list(notes)


def _of_table(cluster: Mapping[str, Any] | None) -> int | None:
    """The parameters of the network that a virtual accelerator trains; None for a command."""
    if cluster is None:
        return None
    return network(cluster.get("accelerator", {}).get("model", "resnet50")).parameters


def _of_model(spec: RunSpec) -> tuple[int | None, str | None]:
    """The parameters of the model of ``spec``, and what to note."""
    if importlib.util.find_spec("torch") is None:
        return None, "parameters of networks are not counted: torch is not installed"
    from allpull.train.models.build import trainable_parameters as count  # noqa: PLC0415  needs torch, which takes seconds

    shape, note = _shape(spec.data)
    channels, classes, pixels = shape
    try:
        return count(spec.model, channels=channels, classes=classes, pixels=(pixels, pixels)), note
    except AllpullError as error:
        return None, f"model {spec.model.name}: {error.message}"


def _shape(data: DataSpec) -> tuple[tuple[int, int, int], str | None]:
    """Channels, classes and pixels of the images of ``data``, and a note where they are assumed."""
    channels, classes, pixels = IMAGENET
    if data.name == open_feed.SYNTHETIC:
        return (data.bands or channels, data.classes or classes, data.size or pixels), None
    try:
        feed = open_feed.open_feed(data, rank=0, ranks=1, global_batch=1, seed=0, epochs=1)
    except AllpullError:
        return (channels, classes, data.size or pixels), ASSUMED
    return (feed.facts.channels, feed.facts.classes, feed.facts.pixels[0]), None
