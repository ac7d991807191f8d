"""Read IDX files, the format of MNIST and its relatives, gzipped or plain.

Format: two zero bytes, a type byte (8: unsigned byte), the number of dimensions, each dimension as a big-endian
32-bit integer, then the data, last dimension fastest (LeCun, Cortes, Burges: the MNIST database).
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from allpull.errors import BadInput
from allpull.load.dataset import Bytes, Dataset, Part, made_of

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
MAX_BYTES = 1 << 32  # of one file's data: 60,000 images of 28×28 are 47 MB; this only stops a lying header
UNSIGNED_BYTE = 8
GET_IT = "apt install dataset-fashion-mnist, or set data.path to a folder with its four IDX files"


def read_fashion_mnist(path: str) -> Dataset:
    """Fashion-MNIST: 60,000 and 10,000 images [n, 28, 28, 1] of 10 classes (Xiao, Rasul & Vollgraf 2017).

    Raises:
        BadInput: the folder or one of its files is missing or damaged.
    """
    folder = Path(path) if path else DEBIAN_FASHION_MNIST
    if not folder.is_dir():
        raise BadInput(f"no Fashion-MNIST at {folder}", hint=GET_IT)
    train = _part(folder, "train")
    test = _part(folder, "t10k")
    return made_of("fashion-mnist", train, test, classes=10)


def _part(folder: Path, prefix: str) -> Part:
    images = read_array(_find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = read_array(_find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    if len(images) != len(labels):
        raise BadInput(f"{folder}: {len(images)} {prefix} images but {len(labels)} labels", hint=GET_IT)
    if len(labels) == 0 or labels.max() > 9:
        raise BadInput(f"{folder}: {prefix} labels are not classes 0 to 9", hint=GET_IT)
    return Part(images=images[..., None], labels=labels.astype(np.int64))


def _find(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise BadInput(f"{folder} has no {stem} or {stem}.gz", hint=GET_IT)


def read_array(path: Path, *, dimensions: int) -> Bytes:
    """The array of one IDX file of unsigned bytes with ``dimensions`` dimensions.

    Raises:
        BadInput: it cannot be read, is of another type or rank, or holds fewer or more bytes than it says.
    """
    hint = "is the file complete, and an IDX file of unsigned bytes?"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) != 4 or head[:2] != b"\0\0" or head[2] != UNSIGNED_BYTE or head[3] != dimensions:
                raise BadInput(f"{path}: not an IDX file of {dimensions}-dimensional unsigned bytes", hint=hint)
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape)
            if size > MAX_BYTES:
                raise BadInput(f"{path}: its header claims {size} bytes", hint=hint)
            data = file.read(size + 1)
    except (OSError, EOFError, struct.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: {error}", hint=hint) from error
    if len(data) != size:
        more = "more" if len(data) > size else f"only {len(data)}"
        raise BadInput(f"{path}: {size} bytes announced, {more} found", hint=hint)
    return np.frombuffer(data, np.uint8).reshape(shape)
