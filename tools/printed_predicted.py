"""Blocks of the documentation that show how right forecasts are."""

from __future__ import annotations

from typing import Any

from allpull.units import show_time

Stored = dict[str, Any]

PROTOCOLS = {
    "earlier": "reference points of earlier rounds",
    "other_years": "entries of other years",
}
OTHERS = {
    "with_its_own_epochs": "its own epochs, known afterwards",
    "epochs_of_nearest_batch": "epochs of the nearest batch",
    "epochs_of_smallest_batch": "epochs of the smallest batch",
}


def time_to_accuracy(result: Stored) -> list[str]:
    """Errors of the time to accuracy, by what the epochs were fitted on and by round, and the worst entry."""
    lines = ["| epochs from | round | entries | mean error | 90 % of errors below | largest | within the interval |"]
    lines.append("|---" * 7 + "|")
    for name, about in PROTOCOLS.items():
        table = result[name]
        lines.append(_row(about, "all", table["time"]))
        lines += [_row(about, f"v{round_}", row) for round_, row in table["by_round"].items()]
    lines += ["", "| epochs from | entries | mean error | median | 90 % of errors below |", "|---" * 5 + "|"]
    table = result["earlier"]
    lines.append(_short("E(B), as above", table["time"]))
    lines += [_short(about, table[name]) for name, about in OTHERS.items()]
    worst = table["worst"][0]
    refused = sorted({f"{one['batch']:,.0f}" for one in table["refused"]})
    about_worst = (
        f"The worst entry is {worst['entry']} (v{worst['round']}): {show_time(worst['time_s'])}, forecast"
        f" {show_time(worst['predicted_s'])}. At a global batch of {worst['batch']:,.0f} it took {worst['epochs']:.0f}"
        f" epochs, where {worst['expected_epochs']:.1f} were expected."
    )
    bounded = (
        f"Bounded instead of predicted: {len(table['refused'])} entries, with global batches of"
        f" {' and '.join(refused)}, less than half of the smallest reference point."
    )
    return [*lines, "", about_worst, "", bounded]


def _row(about: str, round_: str, row: Stored) -> str:
    errors = (f"{row[name]} %" for name in ("mean", "p90", "largest", "within_percent"))
    return f"| {' | '.join([about, round_, str(row['entries']), *errors])} |"


def _short(about: str, row: Stored) -> str:
    errors = (f"{row[name]} %" for name in ("mean", "median", "p90"))
    return f"| {' | '.join([about, str(row['entries']), *errors])} |"
