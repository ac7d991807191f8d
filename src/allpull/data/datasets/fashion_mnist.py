"""Fashion-MNIST, from its four IDX files, gzipped or plain."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from allpull.data.datasets.dataset import Bytes, Dataset, Part, with_statistics
from allpull.data.sources.idx import read_idx
from allpull.errors import BadInput

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
INSTALL = "apt install dataset-fashion-mnist, or set data.path to a folder with its four IDX files"


def read_fashion_mnist(path: str) -> Dataset:
    """Fashion-MNIST: 60,000 and 10,000 images [n, 28, 28, 1] of 10 classes (Xiao, Rasul & Vollgraf 2017).

    Raises:
        BadInput: the folder or one of its files is missing or damaged.
    """
    folder = Path(path) if path else DEBIAN_FASHION_MNIST
    if not folder.is_dir():
        raise BadInput(f"no Fashion-MNIST at {folder}", hint=INSTALL)
    train = _part(folder, "train")
    test = _part(folder, "t10k")
    return with_statistics("fashion-mnist", train, test, classes=10)


def _part(folder: Path, prefix: str) -> Part:
    images = read_array(_find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = read_array(_find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    if len(images) != len(labels):
        raise BadInput(f"{folder}: {len(images)} {prefix} images but {len(labels)} labels", hint=INSTALL)
    if len(labels) == 0 or labels.max() > 9:
        raise BadInput(f"{folder}: {prefix} labels are not classes 0 to 9", hint=INSTALL)
    return Part(images=images[..., None], labels=labels.astype(np.int64))


def _find(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise BadInput(f"{folder} has no {stem} or {stem}.gz", hint=INSTALL)


def read_array(path: Path, *, dimensions: int) -> Bytes:
    """The array of one IDX file of unsigned bytes with ``dimensions`` dimensions.

    Raises:
        BadInput: it cannot be read, is of another type or number of dimensions, or its size contradicts its header.
    """
    array = read_idx(path)
    if array.ndim != dimensions:
        hint = "are the files of images and labels swapped?"
        raise BadInput(f"{path}: not an IDX file of {dimensions}-dimensional unsigned bytes", hint=hint)
    return array
