"""How many samples a batch holds, whatever it is made of, and which step learned from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Deque, Dict, Optional

DEEPEST = 4  # levels of a batch that are looked into for its first tensor
MOST_WAITING = 4096  # batches that were fetched and not learned from, before we stop counting on them
MOST_PASSES = 16  # over loaders at a time; of more, the oldest are forgotten


class Batches:
    """Batches of each pass over a loader, in their order, until they are learned from.

    What is learned from is the oldest batch of the pass that the program fetched from last: a loop may fetch ahead,
    and evaluate on batches of other loaders in between. A pass is an epoch if one of its batches is learned from.
    ``given`` counts samples of networks that ran, where a program has no loader.
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
        """Whether the program has learned from nothing that it fetched in this pass, if from anything at all."""
        return not self.now.learned or not self._passes

    def begin(self, iterator: int) -> None:
        """A pass begins, whose iterator has this id."""
        self._passes.pop(iterator, None)  # an id, or a persistent iterator, that is used again
        if len(self._passes) >= MOST_PASSES:
            del self._passes[next(iter(self._passes))]
        self._passes[iterator] = Pass()
        self.turned_to = None

    def turn_to(self, iterator: int) -> None:
        """The next batch comes from the pass with this iterator."""
        found = self._passes.get(iterator)
        if found is not None:
            self.now, self.turned_to = found, iterator

    def give(self, samples: Optional[int]) -> None:
        """A network ran on so many samples."""
        if self.given is None:
            self.given = samples

    def begin_epoch(self) -> int:
        """The program learns for the first time in this pass: the number of the epoch that it is."""
        self.now.learned = True
        self._epochs += 1
        return self._epochs - 1

    def learn(self) -> Optional[int]:
        """The program learns: from how many samples."""
        samples, self.given = self.given, None
        waiting = self.now.waiting
        return waiting.popleft() if waiting else samples


class Pass:
    """One pass over a loader: samples of batches that wait to be learned from, and whether one of them was."""

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
        samples = (batch[0] if kind is list or kind is tuple else batch).shape[0]  # what most loaders give
        if type(samples) is int:
            return samples
    except (AttributeError, IndexError, TypeError, ValueError):
        pass
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) and type(shape[0]) is int else None  # where it is exported, it is only a name
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
