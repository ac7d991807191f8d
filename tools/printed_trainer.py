"""The blocks of the documentation that show how fast the trainer is: beside others, and by the order of its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allpull.units import percent

Stored = dict[str, Any]

COLUMNS = ("way", "images/s", "× example", "least to most", "× example by CPU time", "of matrix products", "last loss")
PEAK = " of the peak |"
NOT_THERE = {"median": 0.0}  # the example, on a GPU: without it there is nothing to divide by
DATA = {"pictures": "images", "one batch": "one batch, again and again"}


def trainer_peers(found: Stored) -> list[str]:
    """A table for each precision and kind of data, a row a way; then what data and observation cost."""
    lines = []
    for precision, threads, data in _cases(found):
        lines += [
            f"**{precision}, {DATA[data]}**{'' if threads == 1 else f', {threads} threads'}",
            "",
            f"| {' | '.join(COLUMNS)} |{PEAK if found.get('peak_flop_per_s') else ''}",
            f"{'|---' * len(COLUMNS)}|{'---|' if found.get('peak_flop_per_s') else ''}",
        ]
        rows = [
            row
            for row in found["rows"]
            if (row["precision"], row["threads"], row["data"]) == (precision, threads, data)
        ]
        rows.sort(
            key=lambda row: (row["times_example_cpu"] or row["times_example"] or NOT_THERE)["median"], reverse=True
        )
        lines += [_row(row) + (_peak(row) if found.get("peak_flop_per_s") else "") for row in rows]
        lines.append("")
    lines += [*_real(found), "", *_fastest(found), _about(found)]
    lines += [f"Not there: {peer} ({reason})." for peer, reason in found["absent"].items()]
    return lines


def short(found: Stored) -> str:
    """In bf16 on images: the trainer, and the example with channels last, over the unmodified example; a line."""
    rows = {row["way"]: row for row in found["rows"] if (row["precision"], row["data"]) == ("bf16", "pictures")}
    times = {way: rows[way]["times_example"]["median"] for way in ("allpull", "example, channels last") if way in rows}
    return "; ".join(f"{way}: {value:.2f}" for way, value in times.items())


def _cases(found: Stored) -> Iterator[tuple[str, int, str]]:
    yield from dict.fromkeys((row["precision"], row["threads"], row["data"]) for row in found["rows"])


def _row(row: dict[str, Any]) -> str:
    times, by_cpu = row["times_example"], row["times_example_cpu"]
    cells = [
        row["way"],
        f"{row['images_per_s']['median']:.1f}",
        f"{times['median']:.2f}" if times else "",
        f"{times['low']:.2f} to {times['high']:.2f}" if times else "",
        "" if by_cpu is None else f"{by_cpu['median']:.2f}",
        percent(row["share_of_products"], 0),
        "" if row["last_loss"] is None else f"{row['last_loss']:.4f}",
    ]
    return f"| {' | '.join(cells)} |"


def _peak(row: dict[str, Any]) -> str:
    share = row["share_of_peak"]
    return f" {'' if share is None else percent(share, 1)} |"


def _fastest(found: Stored) -> list[str]:
    """What the ways of allpull are over the fastest of the others, where that was compared."""
    lines = []
    for row in found.get("over_fastest_peer", ()):
        ratio = row["ratio"]
        lines.append(
            f"| {row['way']} | {row['fastest']} | {row['precision']} | {DATA[row['data']]} | {ratio['median']:.2f} "
            f"| {ratio['low']:.2f} to {ratio['high']:.2f} |"
        )
    head = ["| way | fastest other | precision | data | median | least to most |", "|---|---|---|---|---|---|"]
    return [*head, *lines, ""] if lines else []


def _real(found: Stored) -> list[str]:
    lines = ["| images ÷ one batch | precision | median | least to most |", "|---|---|---|---|"]
    for row in found["real_over_synthetic"]:
        ratio = row["ratio"]
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        lines.append(f"| {row['way']} | {row['precision']} | {ratio['median']:.2f} | {spread} |")
    return lines


def _about(found: Stored) -> str:
    products = ", ".join(f"{rate / 1e9:,.0f} ({name})" for name, rate in found["products_flop_per_s"].items())
    versions = ", ".join(f"{package} {known}" for package, known in found["peers"].items() if known)
    return (
        f"`{found['model']}` on images of {found['size']} pixels, batches of {found['batch']}; {found['steps']} "
        f"steps timed after {found['warm_up']}, {found['rounds']} rounds; loaders with {found['workers']} "
        f"worker{'s' * (found['workers'] != 1)}. An image takes {found['flop_per_image'] / 1e9:.2f} GFLOP forward and "
        f"backward; products of matrices reached, in GFLOP/s: {products}. With {versions}."
    )


def memory_layout(found: Stored) -> list[str]:
    """How many times as fast channels last is, a row for each network and size."""
    lines = [
        "| network | pixels | batch | precision | channels last ÷ first | least to most |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        times = row["times_channels_first"]
        shown = f"{times['median']:.2f}" if times["median"] >= 1 else f"**{times['median']:.2f}**"
        spread = f"{times['low']:.2f} to {times['high']:.2f}"
        cells = [f"`{row['model']}`", str(row["size"]), str(row["batch"]), row["precision"], shown, spread]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Images per CPU second on one thread; {found['rounds']} pairs of steps of each."]
    return lines
