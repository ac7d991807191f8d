"""What the measurements of ``trainer_peers.py`` say: rates, and ratios of what was measured in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainer_data import ONE_BATCH, PICTURES
from trainer_shared import Rate

OURS, OBSERVED, EXAMPLE = "allpull", "allpull, observed", "example"
PEAKS = {
    "NVIDIA H100 80GB HBM3": 989.4e12,  # SXM
    "NVIDIA H100 NVL": 835.5e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989.4e12,  # SXM
    "NVIDIA H200 NVL": 835.5e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
}
"""Name of a GPU as torch gives it → bf16 operations a second of its tensor cores, dense, by NVIDIA's data sheets."""


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


def evened(found: Found) -> Found:
    """As many rounds as all ways have in all cases: the last one may have been broken off."""
    rounds = min(len(rates) for ways in found.values() for rates in ways.values())
    return {case: {way: rates[:rounds] for way, rates in ways.items()} for case, ways in found.items()}


def peak_of(device: str) -> float | None:
    """The peak of a GPU by its whole name; None: it is not in the table, as no slice of a GPU (MIG) is.

    >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    (989400000000000.0, None)
    """
    return PEAKS.get(device)


def summary(found: Found, flop_per_image: float, products: Products, peak: float | None = None) -> list[dict[str, Any]]:
    """A row for each case and way: images/s, CPU time, ratios to the example's loop, shares of peaks, losses.

    ``peak`` is that of the device in bf16; None: not known.
    """
    rows: list[dict[str, Any]] = []
    for case, ways in sorted(found.items()):
        for way, rates in sorted(ways.items()):
            images_per_s = [rate.images_per_s for rate in rates]
            cpu_s = [rate.cpu_s_per_image for rate in rates if rate.cpu_s_per_image is not None]
            flop_per_s = statistics.median(images_per_s) * flop_per_image
            base = ways.get(EXAMPLE)  # None: it could not be had
            known = peak if case.precision == "bf16" else None
            rows.append(
                {
                    **asdict(case),
                    "way": way,
                    "images_per_s": _spread(images_per_s, 1),
                    "times_example": _spread(_ratios(rates, base), 3) if base else None,
                    "cpu_ms_per_image": round(statistics.median(cpu_s) * 1e3, 2) if cpu_s else None,
                    "times_example_cpu": _spread(_cpu_ratios(rates, base), 3) if cpu_s and base else None,
                    "share_of_products": round(flop_per_s / products[case.precision, case.threads], 4),
                    "share_of_peak": None if known is None else round(flop_per_s / known, 4),
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


def over_fastest_peer(found: Found) -> list[dict[str, Any]]:
    """Rates of allpull's ways over the best of all others, of the same round."""
    rows: list[dict[str, Any]] = []
    for case, ways in sorted(found.items()):
        peers = {way: rates for way, rates in ways.items() if not way.startswith(OURS)}
        if not peers:
            continue
        best = [max(together, key=_speed) for together in zip(*peers.values(), strict=True)]
        fastest = max(peers, key=lambda way: statistics.median(map(_speed, peers[way])))
        rows += [
            {**asdict(case), "way": way, "fastest": fastest, "ratio": _spread(_ratios(rates, best), 3)}
            for way, rates in sorted(ways.items())
            if way not in peers
        ]
    return rows


def observed_over_unobserved(found: Found) -> list[dict[str, Any]]:
    """What observation costs: rates of the same round."""
    return [
        {**asdict(case), "ratio": _spread(_ratios(ways[OBSERVED], ways[OURS]), 3)}
        for case, ways in sorted(found.items())
        if OBSERVED in ways and OURS in ways
    ]


def _speed(rate: Rate) -> float:
    return rate.images_per_s


def _ratios(rates: Sequence[Rate], base: Sequence[Rate]) -> list[float]:
    return [one.images_per_s / other.images_per_s for one, other in zip(rates, base, strict=True)]


def _cpu_ratios(rates: Sequence[Rate], base: Sequence[Rate]) -> list[float]:
    """As rates: twice as fast is half the CPU time."""
    pairs = [(one.cpu_s_per_image, other.cpu_s_per_image) for one, other in zip(rates, base, strict=True)]
    return [theirs / own for own, theirs in pairs if own is not None and theirs is not None]


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    spread = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, digits) for name, value in spread.items()}
