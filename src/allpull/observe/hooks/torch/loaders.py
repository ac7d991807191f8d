"""Observe how a program fetches its batches: iterators of ``torch.utils.data.DataLoader`` and its subclasses."""

from __future__ import annotations

import functools
from typing import Any

from ..inference.step_inference import StepInference


def watch_loaders(inference: StepInference) -> None:
    """Time each fetch in the training process, for any number of workers."""
    from torch.utils.data import dataloader  # noqa: PLC0415  this runs after torch was imported

    calls, base = inference.deferred, dataloader._BaseDataLoaderIter
    construct, take, iterate = base.__init__, base.__next__, dataloader.DataLoader.__iter__

    @functools.wraps(construct)
    def observed_construct(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        inference.pass_begun(id(self))  # fastai's loader makes iterators itself

    @functools.wraps(take)
    def observed_take(self: Any) -> Any:
        depth = calls.fetch_begins(id(self))
        try:
            batch = take(self)
        except BaseException:  # usually the end of the pass
            calls.leave(depth)
            raise
        calls.fetched(depth, batch)
        return batch

    @functools.wraps(iterate)
    def observed_iterate(self: Any) -> Any:
        depth = inference.pass_begins()
        try:
            iterator = iterate(self)
        finally:
            inference.leave(depth)
        inference.pass_begun(id(iterator))
        return iterator

    base.__init__ = observed_construct  # type: ignore[method-assign]  # as below
    base.__next__ = observed_take  # type: ignore[method-assign]  # wrapping is the point
    dataloader.DataLoader.__iter__ = observed_iterate  # type: ignore[method-assign]
