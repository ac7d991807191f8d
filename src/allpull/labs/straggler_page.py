"""The page of the lab of the straggler: a timeline, a guess, what `explain` says, and what mending it brought."""

from __future__ import annotations

from dataclasses import replace

from allpull.report.html.block import Block, Cards, Guess, Notice, Part, Points, Question, Table, Text, Tile, Tiles
from allpull.report.page import Page
from allpull.report.sections.findings import card
from allpull.report.sections.timeline import chart
from allpull.report.wording import ranged
from allpull.schema.labs import StragglerCase, StragglerFault, StragglerResult
from allpull.units import counted, show_time

CAUSES: dict[StragglerFault, str] = {
    "slow-rank": "one rank computes longer",
    "slow-loader": "one rank waits for its data",
    "thin-link": "the link of one host is slower",
}
SIGNS: dict[StragglerFault, str] = {
    "slow-rank": "its backward is longer, and the others wait for it in the exchange of gradients",
    "slow-loader": "its input is longer, and the others wait for it in the exchange of gradients",
    "thin-link": "all ranks compute alike, and all are in transfer for long",
}
UNSEEN = "the timeline cannot show it"


def page(result: StragglerResult) -> Page:
    """The page that shows ``result``; subject and facts give nothing away."""
    where = "virtual hosts with shaped links" if result.on_hosts else "processes of one machine"
    letters = "abcdefgh"[: len(result.cases)]
    cases = {letter: _case(letter, one, result) for letter, one in zip(letters, result.cases, strict=True)}
    return Page(
        kicker="Lab: the straggler",
        subject=f"{result.ranks} ranks, {counted(len(result.cases), 'fault')}: who makes the others wait?",
        facts=f"{where} · {result.steps} steps of each run · seed {result.seed}",
        blocks={"start": _start(result), **cases, "exercises": _exercises()},
        made="from recorded runs",
    )


def _start(result: StragglerResult) -> Block:
    parts: list[Part] = [
        Points(
            items=[
                "Look at the timeline: three ordinary steps of all ranks on one clock.",
                "Guess the cause and the rank, then press Reveal. Arrow keys choose, Tab moves on, Enter reveals.",
                "Read what allpull explain says of this very run, and what it promises.",
                "See the run without the fault: did the promise come true?",
            ]
        )
    ]
    if result.left_out:
        parts.append(Notice(title="Without the thin link", items=[result.left_out]))
    lead = (
        "In data-parallel training all ranks meet in every step, so one fault slows all of them, and each case has one "
        "fault. A loss curve does not show it, and neither does the step time of any single rank: all are the same."
    )
    return Block(title="Find the straggler", lead=lead, parts=parts)


def _case(letter: str, case: StragglerCase, result: StragglerResult) -> Block:
    longest_s = max(part.end_s for part in case.faulty.timeline)
    parts: list[Part] = [
        chart(case.faulty.timeline, slug=f"timeline-{letter}"),
        _guess(letter, case, result),
        Text(text=_verdict(case)),
        Cards(cards=[card(one) for one in case.findings]),
        _tiles(case),
        replace(chart(case.mended.timeline, slug=f"mended-{letter}", least_s=longest_s), title="Without the fault"),
        Text(
            text="Another real run, on the scale of the first. Runs: " + f"{case.faulty.run}, then {case.mended.run}.",
            quiet=True,
        ),
    ]
    lead = f"A step takes {show_time(case.faulty.step_s)}. Where does the time go, and whose fault is it?"
    return Block(title=f"Case {letter.upper()}", lead=lead, parts=parts)


def _guess(letter: str, case: StragglerCase, result: StragglerResult) -> Guess:
    offered = list(CAUSES) if result.on_hosts else [fault for fault in CAUSES if fault != "thin-link"]
    right = CAUSES[case.fault]
    causes = [
        f"Right: {right}; {SIGNS[case.fault]}."
        if fault == case.fault
        else f"No: {right}; {SIGNS[case.fault]}. If {CAUSES[fault]}: {SIGNS[fault]}."
        for fault in offered
    ]
    ranks = [f"rank {rank}" for rank in range(result.ranks)]
    if case.fault == "thin-link":
        at_fault = f"the link of {case.host}, on which rank {case.rank} runs"
        unseen = f"It is {at_fault}; a ring holds up all ranks alike, so it takes the rates of their connections."
        answers = [f"Right, but by luck. {unseen}" if r == case.rank else f"No. {unseen}" for r in range(result.ranks)]
        answers.append(f"Right. {unseen}")
    else:
        seen = f"rank {case.rank} is the one that never waits"
        answers = [f"Right: {seen}." if r == case.rank else f"No: {seen}." for r in range(result.ranks)]
        answers.append(f"It can: {seen}.")
    return Guess(
        slug=f"guess-{letter}",
        questions=[
            Question(label="What is the cause?", options=[CAUSES[fault] for fault in offered], answers=causes),
            Question(label="Which rank is at fault?", options=[*ranks, UNSEEN], answers=answers),
        ],
    )


def _verdict(case: StragglerCase) -> str:
    if case.named:
        return "What allpull explain says of this run, the most costly first:"
    others = "It says this" if case.findings else "It reports nothing that stands out"
    return (
        f"allpull explain does not name the fault in this run: rank {case.rank}, where {CAUSES[case.fault]}. That "
        f"happens where this machine was too busy for the rehearsal. {others}:"
    )


def _tiles(case: StragglerCase) -> Tiles:
    return Tiles(
        tiles=[
            Tile(value=show_time(case.faulty.step_s), label="a step with the fault", detail="mean"),
            Tile(value=show_time(case.mended.step_s), label="a step without it", detail="mean, another real run"),
            Tile(
                value="–" if case.promised is None else f"{case.promised.value:.2f}×",
                label="promised by explain",
                detail="it did not name the fault" if case.promised is None else ranged(case.promised),
            ),
            Tile(value=f"{case.came.value:.2f}×", label="measured", detail=ranged(case.came)),
        ]
    )


def _exercises() -> Block:
    table = Table(
        caption="What each cause looks like",
        columns=["Cause", "On the timeline", "To confirm it"],
        rows=[
            ["slow rank", "long backward or forward; it never waits", "clocks and heat, other programs, its cores"],
            ["slow loader", "long input; it never waits", "the disk of its host, its number of workers"],
            ["thin link", "all wait alike; buckets are long", "rates of TCP connections, ethtool, error counters"],
        ],
        text_columns=3,
    )
    items = [
        "The rank at fault has the shortest wait. Why is that so, and when does it not hold?",
        "Why is the speed-up smaller than the delay, where the network is busy?",
        "Two ranks are slow by the same time. What does mending one of them bring?",
        "Why does a ring not show whose link is thin, and what would?",
    ]
    return Block(title="Exercises", lead="For all cases.", parts=[table, Points(items=items)])
