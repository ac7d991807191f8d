"""BigEarthNet: one folder per patch, with a GeoTIFF per band and a JSON file of labels; 12 Sentinel-2 bands, uint16.

Bands of 20 and 60 metres (60×60 and 20×20 pixels) are interpolated bicubically to the 120×120 of the others and
rounded; the 10-metre bands are stored unchanged. With 19 classes, patches without a remaining label are left out, as
the authors do.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from allpull.data.images import Refused, import_pillow
from allpull.data.pack_format import Kind
from allpull.data.sources import Entry, Listing, Sample
from allpull.data.sources.corine_labels import CLASSES_43, GROUPS_19, TO_19
from allpull.data.sources.imagefolder import read_inside
from allpull.errors import BadInput

BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
SIDE = 120
SIDES = (120, 60, 20)
MAX_BAND_BYTES = 1 << 20  # 120×120 of 2 bytes are 29 kB; the rest are GeoTIFF tags
MAX_JSON_BYTES = 1 << 20
LABELS = "_labels_metadata.json"


class BigEarthNet:
    """Patches below ``root``: pixels [120, 120, 12] in the order of ``BANDS``."""

    name = "bigearthnet"
    multi_label = True
    kind: Kind = "raw"
    dtype = "<u2"

    def __init__(self, root: Path, classes: tuple[str, ...]) -> None:
        self.root, self.classes = root, classes

    def read(self, entry: Entry) -> Sample:
        """Pixels [120, 120, 12] of uint16."""
        patch = entry.key
        bands = [_band(read_inside(self.root, f"{patch}/{patch}_{band}.tif", MAX_BAND_BYTES)) for band in BANDS]
        return np.stack(bands, axis=2)


def listing(path: Path, classes: int | None = None) -> Listing:
    """The patches of ``path``, with labels of 43 classes (the default) or 19.

    Raises:
        BadInput: there are no patches, or another number of classes was requested.
    """
    if classes not in (None, 19, 43):
        raise BadInput(f"BigEarthNet has 43 or 19 classes, not {classes}", hint="--classes 43 or --classes 19")
    root = path.resolve()
    with os.scandir(root) as listing:
        patches = sorted(entry.name for entry in listing if entry.is_dir(follow_symlinks=False))
    entries: list[Entry] = []
    left_out: list[tuple[str, str]] = []
    for patch in patches:
        try:
            labels = _labels(read_inside(root, f"{patch}/{patch}{LABELS}", MAX_JSON_BYTES), grouped=classes == 19)
        except Refused as error:
            left_out.append((patch, f"labels: {error}"))
            continue
        entries.append(Entry(key=patch, place=(), size_bytes=SIDE * SIDE * len(BANDS) * 2, labels=labels))
    if not entries:
        raise BadInput(f"{path}: no patches with labels", hint=f"each is a folder PATCH with PATCH{LABELS} in it")
    names = tuple(name for name, _ in GROUPS_19) if classes == 19 else CLASSES_43
    return Listing(source=BigEarthNet(root, names), entries=entries, left_out=left_out)


def _labels(text: bytes, *, grouped: bool) -> tuple[int, ...]:
    try:
        names = json.loads(text)["labels"]
        numbers = {CLASSES_43.index(name) for name in names}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused("not a list of the 43 names") from error
    if grouped:
        numbers = {TO_19[number] for number in numbers if number in TO_19}
    if not numbers:
        raise Refused("no label remains")
    return tuple(sorted(numbers))


def _band(data: bytes) -> npt.NDArray[np.uint16]:
    """One band as [120, 120]."""
    image_module = import_pillow()
    try:
        with image_module.open(io.BytesIO(data), formats=("TIFF",)) as image:
            if image.size not in [(side, side) for side in SIDES] or not image.mode.startswith("I"):
                raise Refused(f"a band of {image.width} × {image.height} pixels of mode {image.mode}")
            stored: npt.NDArray[np.generic] = np.asarray(image)
    except Refused:
        raise
    except Exception as error:  # Pillow raises whatever damaged files provoke
        raise Refused("a band that is not a GeoTIFF, or is damaged") from error
    if stored.min() < 0 or stored.max() > 65535:
        raise Refused("a band with values beyond 16 bits")
    if len(stored) == SIDE:
        return stored.astype(np.uint16)
    real = image_module.fromarray(stored.astype(np.float32))
    large = np.asarray(real.resize((SIDE, SIDE), image_module.Resampling.BICUBIC))
    band: npt.NDArray[np.uint16] = np.rint(large).clip(0, 65535).astype(np.uint16)
    return band
