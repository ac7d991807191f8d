"""An exponential moving average of a network's weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from allpull.errors import BadInput


def decay_of(half_life_steps: float, *, every_steps: int = 1) -> float:
    """The decay of one update, made ``every_steps``, with which a weight's share halves in ``half_life_steps``.

    >>> decay_of(40, every_steps=20)
    0.7071067811865476
    """
    return float(0.5 ** (every_steps / half_life_steps))


class Average:
    """The average of parameters and of floating-point buffers, such as batch statistics; it begins at their values.

    average ← decay · average + (1 − decay) · value, with ``0 ≤ decay < 1``, all tensors together. Make it when the
    network stands on its device: it holds the tensors that the network has then.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        if not 0 <= decay < 1:
            raise BadInput(f"decay of the average is {decay:g}; it must be at least 0 and less than 1")
        self.decay = decay
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.live = {name: value.detach() for name, value in named.items() if value.is_floating_point()}
        self.average = {name: value.clone() for name, value in self.live.items()}

    def update(self) -> None:
        """Move towards the present values."""
        with torch.no_grad():
            torch._foreach_lerp_([*self.average.values()], [*self.live.values()], 1 - self.decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the network has the averages; afterwards it has its own values again, also after an error."""
        own = {name: value.clone() for name, value in self.live.items()}
        self._put(self.live, self.average)
        try:
            yield
        finally:
            self._put(self.live, own)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""
        return dict(self.average)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``.

        Raises:
            BadInput: it is of another network; nothing was changed.
        """
        shapes = {name: value.shape for name, value in self.average.items()}
        if {name: value.shape for name, value in state.items()} != shapes:
            raise BadInput("the averaged weights are those of another network")
        self._put(self.average, state)

    @staticmethod
    def _put(into: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_([*into.values()], [values[name] for name in into])
