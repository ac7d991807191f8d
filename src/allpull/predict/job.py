"""The job that is forecast: how many ranks, where, and what each of them does per step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A data-parallel training; numbers are plain, for uncertainty is in the parameters.

    ``batch``: samples of a rank per step, over all its backward passes. ``accumulation``: backward passes per step.
    ``bucket_bytes``: of the gradients, in the order in which they are reduced. ``workers``: of a rank's loader, None:
    not known. ``samples_per_epoch``: of all ranks, None: not known.
    """

    ranks: int
    hosts: int
    batch: float
    accumulation: int = 1
    bucket_bytes: tuple[int, ...] = ()
    workers: int | None = None
    samples_per_epoch: int | None = None

    @property
    def ranks_per_host(self) -> int:
        """Ranks of the fullest host."""
        return -(-self.ranks // self.hosts)

    @property
    def global_batch(self) -> float:
        """Samples of a step over all ranks."""
        return self.batch * self.ranks
