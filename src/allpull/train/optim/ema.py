"""An exponential moving average of a network's weights, evaluated instead of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from allpull.train.optim.lars import own_part
from allpull.train.optim.master_weights import MasterWeights


def decay_of(half_life_steps: float, *, every_steps: int = 1) -> float:
    """The decay per update, every ``every_steps``, for a half-life of ``half_life_steps``.

    >>> decay_of(40, every_steps=20)
    0.7071067811865476
    """
    return float(0.5 ** (every_steps / half_life_steps))


class Average:
    """The average of parameters and of floating-point buffers, such as batch statistics; it starts at their values.

    average ← decay · average + (1 − decay) · value after each ``every_steps``, so that the weight of a value halves in
    ``half_life_steps``; all tensors in one call. Of sharded weights each rank averages its shard, and of a network in
    half precision the ``masters`` are averaged. Construct it after the network is distributed and on its device: it
    refers to the tensors of that time.
    """

    def __init__(
        self, model: nn.Module, *, half_life_steps: float, every_steps: int = 1, masters: MasterWeights | None = None
    ) -> None:
        self.decay = decay_of(half_life_steps, every_steps=every_steps)
        self._every_steps = every_steps
        self._masters = masters
        exact = masters.weights if masters else {}
        named = {**dict(model.named_parameters()), **dict(model.named_buffers()), **exact}
        self._live = [own_part(value) for value in named.values() if value.is_floating_point()]
        self._average = [value.clone() for value in self._live]

    def after(self, step: int) -> None:
        """Update towards the current values, if due: ``step`` steps are done."""
        if step % self._every_steps == 0:
            torch._foreach_lerp_(self._average, self._live, 1 - self.decay)

    def restart(self) -> None:
        """Restart from the current values."""
        torch._foreach_copy_(self._average, self._live)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In this context the network has the averages; afterwards its own values are restored, even after an error."""
        own = [value.clone() for value in self._live]
        self._put(self._average)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self._live, values)
        if self._masters:
            self._masters.give_weights()
