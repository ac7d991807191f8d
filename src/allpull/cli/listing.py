"""What there is to choose from: recipes, models, data sets."""

from __future__ import annotations

import json
from typing import Any

from allpull.config.load import recipes
from allpull.data.loader import open_feed
from allpull.report.printable import inert_json
from allpull.schema.base import tag


def listing(*, recipes: bool, models: bool, data: bool, as_json: bool) -> str:
    """The chosen lists, as text for people or as one JSON object."""
    lists: dict[str, list[dict[str, Any]]] = {}
    if recipes:
        lists["recipes"] = recipe_list()
    if models:
        lists["models"] = model_list()
    if data:
        lists["data"] = [{"name": name} for name in open_feed.known()]
    if as_json:
        return inert_json(json.dumps({"schema": tag("list"), **lists}, indent=1))
    return "\n".join("  ".join(_columns(item)).rstrip() for items in lists.values() for item in items)


def _columns(item: dict[str, Any]) -> list[str]:
    name, *values = item.values()
    return [f"{name:20}", *(f"{value:,} trainable parameters" if isinstance(value, int) else value for value in values)]


def recipe_names() -> list[str]:
    """Names of the recipes that are shipped."""
    return sorted(recipes())


def recipe_list() -> list[dict[str, Any]]:
    """The recipes, each with what it is."""
    return [{"name": name, "about": about} for name, about in sorted(recipes().items())]


def model_list() -> list[dict[str, Any]]:
    """The models, each with its trainable parameters at default options on one channel and ten classes.

    Raises:
        MissingPart: torch is not installed.
    """
    from allpull.jobs.placement import need_torch  # noqa: PLC0415

    need_torch()
    from allpull.train.models import MODELS  # noqa: PLC0415
    from allpull.train.models.build import trainable_parameters  # noqa: PLC0415  needs torch

    return [{"name": name, "trainable_parameters": trainable_parameters(name)} for name in MODELS.names()]
