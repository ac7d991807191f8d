"""Predict the time to accuracy of MLPerf's ResNet-50 entries from their throughput and epochs of other years.

    python benchmarks/predict_time_to_accuracy.py [--output FILE]

An entry's time is E(B) · samples ÷ its measured images/s · (1 + overhead). Its own epochs and its time to train are
held back, with those of every entry of its round or later ones (``earlier``), or of its year (``other_years``):

- ``earlier``: E(B) is fitted on MLPerf's reference points as published with the rounds before its own;
- ``other_years``: E(B) is fitted on the epochs of entries of other years.

The overhead (evaluation, and what the logged images/s leave out) is the median of the entries of rounds before its own,
or of other years. Entries of the open division, whose recipe is their own, are left out; of those without images/s in
their logs only the epochs are predicted. Round v0.6 had other rules, under which no other year trained: it is in no fit
of epochs, and is not predicted.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.predict.terms.convergence import epochs_to_target
from allpull.published.convergence import MLPERF_LARS, editions, reference_points
from allpull.published.tables import read_tables
from stored import keep

PUBLISHED = Path(__file__).resolve().parent.parent / "src" / "allpull" / "published" / "scaling.csv"
YEARS = {"0.6": 2019, "0.7": 2020, "1.0": 2021, "1.1": 2021, "2.0": 2022, "2.1": 2022, "3.0": 2023, "3.1": 2023}
OTHER_RULES = ("0.6",)
DRAWS, SEED = 2000, 18
MEAN_ERROR, P90_ERROR, COVERAGE = 0.05, 0.07, 0.85  # set before the first run


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One result: what is known beforehand (round, batch, images/s or None), and what is held back."""

    name: str
    round: str
    batch: float
    images_per_s: float | None
    epochs: float
    time_s: float

    @property
    def year(self) -> int:
        """When its round was published."""
        return YEARS[self.round]

    @property
    def overhead(self) -> float:
        """Logarithm of its time ÷ the time in which it trains its own epochs at its rate."""
        assert self.images_per_s is not None
        return math.log(self.time_s * self.images_per_s / (self.epochs * MLPERF_LARS.samples))


def main() -> None:
    """Predict, print, and keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    known = entries()
    keep(
        options.output,
        {
            "targets_percent": {"mean": 100 * MEAN_ERROR, "p90": 100 * P90_ERROR, "coverage": 100 * COVERAGE},
            "earlier": table(predicted_from_earlier(known)),
            "other_years": table(predicted_from_other_years(known)),
        },
    )


def entries() -> list[Entry]:
    """The closed division's, oldest round first."""
    known = []
    for point in read_tables([PUBLISHED]).points:
        source, epochs, batch = point.setup[0], point.epochs, point.note("global_batch")
        _, marker, rest = source.partition("training_results_v")
        if not marker or "note" in point.notes or epochs is None or batch is None or point.seconds is None:
            continue
        round_, _, path = rest.partition(" ")
        known.append(
            Entry(
                name=path.removesuffix("/resnet"),
                round=round_,
                batch=batch.middle,
                images_per_s=None if point.rate is None else point.rate.middle,
                epochs=epochs,
                time_s=point.seconds.middle,
            )
        )
    return sorted(known, key=lambda one: (one.round, one.name))


def predicted_from_earlier(known: Sequence[Entry]) -> list[dict[str, Any]]:
    """Each entry from reference points, and overheads, of rounds before its own."""
    cases = []
    for entry in known:
        before = [edition for edition in editions() if edition.rpartition(".")[0] < entry.round]
        if not before:
            continue
        points = [(float(one.global_batch), one.mean_epochs) for one in reference_points(before[-1])]
        cases.append(case(entry, points, [one for one in known if one.round < entry.round]))
    return cases


def predicted_from_other_years(known: Sequence[Entry]) -> list[dict[str, Any]]:
    """Each entry from the epochs, and overheads, of entries of other years."""
    cases = []
    for entry in known:
        if entry.round in OTHER_RULES:
            continue
        others = [one for one in known if one.year != entry.year]
        cases.append(case(entry, [(one.batch, one.epochs) for one in others if one.round not in OTHER_RULES], others))
    return cases


