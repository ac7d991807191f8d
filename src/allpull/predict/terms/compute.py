"""Compute against batch: a fixed part and one per sample, f(b) = f0 + f1 · b.

Three batches test the line; two determine it; one gives the step at that batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compute:
    """``fixed_s`` and ``s_per_sample`` (draws,); with a single batch all of it is per sample."""

    fixed_s: Floats
    s_per_sample: Floats
    batches: tuple[float, ...]

    def seconds(self, batch: float) -> Floats:
        """Of one step of a rank, (draws,)."""
        return self.fixed_s + self.s_per_sample * batch

    def refusal(self, batch: float) -> str | None:
        """Why ``batch`` cannot be forecast; None: it can."""
        if any(abs(batch - one) <= 1e-6 * one for one in self.batches):
            return None
        if len(self.batches) == 1:
            return (
                f"every run has {self.batches[0]:g} samples per rank and step: how compute grows with them is unknown"
            )
        least, most = min(self.batches), max(self.batches)
        if not least / 2 <= batch <= most * 2:
            return f"{batch:g} samples per rank are too far from the {least:g} to {most:g} that were measured"
        return None


def fitted(work_s: dict[float, Floats]) -> Compute:
    """The line through ``work_s``: samples per rank → seconds of a step, (draws,); relative residuals count.

    Raises:
        ValueError: more samples take less time.
    """
    batches = np.array(sorted(work_s))
    times = np.array([work_s[one] for one in batches.tolist()])
    if batches.size == 1:
        return Compute(
            fixed_s=np.zeros_like(times[0]), s_per_sample=times[0] / batches[0], batches=tuple(batches.tolist())
        )
    weights = 1 / times**2
    total, first = weights.sum(axis=0), (weights * batches[:, None]).sum(axis=0)
    second = (weights * batches[:, None] ** 2).sum(axis=0)
    sums, products = (weights * times).sum(axis=0), (weights * times * batches[:, None]).sum(axis=0)
    slope = (total * products - first * sums) / (total * second - first**2)
    if np.median(slope) <= 0:
        raise ValueError("a step of more samples took less time: the runs differ in more than their batch")
    fixed = np.maximum((sums - slope * first) / total, 0.0)
    slope = np.where(fixed > 0, np.maximum(slope, 0.0), products / second)
    return Compute(fixed_s=fixed, s_per_sample=slope, batches=tuple(batches.tolist()))
