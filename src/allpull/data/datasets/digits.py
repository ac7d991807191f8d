"""The 1,797 handwritten digits of the UCI set, embedded in the package (CC BY 4.0; see NOTICE).

8×8 pixels of 0 to 16. The split is fixed and stratified: 1,437 to train on, 360 to test. Alpaydin & Kaynak,
"Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from allpull.data.datasets.dataset import Dataset, Part, with_statistics
from allpull.errors import BadInput


def read(path: str) -> Dataset:
    """The digits: images [n, 8, 8, 1], 10 classes.

    Raises:
        BadInput: a path was given for embedded data.
    """
    if path:
        raise BadInput(f"data.path is '{path}', but the digits are embedded", hint="omit data.path")
    with resources.files("allpull.data.datasets").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        images, labels, is_test = stored["images"][..., None], stored["labels"].astype(np.int64), stored["is_test"]
    train = Part(images=images[~is_test], labels=labels[~is_test])
    test = Part(images=images[is_test], labels=labels[is_test])
    return with_statistics("digits", train, test, classes=10)
