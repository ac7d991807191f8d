"""NumPy arrays: ``images.npy`` and ``labels.npy`` in a folder, or both in one npz file. No pickle is ever loaded.

Images are [n, height, width] or [n, height, width, channels] of uint8, uint16 or float32; labels are [n] class numbers,
or [n, classes] of 0 and 1 with several labels per sample.
"""

from __future__ import annotations

import os
import zipfile
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from allpull.data.pack_format import DTYPES, MAX_CLASSES, MAX_RECORDS, Kind
from allpull.data.sources import Entry, Listing, Sample
from allpull.data.sources.imagefolder import LINK, is_inside
from allpull.errors import BadInput
from allpull.regular_file import regular

MAX_NPZ_BYTES = 1 << 33  # uncompressed: an npz is held in memory; larger sets should be npy files, which are mapped
HINT = "save arrays 'images' and 'labels' with numpy.savez, or as images.npy and labels.npy"


class Arrays:
    """Images of one array, with their labels."""

    name = "arrays"
    kind: Kind = "raw"

    def __init__(self, path: Path, classes: tuple[str, ...], *, multi_label: bool, dtype: str) -> None:
        self.path, self.classes, self.multi_label, self.dtype = path, classes, multi_label, dtype

    def read(self, entry: Entry) -> Sample:
        """Pixels [height, width, channels]."""
        image: npt.NDArray[np.generic] = _array(self.path, "images")[int(entry.place[0])]
        return image[..., None] if image.ndim == 2 else image


def listing(path: Path, classes: int | None = None) -> Listing:
    """The samples of ``path``.

    Raises:
        BadInput: an array is missing, of another type or shape, or too large.
    """
    images, labels = _array(path, "images"), _array(path, "labels")
    dtype = images.dtype.newbyteorder("<").str
    if images.ndim not in (3, 4) or dtype not in DTYPES or 0 in images.shape:
        raise BadInput(f"{path}: images {images.shape} of {images.dtype}", hint=HINT)
    if len(images) != len(labels) or labels.ndim not in (1, 2) or labels.dtype.kind not in "uib":
        raise BadInput(f"{path}: labels {labels.shape} of {labels.dtype} for {len(images)} images", hint=HINT)
    if len(images) > MAX_RECORDS:
        raise BadInput(f"{path}: more than {MAX_RECORDS:,} images", hint="make several packs")
    multi = labels.ndim == 2
    count = classes or (labels.shape[1] if multi else int(labels.max()) + 1)
    fits = labels.shape[1] == count and labels.max() <= 1 if multi else labels.max() < count
    if not fits or labels.min() < 0 or count > MAX_CLASSES:
        raise BadInput(f"{path}: labels from {labels.min()} to {labels.max()} of {count} classes", hint=HINT)
    size = images[0].nbytes
    entries = [
        Entry(key=str(number), place=(number,), size_bytes=size, labels=tuple(numbers))
        for number, numbers in enumerate(_label_numbers(labels))
    ]
    source = Arrays(path, tuple(map(str, range(count))), multi_label=multi, dtype=dtype)
    return Listing(source=source, entries=entries, left_out=[])


def _label_numbers(labels: npt.NDArray[Any]) -> list[list[int]]:
    if labels.ndim == 1:
        return [[label] for label in labels.tolist()]
    return [np.flatnonzero(row).tolist() for row in labels]


@cache
def _array(path: Path, name: str) -> npt.NDArray[Any]:
    try:
        if path.is_dir():
            file = path / f"{name}.npy"
            os.close(regular(file))
            if not is_inside(path.resolve(), file.name):
                raise ValueError(LINK)
            array: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
            return array
        return _member(path, f"{name}.npy")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise BadInput(f"{path}: {name}: {error}", hint=HINT) from error


def _member(path: Path, name: str) -> npt.NDArray[Any]:
    """One array of an npz file; its uncompressed size is checked first."""
    with zipfile.ZipFile(path) as archive, archive.open(name) as member:
        version = npy.read_magic(member)
        reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = reader(member)
        if np.prod([float(side) for side in shape]) * dtype.itemsize > MAX_NPZ_BYTES or dtype.hasobject:
            raise ValueError("too large for an npz, or of Python objects")
        with archive.open(name) as again:
            file: IO[bytes] = again
            array: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
            return array
