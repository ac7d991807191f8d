"""A pack in words and as JSON: what it holds, how it was made, what is odd in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from allpull.data.pack.read import read_index
from allpull.data.pack_format import JPEG, JPEG_SEGMENTS, PICTURE, RAW
from allpull.units import counted, show_bytes

CODEC_WORDS = {
    JPEG: "jpeg",
    JPEG_SEGMENTS: "jpeg with restart segments",
    PICTURE: "pictures for Pillow alone",
    RAW: "raw",
}
SHOWN_CLASSES = 8


def describe(directory: Path) -> dict[str, Any]:
    """What ``pack info --json`` prints.

    Raises:
        PackError: no pack, or a damaged one.
    """
    header, rows, _ = read_index(directory)
    codecs = np.bincount(rows["codec"], minlength=len(CODEC_WORDS)).tolist()
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
        "codecs": {CODEC_WORDS[number]: count for number, count in enumerate(codecs) if count},
        "skipped": header.skipped,
        "remarks": header.remarks,
        "origin": header.origin,
    }


def _range(values: Any) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    yield f"{found['kind']} pack {found['pack'][:8]} of {found['origin'].get('source', 'an unknown source')}"
    yield f"{counted(found['records'], 'record')}, {show_bytes(found['bytes'])} in {counted(found['shards'], 'shard')}"
    names = ", ".join(found["classes"][:SHOWN_CLASSES])
    more = ", …" if len(found["classes"]) > SHOWN_CLASSES else ""
    several = ", several a record" if found["multi_label"] else ""
    yield f"{len(found['classes']):,} classes{several}: {names}{more}"
    height, width, size = found["height"], found["width"], found["record_bytes"]
    channels = " or ".join(map(str, found["channels"]))
    yield (
        f"{width['median']:.0f} × {height['median']:.0f} pixels of {channels} channels in the median "
        f"({width['min']} × {height['min']} to {width['max']} × {height['max']}), {show_bytes(size['median'])} a record"
    )
    yield ", ".join(f"{count:,} {word}" for word, count in found["codecs"].items())
    for what, count in found["remarks"].items():
        yield f"{count:,}: {what}: see odd.txt"
    if found["skipped"]:
        yield f"{found['skipped']:,} samples skipped: see skipped.txt"
