"""Blocks of the documentation that show how `allpull explain` did where the truth is known."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from allpull.units import percent, show_time

Stored = dict[str, Any]
SIZE = "size"  # as `judge` of benchmarks/planted_faults.py says that a price is too far from the cost


def confusion(measured: Stored) -> Iterator[str]:
    """Planted against found, a row for each that was planted; only the first finding of each run counts."""
    table: dict[str, dict[str, int]] = measured["confusion"]
    found = sorted({name for row in table.values() for name in row}, key=lambda name: (name == "nothing", name))
    yield f"| planted | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for planted in sorted(table, key=lambda name: (name == "healthy", name)):
        cells = [str(table[planted].get(name, "")) for name in found]
        yield f"| {planted} | {' | '.join(cells)} |"


def sizes(measured: Stored) -> Iterator[str]:
    """What single faults cost and what was said they cost, a row for each kind."""
    by_rule: dict[str, list[tuple[float, float]]] = {}
    for row in measured["rows"]:
        if _has_size(row) and row["cost_s"]:
            by_rule.setdefault(row["planted"][0], []).append((row["cost_s"], row["promised_s"]))
    yield "| fault | runs | cost a step | said ÷ cost: median | least to most |"
    yield "|---|---|---|---|---|"
    for rule, pairs in sorted(by_rule.items()):
        costs = [cost for cost, _ in pairs]
        ratios = sorted(promised / cost for cost, promised in pairs)
        span = f"{show_time(min(costs))} to {show_time(max(costs))}"
        middle = statistics.median(ratios)
        yield f"| {rule} | {len(pairs)} | {span} | {middle:.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |"


def planted_faults(measured: Stored) -> list[str]:
    """Matrix, sizes and sums, as lines of Markdown."""
    wrong = [f"`{row['case']}`: {', '.join(row['wrong'])}" for row in measured["rows"] if row["wrong"]]
    sums = f"{_alarms(measured)}; {_right(measured['rows'])}"
    errors = ["", "What was not:", "", *(f"- {one}" for one in wrong)] if wrong else []
    made_at = ", ".join(f"`{commit[:10]}` ({count})" for commit, count in measured.get("rehearsed_at", {}).items())
    rehearsed = ["", f"Rehearsed at commit {made_at}, and explained at the one below."] if made_at else []
    return [*confusion(measured), "", sums, *errors, "", *sizes(measured), *rehearsed]


def _alarms(measured: Stored) -> str:
    count = measured["false_alarms"]
    return f"{measured['healthy']} healthy runs gave {count} false alarm{'s' * (count != 1)}"


def _right(rows: list[Stored]) -> str:
    """How many of the faulty runs were named rightly, and of how many of those the size was judged, too."""
    faulty = [row for row in rows if row["planted"]]
    named = [row for row in faulty if set(row["wrong"]) <= {SIZE}]
    sized = [row for row in named if _has_size(row)]
    close = sum(SIZE not in row["wrong"] for row in sized)
    return (
        f"of {len(faulty)} with one fault or more, {len(named)} were right in rule, ranks and hosts; the size was "
        f"judged for {len(sized)} of them, single faults with a measured cost: "
        f"{'all' if close == len(sized) else close} within 25 % or three noise floors."
    )


def _has_size(row: Stored) -> bool:
    """Whether what was said could be held against a measured cost: of single faults, where it was measured."""
    return len(row["planted"]) == 1 and row["cost_s"] is not None and row["promised_s"] is not None


def claix_like(measured: Stored) -> list[str]:
    """The study's findings beside ours, as lines of Markdown."""
    tree, study = measured["efficiency"], measured["study"]
    rows = ["| | study, manually | `allpull explain` of the rehearsal |", "|---|---|---|"]
    balance = tree["load_balance"]
    apart = tree["parallel"]["median"] / balance["median"]
    rows.append(f"| parallel efficiency | {study['parallel']:.2f} | {_spread(tree['parallel'])} |")
    rows.append(f"| load balance | {study['load_balance']:.2f} | {_spread(balance)} |")
    rows.append(f"| parallel efficiency ÷ load balance | {study['communication']:.2f} | {apart:.2f} |")
    factors = ("sequential", "transfer", "input", "serialisation", "orchestration")
    rows += [f"| of which {name} | not distinguished | {_spread(tree[name])} |" for name in factors]
    said = [
        f"{number}. **{one['rule']}** ({percent(one['loss_share'])} of a step, {one['gain']:.2f} × as fast without): "
        f"{one['title']}"
        for number, one in enumerate((one for one in measured["findings"] if one["gain"] is not None), start=1)
    ]
    return [
        *rows,
        "",
        f"Recommended by the study: {'; '.join(study['recommended'])}. Found in the rehearsal:",
        "",
        *said,
    ]


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
