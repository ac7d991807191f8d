"""Batches of the passes over loaders, the step that trained on each, and which passes are epochs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional
from weakref import ref

from .batch_size import NOTHING, Content, content_from, content_of

if TYPE_CHECKING:
    from ...recording.recorder import Recorder

MOST_WAITING = 4096  # batches that were fetched and not trained on; older ones are forgotten
MOST_PASSES = 16  # over loaders at a time; beyond that the oldest are dropped


class Batches:
    """Batches of each pass over a loader, in their order, until the program trains on them.

    It trains on the oldest batch of the pass that it fetched from last: a loop may fetch ahead, and evaluate on batches
    of other loaders in between; where it did so after it had fetched a batch to train on, that is next (``turn_back``).
    A pass is an epoch if the program trains on one of its batches, unless it is over another loader than that of the
    last epoch, which goes on: a program may take its batches from several loaders in turn.

    ``given`` is the content of a forward pass, for programs without a loader. ``held`` are backward passes after an
    optimizer stepped, of which is not known yet whether they are for another optimizer of its step, on the same batch.

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
        self._epoch: Optional[Pass] = None  # the last one
        self._turns = 0  # from one pass to another
        self._beside: Dict[int, int] = {}  # loader → their number when its last pass beside an epoch began

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

    def begin(self, iterator: Any, loader: Any, asked_ns: Optional[int] = None) -> None:
        """A pass over ``loader``, which was asked for it at ``asked_ns``, begins with this ``iterator``."""
        self._passes.pop(id(iterator), None)  # a reused id, or a persistent iterator
        if len(self._passes) >= MOST_PASSES:
            del self._passes[next(iter(self._passes))]
        self._passes[id(iterator)] = Pass(iterator, loader, asked_ns)
        self.turned_to = None

    def leave_loaders(self) -> None:
        """Another thread fetched what the program trains on: until it fetches itself, it has batches of its own."""
        self.now.waiting.clear()
        self.now.digests.clear()
        self.now, self.turned_to, self._left = Pass(), None, None
        self.now.learned = True

    def repeat(self, iterator: int) -> None:
        """The iterator begins another pass: all that it gave before is of the last one."""
        loader_pass = self._passes.get(iterator)
        if loader_pass is not None:
            loader_pass.asked_ns = None
            loader_pass.left = len(loader_pass.waiting)
            loader_pass.learned &= loader_pass.left > 0

    def turn_to(self, iterator: int) -> None:
        """The next batch comes from the pass with this iterator."""
        loader_pass = self._passes.get(iterator)
        if loader_pass is not None:
            if self._left is None and loader_pass is not self.now and len(self.now.waiting) > self.now.ahead:
                self._left = self.now
            if loader_pass is not self.now:
                self._turns += 1
                loader_pass.turn = self._turns
            self.now, self.turned_to = loader_pass, iterator

    def unlearned(self, *, with_now: bool) -> Optional[Pass]:
        """The first pass since the program trained that has a batch for it to train on, the current one perhaps."""
        is_now = with_now and len(self.now.waiting) > self.now.ahead
        return self._left or (self.now if is_now else None)

    def turn_back(self, loader_pass: Pass) -> None:
        """What was fetched since was evaluated: the program trains on what it had fetched in ``loader_pass``."""
        self.now, self.turned_to = loader_pass, None

    def has_one_fresh(self, *, after_first: bool) -> bool:
        """Whether the program fetched one batch since it learned, and that of no evaluation: it is the next.

        Several are forgotten: what it learned from is not known. So is one of two ``after_first``: it is of the first
        step, before it was known how the program learns.
        """
        found = self.unlearned(with_now=True)
        if found is not None and found is not self.now and found.is_over:  # what it left there, it never learned from
            found.waiting.clear()
            found.digests.clear()
            self._left = None
            found = self.unlearned(with_now=True)
        if found is None:
            return False
        fresh = len(found.waiting) - found.ahead
        forgotten = 1 if after_first and fresh == 2 else fresh if fresh > 1 else 0
        for _ in range(forgotten):
            found.waiting.popleft()
            if found.digests:
                found.digests.popleft()
        if fresh - forgotten == 1 and found is not self.now:
            self.turn_back(found)
        return fresh - forgotten == 1

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

    def begin_epoch(self) -> Optional[int]:
        """The program trains for the first time in this pass; returns the number of the epoch, None: it goes on."""
        now = self.now
        now.learned = True
        if self._is_beside(now):
            self._beside[now.loader] = self._turns
            return None
        self._epoch = now
        self._epochs += 1
        return self._epochs - 1

    def _is_beside(self, now: Pass) -> bool:
        """Whether the last epoch goes on, over another loader: one to which no pass returns is over, too."""
        last = self._epoch
        if last is None or now.loader in (0, last.loader) or last.is_over:
            return False
        return last.turn > self._beside.get(now.loader, -1)

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

    ``loader`` is its id, 0 where there is none, and ``asked_ns`` when it was asked for the pass, None: it repeats one.
    ``thread`` is another one that fetched last, before it was known which thread trains; ``turn`` counts the turns from
    one pass to another, up to the last one to this. Where the loader has begun another pass with the same iterator,
    ``left`` of them are still of this one. ``ahead`` of them were pending when the program trained last. ``digests``
    are those of the oldest, and ``iterable_workers`` the workers of their loader, if its data set is an
    `IterableDataset`.
    """

    __slots__ = (
        "_iterator",
        "ahead",
        "asked_ns",
        "digests",
        "iterable_workers",
        "learned",
        "left",
        "loader",
        "thread",
        "turn",
        "waiting",
    )

    def __init__(self, iterator: Any = None, loader: Any = None, asked_ns: Optional[int] = None) -> None:
        self.loader = 0 if loader is None else id(loader)
        self.asked_ns = asked_ns
        self._iterator = _reference(iterator)
        self.thread: Optional[int] = None
        self.turn = 0
        self.learned = False
        self.ahead = self.left = 0
        self.waiting: Deque[Content] = deque(maxlen=MOST_WAITING)
        self.digests: Deque[Optional[str]] = deque(maxlen=MOST_WAITING)
        self.iterable_workers: Optional[int] = None

    @property
    def is_over(self) -> bool:
        """Whether its iterator is gone, or has said that it has no more; its length is not asked for.

        A sampler of the program's own may draw random numbers to tell it.
        """
        iterator = self._iterator()
        try:
            return iterator is None or bool(iterator._allpull_is_over)
        except Exception:  # noqa: BLE001  a class of the program's own
            return True


def _reference(iterator: Any) -> Callable[[], Any]:
    try:
        return ref(iterator)
    except TypeError:
        return lambda: None
