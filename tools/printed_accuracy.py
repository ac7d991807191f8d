"""Blocks of the documentation that show how well the shipped recipes learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from allpull.units import percent

Stored = dict[str, Any]

SCORE_WORDS = {
    "accuracy": "top-1 accuracy",
    "f1_micro": "micro F1",
    "f1_macro": "macro F1",
    "mean_average_precision": "mean average precision",
}


def accuracy(studies: Iterable[Stored]) -> Iterator[str]:
    """Scores of each recipe by ranks, differences between numbers of ranks, and what scikit-learn says of the records.

    ``studies`` are results of ``benchmarks/accuracy.py``.
    """
    studies = list(studies)
    yield "| recipe | score | ranks | global batch | epochs | seeds | mean | standard deviation | least |"
    yield "|---" * 9 + "|"
    for study in studies:
        for name, found in study["scores"].items():
            for row in found["by_ranks"]:
                yield _scored(study, name, row)
    yield ""
    yield "| recipe | score | compared | difference of the means | 95 % interval | p |"
    yield "|---" * 6 + "|"
    for study in studies:
        for name, found in study["scores"].items():
            for row in found["compared"]:
                yield _compared(study["recipe"], name, row)
    yield ""
    for study in studies:
        yield _beside_the_records(study)


def means(study: Stored) -> str:
    """The mean accuracies of a recipe in a line, by ranks."""
    rows = study["scores"]["accuracy"]["by_ranks"]
    by_ranks = ", ".join(f"{percent(row['mean'], 1)} on {_ranks(row['ranks'])}" for row in rows)
    return f"{by_ranks} (means of {len(rows[0]['values'])} seeds)"


def _scored(study: Stored, name: str, row: dict[str, Any]) -> str:
    run = next(one for one in study["runs"] if one["ranks"] == row["ranks"])
    spread = "" if row["sd"] is None else percent(row["sd"], 2)
    cells = [f"`{study['recipe']}`", SCORE_WORDS[name], str(row["ranks"]), str(run["global_batch"]), str(run["epochs"])]
    cells += [str(len(row["values"])), percent(row["mean"], 2), spread, percent(min(row["values"]), 2)]
    return f"| {' | '.join(cells)} |"


def _compared(recipe: str, name: str, row: dict[str, Any]) -> str:
    low, high = row["interval"]
    chance = "" if row["p"] is None else f"{row['p']:.2f}"
    cells = [f"`{recipe}`", SCORE_WORDS[name], f"{_ranks(row['ranks'])} − {_ranks(row['base'])}"]
    cells += [_signed(row["difference"]), f"{_signed(low)} to {_signed(high)}", chance]
    return f"| {' | '.join(cells)} |"


def _beside_the_records(study: Stored) -> str:
    recipe, off = f"`{study['recipe']}`", study["largest_difference_to_recorded"]
    if off is None:
        return f"{recipe}: the trainer recorded no scores."
    if off == 0:
        return f"{recipe}: the trainer's records and scikit-learn's scores are the same in every bit."
    return f"{recipe}: the trainer's records are within {off:.1g} of scikit-learn's scores."


def _signed(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{percent(abs(share), 2)}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"
