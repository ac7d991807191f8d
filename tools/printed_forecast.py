"""Block of the documentation that shows how forecasts of `allpull predict` fared on rehearsed clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allpull.units import percent, show_time

Stored = dict[str, Any]
TARGETS = {
    "mean_error": "mean error at most {}",
    "largest_error": "largest at most {}",
    "coverage": "the 90 % interval holds the truth in at least {} of the cases",
    "half_width": "half its width at most {} on average",
}


def predict_rehearsed(measured: Stored) -> list[str]:
    """Groups, rivals, each case, and what was set before, as lines of Markdown."""
    return [
        _verdict(measured),
        "",
        *_groups(measured),
        "",
        *_rivals(measured),
        "",
        "Each case; the error is the forecast over the truth, less one:",
        "",
        *_cases(measured["rows"]),
        "",
        _rehearsals(measured["rehearsals"]),
    ]


def _verdict(measured: Stored) -> str:
    """Which targets were reached."""
    lines = []
    for name, text in TARGETS.items():
        value, reached = measured["summary"][name], measured["met"][name]
        shown = "none" if value is None else percent(value, 1)
        lines.append(f"{text.format(percent(measured['targets'][name]))}: {shown}{'' if reached else ', **missed**'}")
    return f"Set before anything was rehearsed: {'; '.join(lines)}."


def _groups(measured: Stored) -> Iterator[str]:
    yield "| foreseen | cases | refused | mean error | largest | within the interval | half its width |"
    yield "|---|---|---|---|---|---|---|"
    busy = [("beyond these: limited by this machine's CPUs", measured["limited_by_cpus"])]
    recorded = [("every case, every step as recorded", measured["as_recorded"])]
    named = [*measured["groups"].items(), ("all", measured["summary"]), *busy, *recorded]
    for name, group in named:
        shares = [_share(group[key]) for key in ("mean_error", "largest_error", "coverage", "half_width")]
        yield f"| {name} | {group['cases']} | {group['refused']} | {' | '.join(shares)} |"


def _rivals(measured: Stored) -> Iterator[str]:
    yield "| steps of the virtual accelerator | cases | mean error | largest |"
    yield "|---|---|---|---|"
    for name, rival in measured["rivals"].items():
        yield f"| {name} | {rival['cases']} | {_share(rival['mean_error'])} | {_share(rival['largest_error'])} |"
    extrap = measured["extrap"]
    if extrap is not None:
        sizes, beyond = (", ".join(map(str, extrap[key])) for key in ("measured_ranks", "ranks"))
        errors, own = (", ".join(_signed(share) for share in extrap[key]) for key in ("errors", "allpull"))
        yield ""
        yield (
            f"Extra-P needs five sizes. From the measured {sizes} ranks it picks `{extrap['model']}`, which errs by "
            f"{errors} at {beyond} ranks; allpull, from 1 and 2, by {own}."
        )


def _cases(rows: list[Stored]) -> Iterator[str]:
    yield "| case | of | measured | forecast | 90 % interval | error | held |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        if row["forecast_s"] is None:
            yield f"| {row['case']} | {row['quantity']} | {show_time(row['truth_s'])} | refused | – | – | no |"
            continue
        value, low, high = (show_time(row[f"{name}_s"]) for name in ("forecast", "low", "high"))
        yield (
            f"| {row['case']} | {row['quantity']} | {show_time(row['truth_s'])} | {value} | {low} to {high} "
            f"| {_signed(row['error'])} | {'yes' if row['held'] else 'no'} |"
        )


def _rehearsals(rehearsed: Stored) -> str:
    commits = ", ".join(f"`{commit[:10]}`" for commit in rehearsed["rehearsed_at"])
    apart = [percent(rehearsed["spread_between_passes"][name], 1) for name in ("median", "largest")]
    busy = percent(rehearsed["largest_cpu_share"])
    return (
        f"{rehearsed['runs']} rehearsals, made at commit {commits}. Passes of one case lie {apart[0]} apart in the "
        f"median, at most {apart[1]}. Ranks and links kept the CPUs busy for at most {busy} of the time."
    )


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value, 1)


def _signed(share: float | None) -> str:
    return "refused" if share is None else f"{share * 100:+.1f} %"
