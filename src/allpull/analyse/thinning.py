"""Thin a series for drawing, evenly, first and last kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def evenly(items: Sequence[Item], at_most: int) -> list[Item]:
    """At most ``at_most`` (2 or more) of ``items``, at even distances, the first and the last among them.

    >>> evenly(range(10), 4), evenly([1, 2], 4)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(items) <= at_most:
        return list(items)
    return [items[index] for index in np.linspace(0, len(items) - 1, at_most).round().astype(int)]
