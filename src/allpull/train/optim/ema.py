"""An exponential moving average of a network's weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from allpull.train.optim.lars import own_part
from allpull.train.optim.master_weights import Masters


def decay_of(half_life_steps: float, *, every_steps: int = 1) -> float:
    """The decay of one update, made ``every_steps``, with which a weight's share halves in ``half_life_steps``.

    >>> decay_of(40, every_steps=20)
    0.7071067811865476
    """
    return float(0.5 ** (every_steps / half_life_steps))


class Average:
    """The average of parameters and of floating-point buffers, such as batch statistics; it begins at their values.

    average ← decay · average + (1 − decay) · value after each ``every_steps``, where the share of a value halves in
    ``half_life_steps``; all tensors together. Of weights that ranks share each has its part, and of a network in half
    precision the ``masters`` are averaged. Make it when the network is shared out and stands where it is trained: it
    holds the tensors that there are then.
    """

    def __init__(
        self, model: nn.Module, *, half_life_steps: float, every_steps: int = 1, masters: Masters | None = None
    ) -> None:
        self.decay = decay_of(half_life_steps, every_steps=every_steps)
        self._every_steps = every_steps
        self._masters = masters
        exact = masters.weights if masters else {}
        named = {**dict(model.named_parameters()), **dict(model.named_buffers()), **exact}
        self._live = [own_part(value) for value in named.values() if value.is_floating_point()]
        self._average = [value.clone() for value in self._live]

    def after(self, step: int) -> None:
        """Move towards the present values, if it is time: ``step`` steps are done."""
        if step % self._every_steps == 0:
            torch._foreach_lerp_(self._average, self._live, 1 - self.decay)

    def restart(self) -> None:
        """Begin anew at the present values."""
        torch._foreach_copy_(self._average, self._live)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the network has the averages; afterwards it has its own values again, also after an error."""
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
