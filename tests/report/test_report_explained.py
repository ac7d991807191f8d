"""Sections that draw an explanation: they agree with its numbers, and say nothing where there is none."""

from __future__ import annotations

import pytest
from explained_samples import FACTORS, RANKS, explained, finding
from report_samples import HOSTILE, three

from allpull.report.block import Cards, Chart, Table
from allpull.report.html import render
from allpull.report.sections import blocks
from allpull.report.sections.losses import FACTORS as DRAWN

NEW = ("findings", "losses", "timeline", "lateness")


def with_explanation(**changes):
    return three().model_copy(update={"explained": [explained(**changes)]})


def parts(block, kind):
    return [part for part in block.parts if isinstance(part, kind)]


def test_nothing_is_drawn_of_what_was_not_explained():
    assert not set(NEW) & set(blocks(three()))
    assert set(NEW) <= set(blocks(with_explanation()))


def test_the_waterfall_ends_at_what_is_measured_and_its_bars_meet():
    (chart,) = parts(blocks(with_explanation())["losses"], Chart)
    bars = max(chart.spec["datasets"].values(), key=len)
    assert (bars[0]["begin"], bars[0]["end"]) == (0, RANKS)
    whole = 1.0
    for value in FACTORS.values():
        whole *= value
    assert bars[-1]["end"] == pytest.approx(RANKS * whole)
    tops = [bar["end"] for bar in bars[1:]]
    bottoms = [bars[0]["end"], *(bar["begin"] for bar in bars[1:-1])]
    assert tops == pytest.approx(bottoms)


def test_the_tree_is_coloured_as_pop_does():
    (table,) = parts(blocks(with_explanation())["losses"], Table)
    tones = {row[0].strip(): table.tones[number, 2] for number, row in enumerate(table.rows)}
    assert tones["Transfer"] == "good"
    assert tones["Sequential sections"] == "fair"
    assert tones["Parallel efficiency"] == "poor"
    assert len(DRAWN) == len(FACTORS)


def test_findings_are_cards_and_advice_has_no_price():
    block = blocks(with_explanation())["findings"]
    (cards,) = parts(block, Cards)
    assert [card.tag.split(" ")[0] for card in cards.cards] == ["sequential-evaluation", "slow-rank", "mixed-precision"]
    assert "Rank 0 evaluates alone" in block.lead
    assert dict(cards.cards[0].facts)["gain"] == "1.10× (1.08× to 1.12×)"
    assert "gain" not in dict(cards.cards[2].facts)
    assert cards.cards[0].evidence[0] == ("waiting that rank 3 caused", "31 ms", "steps 5 to 60 of all ranks")


def test_a_healthy_run_is_said_to_be_healthy():
    block = blocks(with_explanation(findings=[], healthy="8 ranks lose 2 % and nothing stands out."))["findings"]
    assert block.lead == "8 ranks lose 2 % and nothing stands out."


def test_a_replay_that_misses_says_so():
    page = render(with_explanation(simulation_error=0.12))
    assert "Indicative only" in page


def test_the_latest_rank_is_named():
    assert "Rank 3 is the latest" in blocks(with_explanation())["lateness"].lead


def test_hostile_words_stay_words():
    page = render(with_explanation(findings=[finding("slow-rank", HOSTILE, 0.01, remedy=HOSTILE, hosts=[HOSTILE])]))
    assert "<script>alert" not in page
    assert "\x1b" not in page
