"""Predict every published series from its smallest sizes, with widths that other owners' series taught.

    python benchmarks/predict_published.py [--output FILE]

Beside the prediction stands that of a line from the largest calibrated size.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from allpull.predict.table.growth import fitted
from allpull.predict.table.series import PUBLISHED
from allpull.predict.table.series_errors import groups, held_back, learned
from allpull.published.tables import Point, read_tables
from stored import keep

DISTANCES = ((1, 2), (2, 4), (4, 16), (16, 512))


def main() -> None:
    """Predict, print, and keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    published = read_tables([PUBLISHED]).points
    keep(options.output, {str(count): table(judged(published, count)) for count in (2, 3)})


def judged(published: list[Point], calibrate: int) -> list[dict[str, Any]]:
    """Every size beyond the calibration of its series, and whether its interval holds it."""
    records = held_back(published, calibrate)
    cases = []
    for key, sizes in groups(published).items():
        if len(sizes) <= calibrate:
            continue
        growth = fitted(sizes[:calibrate])
        widths = learned([one for one in records if one.owner != sizes[0].owner])
        for size in sizes[calibrate:]:
            low, high = widths.interval(growth, size.ranks)
            true = size.rate.middle
            cases.append({
                "series": key[0],
                "ranks": size.ranks,
                "distance": size.ranks / growth.largest,
                "error": growth.rate(size.ranks) / true - 1,
                "linear": size.ranks / sizes[calibrate - 1].per_sample / true - 1,
                "within": low <= true <= high,
                "half_width": (high - low) / 2 / growth.rate(size.ranks),
            })  # fmt: skip
    return cases


def table(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """By distance from the calibration: cases, coverage, widths and errors; and the worst case."""
    at = {(low, high): [case for case in cases if low < case["distance"] <= high] for low, high in DISTANCES}
    rows = [_row(some, low, high) for (low, high), some in at.items() if some]
    worst = max(cases, key=lambda case: abs(math.log1p(case["error"])))
    series = len({case["series"] for case in cases})
    missed = sorted({case["series"] for case in cases if not case["within"]})
    return {"series": series, "all": _row(cases, 1, 512), "by_distance": rows, "worst": worst, "missed_in": missed}


def _row(cases: list[dict[str, Any]], low: float, high: float) -> dict[str, Any]:
    errors = [abs(case["error"]) for case in cases]
    return {
        "distance": [low, high],
        "cases": len(cases),
        "within_percent": round(100 * statistics.mean(case["within"] for case in cases), 1),
        "half_width_percent": round(100 * statistics.median(case["half_width"] for case in cases), 1),
        "mean_error_percent": round(100 * statistics.mean(errors), 1),
        "median_error_percent": round(100 * statistics.median(errors), 1),
        "linear_mean_error_percent": round(100 * statistics.mean(abs(case["linear"]) for case in cases), 1),
    }


if __name__ == "__main__":
    main()
