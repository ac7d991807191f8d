"""Chance within the network, such as dropout: another on each rank, and the same when a training is repeated.

Weights begin with the same numbers on all ranks. What is drawn afterwards must not be the same on all of them: ranks
that drop the same units see less of the network in a step than one rank with all samples does. Order and augmentation
have random numbers of their own, which follow from the sample alone (``data/loader/order.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def own_chance(seed: int, rank: int, step: int = 0) -> None:
    """Begin torch's random numbers, on all devices, anew for ``rank`` of a training with ``seed`` at ``step``.

    A training that goes on with the states that its ranks had need not do so; with another number of ranks there are
    no such states.
    """
    torch.manual_seed(seed_of(seed, rank, step))


def seed_of(seed: int, rank: int, step: int) -> int:
    """The seed of ``rank`` at ``step``: numbers that follow each other from rank to rank, so that no two are alike.

    >>> seed_of(0, 3, 100) - seed_of(0, 0, 100)
    3
    """
    # the lower half alone, all that torch's generator on a CPU takes, less room to count ranks in
    first = int(np.random.SeedSequence([seed, step]).generate_state(1)[0]) >> 1
    return first + rank


def chances(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random numbers on the CPU and on ``device``, by kind of device."""
    found = {"cpu": torch.get_rng_state()}
    return {**found, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else found


def put_chances(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on from ``states``, as ``chances`` gave them; what is not among them stays as it is."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
