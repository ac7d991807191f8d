"""The number of samples and elements in a batch of any structure, and the step that trained on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Tuple

if TYPE_CHECKING:
    from ...recording.recorder import Recorder

DEEPEST = 4  # nesting levels of a batch that are searched for its first tensor
MOST_PARTS = 16  # of a batch that are looked at for their size
MOST_WAITING = 4096  # batches that were fetched and not trained on; older ones are forgotten
MOST_PASSES = 16  # over loaders at a time; beyond that the oldest are dropped

Content = Tuple[Optional[int], Optional[int]]
"""Samples and elements of a batch."""
NOTHING: Content = (None, None)
LISTS = (list, tuple)
PAIR = 2  # parts of most batches: inputs and targets


class Batches:
    """Batches of each pass over a loader, in their order, until the program trains on them.

    It trains on the oldest batch of the pass that it fetched from last: a loop may fetch ahead, and evaluate on batches
    of other loaders in between; where it did so after it had fetched a batch to train on, that is next (``turn_back``).
    A pass is an epoch if the program trains on one of its batches. ``given`` is the content of a forward pass, for
    programs without a loader. ``held`` are backward passes after an optimizer stepped, of which is not known yet
    whether they are for another optimizer of its step, on the same batch.

    While there is a ``digest`` function, ``learned_from`` gets the digest of each batch that the program trains on;
    None: it has none. ``iterable_workers`` are the workers of the loader that gave the last of them, if its data set is
    an `IterableDataset`.
    """

    def __init__(self) -> None:
        self.given = NOTHING
        self.given_digest: Optional[str] = None
        self.digest: Optional[Callable[[Any], Optional[str]]] = None
        self.learned_from: List[Optional[str]] = []
        self.iterable_workers: Optional[int] = None
        self.held = 0
        self._passes: Dict[int, Pass] = {}
        self.turned_to: Optional[int] = None
        self.now = Pass()  # the one that the program fetched from last
        self.now.learned = True  # without a loader there are no epochs
        self._left: Optional[Pass] = None  # the first one that the program left with a batch to train on
        self._epochs = 0

    @property
    def is_new_pass(self) -> bool:
        """Whether the program has trained on no batch of the current pass."""
        return not self.now.learned or not self._passes

    @property
    def is_between(self) -> bool:
        """Whether the program has fetched nothing since it trained last."""
        return len(self.now.waiting) <= self.now.ahead

    def is_learned_from(self, iterator: int) -> bool:
        """Whether the program has trained on a batch of the current pass with the iterator of this id."""
        loader_pass = self._passes.get(iterator)
        return loader_pass is not None and loader_pass.learned

    def begin(self, iterator: int) -> None:
        """A pass begins with the iterator of this id."""
        self._passes.pop(iterator, None)  # a reused id, or a persistent iterator
        if len(self._passes) >= MOST_PASSES:
            del self._passes[next(iter(self._passes))]
        self._passes[iterator] = Pass()
        self.turned_to = None

    def repeat(self, iterator: int) -> None:
        """The iterator begins another pass: all that it gave before is of the last one."""
        loader_pass = self._passes.get(iterator)
        if loader_pass is not None:
            loader_pass.left = len(loader_pass.waiting)
            loader_pass.learned &= loader_pass.left > 0

    def turn_to(self, iterator: int) -> None:
        """The next batch comes from the pass with this iterator."""
        loader_pass = self._passes.get(iterator)
        if loader_pass is not None:
            if self._left is None and loader_pass is not self.now and len(self.now.waiting) > self.now.ahead:
                self._left = self.now
            self.now, self.turned_to = loader_pass, iterator

    def unlearned(self, *, with_now: bool) -> Optional[Pass]:
        """The first pass since the program trained that has a batch for it to train on, the current one perhaps."""
        is_now = with_now and len(self.now.waiting) > self.now.ahead
        return self._left or (self.now if is_now else None)

    def turn_back(self, loader_pass: Pass) -> None:
        """What was fetched since was evaluated: the program trains on what it had fetched in ``loader_pass``."""
        self.now, self.turned_to = loader_pass, None

    def fetched(self, batch: Any, iterator: Any) -> None:
        """The program fetched ``batch`` from a loader's ``iterator``."""
        self.now.waiting.append(content_from(batch, iterator))
        if self.digest is not None:
            self.now.digests.append(self.digest(batch))
            self.now.iterable_workers = getattr(iterator, "_allpull_iterable", None)

    def give_inputs(self, inputs: Any) -> None:
        """A network runs on ``inputs``, in a program without a loader."""
        if self.digest is not None and self.given_digest is None:
            self.given_digest = self.digest(inputs)
        self.give(content_of(inputs))

    def give(self, content: Content) -> None:
        """A network ran on so many samples and elements."""
        if self.given[0] is None:
            self.given = content

    def begin_epoch(self) -> int:
        """The program trains for the first time in this pass; returns the number of the epoch."""
        self.now.learned = True
        self._epochs += 1
        return self._epochs - 1

    def hold(self, _: Recorder) -> None:
        """The program trains on its next batch, or again on the last one."""
        self.held += 1

    def release(self, recorder: Recorder) -> None:
        """A step was written: what is held is of the step that has begun."""
        for _ in range(self.held):
            self.learn(recorder)
        self.held = 0

    def learn(self, recorder: Recorder) -> None:
        """The program trains on its next batch: its content is of the step of ``recorder``."""
        given, self.given = self.given, NOTHING
        now = self.now
        if self.digest is not None:
            self.learned_from.append(now.digests.popleft() if now.digests else self.given_digest)
            self.given_digest, self.iterable_workers = None, now.iterable_workers
        samples, elements = now.waiting.popleft() if now.waiting else given
        now.ahead = len(now.waiting)
        self._left = None
        if now.left:
            now.left -= 1
            now.learned = now.left > 0
        if samples is not None:
            recorder.samples = samples + (recorder.samples or 0)
        if elements is not None:
            recorder.elements = elements + (recorder.elements or 0)


class Pass:
    """One pass over a loader: contents of its pending batches, and whether the program trained on one.

    Where the loader has begun another pass with the same iterator, ``left`` of them are still of this one. ``ahead`` of
    them were pending when the program trained last. ``digests`` are those of the oldest, and ``iterable_workers`` the
    workers of their loader, if its data set is an `IterableDataset`.
    """

    __slots__ = ("ahead", "digests", "iterable_workers", "learned", "left", "waiting")

    def __init__(self) -> None:
        self.learned = False
        self.ahead = self.left = 0
        self.waiting: Deque[Content] = deque(maxlen=MOST_WAITING)
        self.digests: Deque[Optional[str]] = deque(maxlen=MOST_WAITING)
        self.iterable_workers: Optional[int] = None


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
