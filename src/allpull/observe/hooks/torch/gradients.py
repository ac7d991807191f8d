"""See a program compute gradients: ``torch.autograd.backward``, which ``Tensor.backward`` calls."""

from __future__ import annotations

import functools
from typing import Any, Callable

from ..inference.step_inference import Watcher


def watch_gradients(watcher: Watcher, reduces: Callable[[], bool]) -> None:
    """Time each backward pass; ``reduces`` tells whether the one that just ran averaged its gradients over ranks."""
    from torch import autograd  # noqa: PLC0415  this runs after torch was imported

    backward = autograd.backward

    @functools.wraps(backward)
    def observed(*args: Any, **kwargs: Any) -> None:
        depth = watcher.backward_begins()
        try:
            backward(*args, **kwargs)
        finally:
            watcher.backward_ends(depth, reduces)

    autograd.backward = observed
