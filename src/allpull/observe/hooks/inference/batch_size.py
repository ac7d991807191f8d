"""The number of samples and elements in a batch of any structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, List, Optional, Tuple

DEEPEST = 4  # nesting levels of a batch that are searched for its first tensor
MOST_PARTS = 16  # of a batch that are looked at for their size

Content = Tuple[Optional[int], Optional[int]]
"""Samples and elements of a batch."""
NOTHING: Content = (None, None)
LISTS = (list, tuple)
PAIR = 2  # parts of most batches: inputs and targets


class Contents:
    """The contents of one batch after another: mostly those of the batch before, if the tensors have its shapes."""

    __slots__ = ("_content", "_parts", "_shapes")

    def __init__(self) -> None:
        self._parts = 0  # of the last batch
        self._shapes: List[Any] = []  # of the first of them
        self._content = NOTHING

    def of(self, batch: Any, iterator: Any = None) -> Content:
        """As ``content_from``, of the batch that ``iterator`` gave; None: it is of no loader."""
        try:
            if type(batch) in LISTS and len(batch) == self._parts == PAIR:  # a loop costs 3 µs more in cold caches
                (one, two), (first, second) = batch, self._shapes
                if one.shape == first and two.shape == second:
                    return self._content
            parts = batch if type(batch) in LISTS else (batch,)
            if len(parts) == self._parts:
                for part, shape in zip(parts, self._shapes):  # noqa: B905  Python 3.9 has no strict
                    if part.shape != shape:
                        break
                else:
                    return self._content
            shapes, content = [part.shape for part in parts[:DEEPEST]], content_from(batch, iterator)
        except Exception:  # noqa: BLE001  whatever the program calls a batch
            return content_from(batch, iterator)
        self._parts, self._shapes, self._content = len(parts), shapes, content
        return content


def content_from(batch: Any, iterator: Any) -> Content:
    """As ``content_of``, but for sequences whose first dimension is time, which a loader's ``iterator`` gave.

    Recurrent networks of torch and ``pad_sequence`` put time first by default. That a batch does is known where the
    loader's batches have at most ``_allpull_most`` samples, the first tensor has another number of rows, and the second
    one, of targets, has as many as the first has columns; or both have the same number of rows, more than that, and the
    loader's number of columns. Where the first has more rows than the loader's batches have samples, and several for
    each target, such as two views, the targets count.
    """
    samples, elements = content_of(batch)
    most = getattr(iterator, "_allpull_most", None)
    if most is None or samples in (None, most) or type(batch) not in LISTS or len(batch) < PAIR:
        return samples, elements
    one, two = (tuple(getattr(part, "shape", ())) for part in batch[:PAIR])
    if one and two and 0 < two[0] <= most < one[0] and one[0] % two[0] == 0:
        return two[0], elements
    if len(one) < PAIR or not two:
        return samples, elements
    of_targets = two[0] == one[1] <= most and two[0] != one[0]
    of_tokens = one[:PAIR] == two[:PAIR] and one[1] == most < one[0]
    return (one[1] if of_targets or of_tokens else samples), elements


def content_of(batch: Any, deepest: int = DEEPEST) -> Content:
    """How many samples a batch holds, and how many elements the largest of its first few tensors; None: unknown.

    Samples are the length of its first tensor, or of its list of other things. Padded texts of equal number differ in
    elements, which are then what a rank computes on.

    >>> content_of({"text": ["a", "b", "c"]})
    (3, None)
    """
    kind = type(batch)
    try:
        is_list = kind is list or kind is tuple
        shape = (batch[0] if is_list else batch).shape  # the common case
        samples = shape[0]
        if type(samples) is int:
            return samples, max([_elements(part) for part in batch[:DEEPEST]]) if is_list else _elements(batch)
    except (AttributeError, IndexError, TypeError, ValueError):
        pass
    shape = getattr(batch, "shape", None)
    if shape is not None:
        is_known = len(shape) and type(shape[0]) is int  # symbolic during export
        return (shape[0], _elements(batch)) if is_known else NOTHING
    if deepest == 0 or isinstance(batch, (str, bytes)):
        return NOTHING
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence):
        parts = list(batch[:DEEPEST])
    else:
        own = _own_size(batch)
        if own is not None or _is_graph(batch):
            nodes = _attribute(batch, "num_nodes")
            return own, nodes if type(nodes) is int else None
        holds_data = hasattr(batch, "__dict__") and not callable(batch) and not isinstance(batch, ModuleType)
        parts = list(vars(batch).values()) if holds_data else []
    samples, elements = _texts_of_samples(parts[:MOST_PARTS]) if isinstance(batch, Mapping) else None, None
    for place, part in enumerate(parts):
        if samples is not None and (deepest < DEEPEST or place >= MOST_PARTS):
            break
        more_samples, more_elements = content_of(part, deepest - 1)
        samples = more_samples if samples is None else samples
        elements = max(elements or 0, more_elements or 0)
    if samples is not None:
        return samples, elements or None
    plain = isinstance(batch, Sequence) and bool(parts) and not isinstance(parts[0], (Mapping, Sequence))
    texts = isinstance(batch, Sequence) and bool(parts) and isinstance(parts[0], (str, bytes))
    return (len(batch) if plain or texts else None), None


def _texts_of_samples(parts: List[Any]) -> Optional[int]:
    """The length of a list of texts, such as names of files, that is also that of a tensor: one for each sample.

    The first tensor may be one of boxes or of other parts of samples, as in ultralytics.
    """
    texts = {len(part) for part in parts if isinstance(part, (list, tuple)) and part and isinstance(part[0], str)}
    if not texts:
        return None
    samples = (content_of(part, 0)[0] for part in parts if hasattr(part, "shape"))
    return next((number for number in samples if number in texts), None)


def _elements(tensor: Any) -> int:
    """The elements of a tensor; 0: it is none, or its shape is symbolic or ragged."""
    elements = 1
    try:
        for length in tensor.shape:
            if type(length) is not int:
                return 0
            elements *= length
    except Exception:  # noqa: BLE001  whatever the program calls a batch
        return 0
    return elements


def _own_size(batch: Any) -> Optional[int]:
    """The number of samples that a batch of its own class states, as graphs of PyTorch Geometric and DGL do."""
    for holder in (batch, *(_attribute(batch, "node_stores") or ())):  # one store for each kind of nodes
        for name in ("num_graphs", "batch_size"):
            size = _attribute(holder, name)
            if type(size) is int:
                return size
    return None


def _is_graph(batch: Any) -> bool:
    """Whether ``batch`` is a graph, whose tensors have a row for each node or edge, not for each sample."""
    return _attribute(batch, "num_nodes") is not None or _attribute(batch, "number_of_nodes") is not None


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a property of the program's own class
        return None