def case(entry: Entry, points: Sequence[tuple[float, float]], others: Sequence[Entry]) -> dict[str, Any]:
    """The prediction of one entry; errors are those of the prediction, relative to what was published."""
    rng = np.random.default_rng(SEED)
    epochs = epochs_to_target(points, entry.batch, rng, DRAWS)
    nearest = min(points, key=lambda point: abs(math.log(point[0] / entry.batch)))[1]
    answer: dict[str, Any] = {"entry": entry.name, "round": entry.round, "batch": entry.batch, "epochs": entry.epochs}
    if epochs.draws is None:
        return {**answer, "refused": epochs.reason, "bounds": [epochs.low, epochs.high]}
    expected = float(np.median(epochs.draws))
    low, high = (float(bound) for bound in np.quantile(epochs.draws, (0.05, 0.95)))
    answer |= {
        "expected_epochs": round(expected, 2),
        "epochs_error": expected / entry.epochs - 1,
        "epochs_within": low <= entry.epochs <= high,
    }
    overheads = [one.overhead for one in others if one.images_per_s is not None]
    if entry.images_per_s is None or not overheads:
        return answer
    pass_s = MLPERF_LARS.samples / entry.images_per_s
    draws = epochs.draws * pass_s * np.exp(rng.choice(overheads, DRAWS))
    low, value, high = (float(bound) for bound in np.quantile(draws, (0.05, 0.5, 0.95)))
    middle = math.exp(statistics.median(overheads))
    return {
        **answer,
        "time_s": entry.time_s,
        "predicted_s": round(value, 1),
        "error": value / entry.time_s - 1,
        "within": low <= entry.time_s <= high,
        "half_width": (high - low) / 2 / value,
        "own_epochs_error": entry.epochs * pass_s * middle / entry.time_s - 1,
        "nearest_error": nearest * pass_s * middle / entry.time_s - 1,
        "constant_error": min(points)[1] * pass_s * middle / entry.time_s - 1,
    }


def table(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All, by round, the worst, and what was not predicted."""
    timed = [one for one in cases if "error" in one]
    counted = [one for one in cases if "epochs_error" in one]
    rounds = sorted({one["round"] for one in timed})
    errors = _errors(timed, "error")
    return {
        "time": {
            **errors,
            "within_percent": _share(timed, "within"),
            "half_width_percent": round(100 * statistics.median(one["half_width"] for one in timed), 1),
            "met": {
                "mean": errors["mean"] <= 100 * MEAN_ERROR,
                "p90": errors["p90"] <= 100 * P90_ERROR,
                "coverage": _share(timed, "within") >= 100 * COVERAGE,
            },
        },
        "by_round": {
            name: {**_errors(some, "error"), "within_percent": _share(some, "within")}
            for name in rounds
            if (some := [one for one in timed if one["round"] == name])
        },
        "epochs_alone": {**_errors(counted, "epochs_error"), "within_percent": _share(counted, "epochs_within")},
        "with_its_own_epochs": _errors(timed, "own_epochs_error"),
        "epochs_of_nearest_batch": _errors(timed, "nearest_error"),
        "epochs_of_smallest_batch": _errors(timed, "constant_error"),
        "worst": sorted(timed, key=lambda one: -abs(math.log1p(one["error"])))[:5],
        "refused": [one for one in cases if "refused" in one],
    }


def _errors(cases: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    errors = np.array([one[name] for one in cases])
    return {
        "entries": len(cases),
        "mean": round(100 * float(np.abs(errors).mean()), 1),
        "median": round(100 * float(np.median(np.abs(errors))), 1),
        "p90": round(100 * float(np.quantile(np.abs(errors), 0.9)), 1),
        "largest": round(100 * float(np.abs(errors).max()), 1),
        "bias": round(100 * float(np.median(errors)), 1),
    }


def _share(cases: Sequence[dict[str, Any]], name: str) -> float:
    return round(100.0 * sum(bool(one[name]) for one in cases) / len(cases), 1)


if __name__ == "__main__":
    main()
