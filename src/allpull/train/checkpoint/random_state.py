"""Random numbers of the network, such as dropout: different on each rank, and reproducible.

Weights start from the same numbers on all ranks. Later draws must differ between ranks: ranks that drop the same units
see less of the network in a step than one rank with all samples does. Sample order and augmentation have random
numbers of their own, which depend on the sample alone (``data/loader/order.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def seed_rank(seed: int, rank: int, step: int = 0) -> None:
    """Seed torch's generators, on all devices, for ``rank`` of a training with ``seed`` at ``step``.

    A training resumed on as many ranks restores their generator states instead.
    """
    torch.manual_seed(seed_of(seed, rank, step))


def seed_of(seed: int, rank: int, step: int) -> int:
    """The seed of ``rank`` at ``step``: consecutive over ranks, so no two are equal.

    >>> seed_of(0, 3, 100) - seed_of(0, 0, 100)
    3
    """
    # torch's CPU generator takes 32 bits; one is left free to add the rank
    first = int(np.random.SeedSequence([seed, step]).generate_state(1)[0]) >> 1
    return first + rank


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators on the CPU and on ``device``, by device type."""
    states = {"cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_rng_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore ``states`` of ``rng_states``; generators that are not in it stay unchanged."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
