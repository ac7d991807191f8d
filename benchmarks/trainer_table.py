"""What the measurements of ``trainer_peers.py`` say: rates, and ratios of what was measured in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainer_data import ONE_BATCH, PICTURES
from trainer_loops import Rate

OURS, OBSERVED, EXAMPLE = "allpull", "allpull, observed", "example"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """What is compared with each other: all but the way of training."""

    precision: str
    threads: int
    data: str


Found = dict[Case, dict[str, list[Rate]]]
"""A rate of each round, of each way."""

Products = dict[tuple[str, int], float]
"""Precision and threads → floating-point operations a second in products of matrices, the best of all rounds."""


def summary(found: Found, flop_per_image: float, products: Products) -> list[dict[str, Any]]:
    """A row for each case and way: images/s, CPU time, ratios to the example's loop, share of the peak, losses."""
    rows: list[dict[str, Any]] = []
    for case, ways in sorted(found.items()):
        for way, rates in sorted(ways.items()):
            images_per_s = [rate.images_per_s for rate in rates]
            cpu_s = [rate.cpu_s_per_image for rate in rates if rate.cpu_s_per_image is not None]
            peak = products[case.precision, case.threads]
            rows.append(
                {
                    **asdict(case),
                    "way": way,
                    "images_per_s": _spread(images_per_s, 1),
                    "times_example": _spread(_ratios(rates, ways[EXAMPLE]), 3),
                    "cpu_ms_per_image": round(statistics.median(cpu_s) * 1e3, 2) if cpu_s else None,
                    "times_example_cpu": _spread(_cpu_ratios(rates, ways[EXAMPLE]), 3) if cpu_s else None,
                    "share_of_products": round(statistics.median(images_per_s) * flop_per_image / peak, 4),
                    "first_loss": rates[0].first_loss,
                    "last_loss": rates[0].last_loss,
                }
            )
    return rows


def real_over_synthetic(found: Found) -> list[dict[str, Any]]:
    """What data cost each way: rates on pictures over those on one batch, of the same round."""
    rows: list[dict[str, Any]] = []
    for case, ways in sorted(found.items()):
        free = found.get(replace(case, data=ONE_BATCH), {})
        for way in sorted(ways) if case.data == PICTURES else ():
            if way in free:
                ratio = _spread(_ratios(ways[way], free[way]), 3)
                rows.append({"precision": case.precision, "threads": case.threads, "way": way, "ratio": ratio})
    return rows


def observed_over_unobserved(found: Found) -> list[dict[str, Any]]:
    """What observation costs: rates of the same round."""
    return [
        {**asdict(case), "ratio": _spread(_ratios(ways[OBSERVED], ways[OURS]), 3)}
        for case, ways in sorted(found.items())
        if OBSERVED in ways
    ]


def _ratios(rates: Sequence[Rate], base: Sequence[Rate]) -> list[float]:
    return [one.images_per_s / other.images_per_s for one, other in zip(rates, base, strict=True)]


def _cpu_ratios(rates: Sequence[Rate], base: Sequence[Rate]) -> list[float]:
    """As rates: twice as fast is half the CPU time."""
    pairs = [(one.cpu_s_per_image, other.cpu_s_per_image) for one, other in zip(rates, base, strict=True)]
    return [theirs / own for own, theirs in pairs if own is not None and theirs is not None]


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    spread = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, digits) for name, value in spread.items()}
