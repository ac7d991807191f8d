"""IDX, the format of MNIST and its relatives: pixels and labels in a pair of files, plain or gzipped.

Two zero bytes, a type byte (8: unsigned byte), the number of dimensions, each as a big-endian 32-bit integer, then the
data, last dimension fastest (LeCun, Cortes, Burges: the MNIST database).
"""

from __future__ import annotations

import gzip
import math
import struct
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from allpull.data.pack_format import Kind
from allpull.data.sources import Entry, Listing, Sample
from allpull.data.sources.imagefolder import LINK, is_inside
from allpull.errors import BadInput
from allpull.regular_file import regular

MAX_BYTES = 1 << 32  # of one file's data: 60,000 images of 28×28 are 47 MB; guards against false headers
PARTS = ("train", "t10k")


class Idx:
    """Images [n, height, width] or [n, height, width, channels] of one file."""

    name = "idx"
    multi_label = False
    kind: Kind = "raw"
    dtype = "|u1"

    def __init__(self, file: Path, classes: tuple[str, ...]) -> None:
        self.file, self.classes = file, classes

    def read(self, entry: Entry) -> Sample:
        """Pixels [height, width, channels]."""
        image: npt.NDArray[np.uint8] = _cached(self.file)[int(entry.place[0])]
        return image[..., None] if image.ndim == 2 else image


def listing(path: Path, classes: int | None = None) -> Listing:
    """The samples of the training files in ``path``, or of the test files if there are no others.

    Raises:
        BadInput: a file is missing or damaged, or there are not as many labels as images.
    """
    parts = [part for part in PARTS if list(path.glob(f"{part}-images*"))]
    prefix = parts[0] if parts else ""
    images_file = _one(path, f"{prefix}*-images*idx*")
    labels = read_idx(_one(path, f"{prefix}*-labels*idx*"))
    images = _cached(images_file)
    if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels) or not len(labels):
        raise BadInput(f"{path}: images {images.shape}, labels {labels.shape}", hint="are both from the same data set?")
    count = classes or int(labels.max()) + 1
    if labels.max() >= count:
        raise BadInput(f"{path}: a label {labels.max()} of {count} classes", hint="increase --classes")
    size = images[0].size
    entries = [
        Entry(key=f"{images_file.name}:{number}", place=(number,), size_bytes=size, labels=(label,))
        for number, label in enumerate(labels.tolist())
    ]
    return Listing(source=Idx(images_file, tuple(map(str, range(count)))), entries=entries, left_out=[])


def _one(path: Path, pattern: str) -> Path:
    matches = sorted(path.glob(pattern))
    if not matches:
        raise BadInput(
            f"{path} has no {pattern}", hint="IDX files are NAME-images-idx3-ubyte and NAME-labels-idx1-ubyte"
        )
    if not is_inside(path.resolve(), matches[0].name):
        raise BadInput(f"{matches[0]}: {LINK}", hint="copy the file itself to its place")
    return matches[0]


@cache
def _cached(file: Path) -> npt.NDArray[np.uint8]:
    return read_idx(file)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of one IDX file of unsigned bytes, with as many dimensions as its header says (at most 4).

    Raises:
        BadInput: it cannot be read, is of another type, or its size contradicts its header.
    """
    hint = "check that the file is complete and an IDX file of unsigned bytes"
    try:
        with open(path, "rb", opener=regular) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            head = file.read(4)
            if len(head) != 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
                raise BadInput(f"{path}: not an IDX file of unsigned bytes", hint=hint)
            shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
            size = math.prod(shape)
            if size > MAX_BYTES:
                raise BadInput(f"{path}: its header claims {size} bytes", hint=hint)
            data = file.read(size + 1)
    except (OSError, EOFError, struct.error) as error:
        raise BadInput(f"{path}: {error}", hint=hint) from error
    if len(data) != size:
        more = "more" if len(data) > size else f"only {len(data)}"
        raise BadInput(f"{path}: {size} bytes announced, {more} found", hint=hint)
    return np.frombuffer(data, np.uint8).reshape(shape)
