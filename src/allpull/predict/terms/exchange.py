"""Exposed exchange: what the buckets of gradients cost after the last of them is ready.

Bucket b is ready ``lead_b`` before a rank has its last gradient, and takes A_b. Buckets follow each other on one lane
(``replay.window``), so the last one ends, after that moment, at::

    F = max_b (Σ_(c≥b) A_c − lead_b),    exposed = max(F, 0)

which is F_b = max(ready_b, F_(b−1)) + A_b written out (Li et al. 2020, VLDB 13(12), §4.2). Communication slows the
compute that it overlaps, by up to 15 % (Zhang et al. 2020, arXiv:2006.10103).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.predict.terms.algorithms import Cost

Floats = NDArray[np.float64]
SLOWDOWN = 0.15  # the most that communication slows the compute that it overlaps (arXiv:2006.10103)


def bucket_seconds(
    cost: Cost, size_bytes: Floats, *, latency_s: tuple[Floats, Floats], s_per_byte: tuple[Floats, Floats]
) -> Floats:
    """Seconds of each bucket, (draws, buckets).

    Args:
        cost: of the algorithm.
        size_bytes: of the buckets, (buckets,).
        latency_s: of a hop within a host and between hosts, (draws,) each.
        s_per_byte: of a link within a host and between hosts, (draws,) each.
    """
    fixed_s = cost.hops_local * latency_s[0] + cost.hops_network * latency_s[1]
    rate = cost.bytes_local * s_per_byte[0] + cost.bytes_network * s_per_byte[1]
    seconds: Floats = fixed_s[:, None] + rate[:, None] * size_bytes
    return seconds


def exposed(seconds: Floats, lead_s: Floats) -> Floats:
    """Exposed exchange per reduction, (draws,).

    Args:
        seconds: of each bucket, (draws, buckets).
        lead_s: how long before the last gradient each bucket was ready, in some steps, (draws, steps, buckets).
    """
    after = np.cumsum(seconds[:, ::-1], axis=1)[:, ::-1]
    ended: Floats = np.maximum((after[:, None, :] - lead_s).max(axis=2), 0.0).mean(axis=1)
    return ended


def overlapped(seconds: Floats, lead_s: Floats) -> Floats:
    """How long communication is in flight while gradients are still computed, per reduction, (draws,)."""
    in_flight: Floats = np.maximum(seconds.sum(axis=1) - exposed(seconds, lead_s), 0.0)
    return in_flight
