"""Observe how a program fetches its batches: iterators of ``torch.utils.data.DataLoader`` and its subclasses.

Loaders that keep their workers between epochs (timm, ultralytics) make one iterator, over a sampler that repeats itself
forever and so has no length: a pass of theirs is as long as they say.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Optional

from ..inference.step_inference import StepInference
from .loader_workers import LoaderWorkers
from .noted_calls import fetching, set_over


def watch_loaders(inference: StepInference, workers: LoaderWorkers) -> None:
    """Time each fetch in the training process, for any number of ``workers``."""
    from torch.utils.data import dataloader  # noqa: PLC0415  this runs after torch was imported

    base: Any = dataloader._BaseDataLoaderIter
    construct, take, iterate = base.__init__, base.__next__, dataloader.DataLoader.__iter__

    @functools.wraps(construct)
    def observed_construct(self: Any, *args: Any, **kwargs: Any) -> None:
        loader = args[0] if args else kwargs.get("loader")
        asked_ns = time.monotonic_ns()
        construct(self, *args, **kwargs)
        workers.starts(loader, self)
        self._allpull_length = _length_of_repeated(loader)
        self._allpull_most = _batch_size(loader)
        self._allpull_iterable = _workers_of_iterable(loader)
        inference.pass_begun(self, loader, asked_ns)  # fastai's loader makes iterators itself

    @functools.wraps(iterate)
    def observed_iterate(self: Any) -> Any:
        depth, asked_ns = inference.pass_begins(), time.monotonic_ns()
        try:
            iterator = iterate(self)
        finally:
            inference.leave(depth)
        if isinstance(iterator, base):
            set_over(iterator, False)  # one that keeps its workers begins again
        inference.pass_begun(iterator, self, asked_ns)
        return iterator

    base._allpull_length, base._allpull_most, base._allpull_iterable, base._allpull_is_over = 0, None, None, False
    base.__init__ = observed_construct
    base.__next__ = functools.wraps(take)(fetching(inference.deferred, take, inference.pass_repeats))
    dataloader.DataLoader.__iter__ = observed_iterate  # type: ignore[method-assign]  # wrapping is the point


def _batch_size(loader: Any) -> Optional[int]:
    """How many samples a batch of ``loader`` has at most; None: it is not known."""
    try:
        size = loader.batch_size
    except Exception:  # noqa: BLE001  a class of the program's own
        return None
    return size if type(size) is int else None


def _workers_of_iterable(loader: Any) -> Optional[int]:
    """The workers of ``loader``, each of which has all of its `IterableDataset`; None: it has another data set."""
    from torch.utils.data import IterableDataset  # noqa: PLC0415  this runs after torch was imported

    try:
        workers = loader.num_workers if isinstance(loader.dataset, IterableDataset) else None
    except Exception:  # noqa: BLE001  a class of the program's own
        return None
    return workers if type(workers) is int else None


def _length_of_repeated(loader: Any) -> int:
    """The batches of a pass over ``loader`` if it makes its passes of one endless iterator; 0: it does not."""
    from torch.utils.data import IterableDataset  # noqa: PLC0415  this runs after torch was imported

    try:
        is_endless = not (hasattr(loader._index_sampler, "__len__") or isinstance(loader.dataset, IterableDataset))
        return len(loader) if is_endless else 0
    except Exception:  # noqa: BLE001  a class of the program's own, which may have no length
        return 0
