"""What to change first, and what it gains: one card per finding, the most costly first."""

from __future__ import annotations

from allpull.report.html.block import Block, Card, Cards, Part, Points, Text
from allpull.report.html.copied import copied
from allpull.report.html.largest_run import explained
from allpull.report.wording import percent, ranged, rate
from allpull.schema.explained import INDICATIVE, Evidence, ExplainResult, Finding
from allpull.schema.reported import ScalingReport
from allpull.units import show_bytes, show_count, show_time

TITLE = "What to change first"
MOST_CARDS = 12


def block(report: ScalingReport) -> Block | None:
    """The findings on the run with the most ranks; None if no run could be explained."""
    detail = explained(report)
    if detail is None:
        return None
    result = detail.result
    priced = [one for one in result.findings if not one.advice]
    parts: list[Part] = []
    if result.findings:
        parts.append(Cards(cards=[card(one) for one in result.findings[:MOST_CARDS]]))
    if len(result.findings) > MOST_CARDS:
        parts.append(Text(text=f"{len(result.findings) - MOST_CARDS} more in `allpull explain`.", quiet=True))
    if result.notes:
        parts.append(Points(items=result.notes))
    return Block(title=TITLE if priced else "What to change", lead=_lead(result, priced), parts=parts)


def _lead(result: ExplainResult, priced: list[Finding]) -> str:
    if not priced:
        return result.healthy or "No finding has a price; the notes below say what the data cannot tell."
    return "One finding has a price." if len(priced) == 1 else f"{len(priced)} findings, the most costly first."


def indicative(result: ExplainResult) -> str:
    """That the prices of ``result`` are not exact; empty if they are."""
    if result.simulation_error is None or result.simulation_error <= INDICATIVE:
        return ""
    return f"Indicative only: the replay misses the measured time by {percent(result.simulation_error)}."


def card(finding: Finding) -> Card:
    """One finding as a card."""
    facts = [("gain", ranged(finding.gain))]
    if finding.loss_s_per_step is not None:
        most = "at most " if finding.gain is not None and finding.gain.is_at_most else ""
        cost = f"{most}{show_time(finding.loss_s_per_step)} ({percent(finding.loss_share)})"
        facts.append(("costs per step", cost))
    facts.append(("ranks", _listed(finding.ranks, "all")))
    if finding.hosts:
        facts.append(("hosts", _listed(finding.hosts, "all")))
    return Card(
        title=finding.title,
        tag=f"{finding.rule} · advice: nothing in this run prices it" if finding.advice else finding.rule,
        facts=facts[1:] if finding.advice else facts,
        remedy=finding.remedy,
        evidence=[(one.what, _value(one), one.source) for one in finding.evidence],
        commands=copied(finding.lines or ()),
        caveat=f"When this may be wrong: {finding.wrong_when}",
    )


def _listed(items: list[int] | list[str], everyone: str) -> str:
    shown = [str(item) for item in items[:8]]
    return ", ".join(shown) + (f" and {len(items) - 8} more" if len(items) > 8 else "") or everyone


def _value(one: Evidence) -> str:
    """A number with its unit as people write it.

    >>> _value(Evidence(what="", value=0.04, unit="s", source=""))
    '40 ms'
    >>> _value(Evidence(what="", value=0.25, unit="share", source=""))
    '25.0 %'
    """
    show = {"s": show_time, "share": percent, "bytes/s": rate, "bytes": show_bytes}.get(one.unit)
    return show(one.value) if show else f"{show_count(one.value)} {'' if one.unit == 'count' else one.unit}".strip()
