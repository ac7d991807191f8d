"""How many samples a batch holds, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

DEEPEST = 4  # levels of a batch that are looked into for its first tensor


def samples_of(batch: Any, deepest: int = DEEPEST) -> Optional[int]:
    """How many samples a batch holds: the length of its first tensor, or of its list of other things; None: unknown.

    >>> samples_of({"text": ["a", "b", "c"]})
    3
    """
    if type(batch) in (list, tuple) and batch and hasattr(batch[0], "shape"):  # what most loaders give
        batch = batch[0]
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if deepest == 0 or isinstance(batch, (str, bytes)):
        return None
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence):
        parts = list(batch[:DEEPEST])
    else:
        parts = list(vars(batch).values()) if hasattr(batch, "__dict__") else []
    for part in parts:
        found = samples_of(part, deepest - 1)
        if found is not None:
            return found
    plain = isinstance(batch, Sequence) and bool(parts) and not isinstance(parts[0], (Mapping, Sequence))
    texts = isinstance(batch, Sequence) and bool(parts) and isinstance(parts[0], (str, bytes))
    return len(batch) if plain or texts else None
