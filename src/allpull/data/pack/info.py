"""Describe a pack, as JSON and as text: contents, origin, unusual samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from allpull.data.pack.read import read_index
from allpull.data.pack_format import JPEG, JPEG_SEGMENTS, PICTURE, RAW
from allpull.units import counted, show_bytes

CODEC_NAMES = {
    JPEG: "jpeg",
    JPEG_SEGMENTS: "jpeg with restart segments",
    PICTURE: "images that only Pillow decodes",
    RAW: "raw",
}
SHOWN_CLASSES = 8


def describe(directory: Path) -> dict[str, Any]:
    """The object that ``pack info --json`` prints.

    Raises:
        PackError: there is no pack, or it is damaged.
    """
    header, rows, _ = read_index(directory)
    codecs = np.bincount(rows["codec"], minlength=len(CODEC_NAMES)).tolist()
    sizes = rows["length"].astype(np.int64)
    return {
        "schema": "allpull/pack/1.0",
        "pack": header.pack,
        "kind": header.kind,
        "records": header.records,
        "bytes": sum(shard.bytes for shard in header.shards),
        "shards": len(header.shards),
        "classes": list(header.classes),
        "multi_label": header.multi_label,
        "dtype": header.dtype if codecs[RAW] else None,
        "channels": sorted({int(one) for one in np.unique(rows["channels"])}),
        "height": _range(rows["height"]),
        "width": _range(rows["width"]),
        "record_bytes": _range(sizes),
        "mean": list(header.mean) or None,
        "std": list(header.std) or None,
        "table_bytes": int(rows["tail"].sum(dtype=np.int64)),
        "codecs": {CODEC_NAMES[number]: count for number, count in enumerate(codecs) if count},
        "skipped": header.skipped,
        "remarks": header.remarks,
        "origin": header.origin,
    }


def _range(values: Any) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def lines(pack: dict[str, Any]) -> Iterator[str]:
    """The same as text."""
    yield f"{pack['kind']} pack {pack['pack'][:8]} of {pack['origin'].get('source', 'an unknown source')}"
    yield f"{counted(pack['records'], 'record')}, {show_bytes(pack['bytes'])} in {counted(pack['shards'], 'shard')}"
    names = ", ".join(pack["classes"][:SHOWN_CLASSES])
    more = ", …" if len(pack["classes"]) > SHOWN_CLASSES else ""
    several = ", several per record" if pack["multi_label"] else ""
    yield f"{len(pack['classes']):,} classes{several}: {names}{more}"
    height, width, size = pack["height"], pack["width"], pack["record_bytes"]
    channels = " or ".join(map(str, pack["channels"]))
    yield (
        f"{width['median']:.0f} × {height['median']:.0f} pixels of {channels} channels (median) "
        f"({width['min']} × {height['min']} to {width['max']} × {height['max']}), "
        f"{show_bytes(size['median'])} per record"
    )
    yield ", ".join(f"{count:,} {word}" for word, count in pack["codecs"].items())
    for remark, count in pack["remarks"].items():
        yield f"{count:,}: {remark}: see odd.txt"
    if pack["skipped"]:
        yield f"{pack['skipped']:,} samples skipped: see skipped.txt"
