"""Plan a pack before anything is written: its order, id and expected size."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.data.jpeg.restart import tool_version
from allpull.data.pack.encode import Encoded, Recipe
from allpull.data.pack.encode_workers import attempt
from allpull.data.sources import Entry, Listing
from allpull.errors import BadInput
from allpull.units import show_bytes

SHARD_BYTES = 1 << 30  # 140 files for ImageNet: few for the file system, enough to split over 64 ranks
FORECAST_SAMPLES = 24
SPARE_SHARE = 0.02  # of free space that must remain, as a share of the pack: forecasts err


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of records: ``seed`` of the order (None: that of the source), and the size of a shard."""

    seed: int | None = 0
    shard_bytes: int = SHARD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines the bytes of a pack. ``entries`` are in the order of the records."""

    pack: str
    listing: Listing
    entries: Sequence[Entry]
    recipe: Recipe
    layout: Layout
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Size and time from a few samples: bytes with the standard error of their mean, and seconds on one core."""

    samples: int
    bytes: float
    error_bytes: float
    core_s: float


def plan(listing: Listing, recipe: Recipe, layout: Layout) -> Plan:
    """Determine the order and the pack's id; nothing is read or written.

    Raises:
        BadInput: a kind of pack that does not suit this source, or an impossible layout.
    """
    if recipe.kind != "raw" and listing.source.kind == "raw":
        raise BadInput(
            f"{listing.source.name} holds arrays, which kind {recipe.kind} cannot hold",
            hint="use --kind raw",
        )
    if recipe.kind == "jpeg-side" and recipe.side is None:
        raise BadInput("jpeg-side needs the length of the shorter side in pixels", hint="--side 256")
    if recipe.side is not None and recipe.kind not in ("jpeg-side", "raw"):
        raise BadInput(f"{recipe.kind} does not resize images", hint="use --kind jpeg-side, or raw")
    if layout.shard_bytes < 1 << 12:
        raise BadInput(f"shards of {layout.shard_bytes} bytes", hint="--shard-size 1GiB")
    entries = listing.entries
    if layout.seed is not None:
        order = np.random.Generator(np.random.Philox(key=[layout.seed, 0])).permutation(len(entries))
        entries = [entries[number] for number in order.tolist()]
    origin = {
        "source": listing.source.name,
        "recipe": asdict(recipe),
        "layout": asdict(layout),
        "libraries": _versions(recipe),
    }
    digest = hashlib.sha256(json.dumps([origin, list(listing.source.classes)], sort_keys=True).encode("ascii"))
    for entry in entries:
        digest.update(repr((entry.key, entry.size_bytes, entry.labels)).encode("utf-8", "surrogatepass"))
    pack = digest.hexdigest()[:32]
    return Plan(pack=pack, listing=listing, entries=entries, recipe=recipe, layout=layout, origin=origin)


def _versions(recipe: Recipe) -> dict[str, str]:
    """The libraries that determine the bytes; other versions may produce others."""
    versions = {}
    for name in ("numpy", "pillow", "simplejpeg"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if recipe.kind == "jpeg-restart":
        versions["restart markers"] = tool_version(recipe.tool)
    return versions


def forecast(plan: Plan) -> Forecast:
    """Encode a few samples, spread evenly over the source, and extrapolate size and time."""
    count = len(plan.entries)
    numbers = np.unique(np.linspace(0, count - 1, min(FORECAST_SAMPLES, count)).round().astype(int)).tolist()
    begin = time.process_time() + os.times().children_user
    sizes: list[int] = []
    for number in numbers:
        outcome = attempt(plan.listing.source, plan.recipe, plan.entries[number])
        sizes.append(len(outcome.data) if isinstance(outcome, Encoded) else 0)
    spent_s = time.process_time() + os.times().children_user - begin
    error = float(np.std(sizes)) / np.sqrt(max(1, len(sizes) - 1)) if len(sizes) < count else 0.0
    return Forecast(
        samples=len(sizes),
        bytes=float(np.mean(sizes)) * count,
        error_bytes=float(error) * count,
        core_s=spent_s / len(sizes) * count,
    )


def check_space(expected: Forecast, directory: Path) -> None:
    """Refuse to start without enough disk space.

    Raises:
        BadInput: the file system has too little space for the forecast.
    """
    free = shutil.disk_usage(directory).free
    written = sum(path.stat().st_size for path in directory.glob("shard-*.pack"))
    wanted = expected.bytes * (1 + SPARE_SHARE) - written
    if wanted > free:
        raise BadInput(
            f"{directory}: {show_bytes(wanted)} to write, {show_bytes(free)} free", hint="use another folder"
        )
