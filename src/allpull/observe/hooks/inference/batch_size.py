"""The number of samples in a batch of any structure, and the step that trained on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Deque, Dict, Optional

DEEPEST = 4  # nesting levels of a batch that are searched for its first tensor
MOST_WAITING = 4096  # batches that were fetched and not trained on; older ones are forgotten
MOST_PASSES = 16  # over loaders at a time; beyond that the oldest are dropped


class Batches:
    """Batches of each pass over a loader, in their order, until the program trains on them.

    It trains on the oldest batch of the pass that it fetched from last: a loop may fetch ahead, and evaluate on batches
    of other loaders in between. A pass is an epoch if the program trains on one of its batches. ``given`` is the number
    of samples of a forward pass, for programs without a loader.
    """

    def __init__(self) -> None:
        self.given: Optional[int] = None
        self._passes: Dict[int, Pass] = {}
        self.turned_to: Optional[int] = None
        self.now = Pass()  # the one that the program fetched from last
        self.now.learned = True  # without a loader there are no epochs
        self._epochs = 0

    @property
    def is_new_pass(self) -> bool:
        """Whether the program has trained on no batch of the current pass."""
        return not self.now.learned or not self._passes

    def begin(self, iterator: int) -> None:
        """A pass begins with the iterator of this id."""
        self._passes.pop(iterator, None)  # a reused id, or a persistent iterator
        if len(self._passes) >= MOST_PASSES:
            del self._passes[next(iter(self._passes))]
        self._passes[iterator] = Pass()
        self.turned_to = None

    def turn_to(self, iterator: int) -> None:
        """The next batch comes from the pass with this iterator."""
        loader_pass = self._passes.get(iterator)
        if loader_pass is not None:
            self.now, self.turned_to = loader_pass, iterator

    def give(self, samples: Optional[int]) -> None:
        """A network ran on so many samples."""
        if self.given is None:
            self.given = samples

    def begin_epoch(self) -> int:
        """The program trains for the first time in this pass; returns the number of the epoch."""
        self.now.learned = True
        self._epochs += 1
        return self._epochs - 1

    def learn(self) -> Optional[int]:
        """The program trains on its next batch; returns the number of its samples."""
        samples, self.given = self.given, None
        waiting = self.now.waiting
        return waiting.popleft() if waiting else samples


class Pass:
    """One pass over a loader: samples of its pending batches, and whether the program trained on one."""

    __slots__ = ("learned", "waiting")

    def __init__(self) -> None:
        self.learned = False
        self.waiting: Deque[Optional[int]] = deque(maxlen=MOST_WAITING)


def samples_of(batch: Any, deepest: int = DEEPEST) -> Optional[int]:
    """How many samples a batch holds: the length of its first tensor, or of its list of other things; None: unknown.

    >>> samples_of({"text": ["a", "b", "c"]})
    3
    """
    kind = type(batch)
    try:
        samples = (batch[0] if kind is list or kind is tuple else batch).shape[0]  # the common case
        if type(samples) is int:
            return samples
    except (AttributeError, IndexError, TypeError, ValueError):
        pass
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) and type(shape[0]) is int else None  # symbolic during export
    if deepest == 0 or isinstance(batch, (str, bytes)):
        return None
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence):
        parts = list(batch[:DEEPEST])
    else:
        own = _own_size(batch)
        if own is not None or _is_graph(batch):
            return own
        holds_data = hasattr(batch, "__dict__") and not callable(batch) and not isinstance(batch, ModuleType)
        parts = list(vars(batch).values()) if holds_data else []
    for part in parts:
        samples = samples_of(part, deepest - 1)
        if samples is not None:
            return samples
    plain = isinstance(batch, Sequence) and bool(parts) and not isinstance(parts[0], (Mapping, Sequence))
    texts = isinstance(batch, Sequence) and bool(parts) and isinstance(parts[0], (str, bytes))
    return len(batch) if plain or texts else None


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
