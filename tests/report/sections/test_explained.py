"""Sections that draw an explanation: they agree with its numbers, and say nothing where there is none."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from explained_samples import FACTORS, RANKS, against_one_rank, explained, finding
from hypothesis import given
from hypothesis import strategies as st
from report_samples import HOSTILE, one, three

from allpull.report.html.block import Cards, Chart, Notice, Points, Table, Text, Tiles
from allpull.report.html.waterfall import Step, bars
from allpull.report.page import render
from allpull.report.sections import blocks
from allpull.report.sections.losses import FACTORS as DRAWN
from allpull.units import show_time

pytestmark = pytest.mark.slow

NEW = ("findings", "losses", "timeline", "lateness")


def with_explanation(**changes):
    return three().model_copy(update={"explained": [explained(**changes)]})


def parts(block, kind):
    return [part for part in block.parts if isinstance(part, kind)]


def test_nothing_is_drawn_of_what_was_not_explained():
    assert not set(NEW) & set(blocks(three()))
    assert set(NEW) <= set(blocks(with_explanation()))


def drawn(block):
    """The bars of the waterfall, as its chart has them."""
    (chart,) = parts(block, Chart)
    return max(chart.spec["datasets"].values(), key=len)


def signed(bar):
    return float(bar["number"].replace("−", "-").rstrip("×"))


def test_the_waterfall_ends_at_what_is_measured_and_its_bars_meet():
    bars = drawn(blocks(with_explanation())["losses"])
    assert (bars[0]["from"], bars[0]["to"]) == (0, RANKS)
    whole = 1.0
    for value in FACTORS.values():
        whole *= value
    assert bars[-1]["to"] == pytest.approx(RANKS * whole)
    tops = [bar["to"] for bar in bars[1:]]
    bottoms = [bars[0]["to"], *(bar["from"] for bar in bars[1:-1])]
    assert tops == pytest.approx(bottoms)


def test_against_a_reference_the_waterfall_ends_at_the_speed_up_of_the_first_screen():
    made = against_one_rank(speedup=1.4)
    bars = drawn(blocks(made)["losses"])
    assert bars[0]["number"] == "4.00×"
    assert bars[1]["what"] == "computational scaling"
    assert bars[1]["from"] == pytest.approx(2.0)
    assert bars[-2]["what"] == "counted otherwise"
    assert bars[-1]["number"] == "1.40×"
    assert sum(signed(bar) for bar in bars[:-1]) == pytest.approx(1.4, abs=0.005 * len(bars))
    assert "1.40×" in [tile.value for part in parts(blocks(made)["summary"], Tiles) for tile in part.tiles]


def test_the_two_efficiencies_of_a_page_agree_or_are_explained():
    made = against_one_rank(speedup=1.4)
    whole = made.explained[0].result.efficiency.global_.value
    words = [part.text for part in parts(blocks(made)["losses"], Text)]
    assert f"Global efficiency is {100 * whole:.1f} %, the scaling efficiency at the top 35.0 %, and both" in words[0]
    assert "with ranks that compute all the time" in words[0]
    agreeing = [part.text for part in parts(blocks(against_one_rank(speedup=4 * whole))["losses"], Text)]
    assert agreeing[0].endswith("they agree.")
    assert "counted otherwise" not in {
        bar["what"] for bar in drawn(blocks(against_one_rank(speedup=4 * whole))["losses"])
    }


def test_global_efficiency_is_defined_where_it_stands():
    (table,) = parts(blocks(against_one_rank())["losses"], Table)
    (row,) = (row for row in table.rows if row[0] == "Global efficiency")
    assert row[1].startswith("parallel efficiency × computational scaling: samples/s, over those of as many ranks")


def test_the_largest_loss_may_be_that_each_rank_computes_slower():
    lead = blocks(against_one_rank())["losses"].lead
    assert lead.endswith("Most is lost because a sample takes more compute time than at the reference.")
    lead = blocks(against_one_rank(speedup=2.9, computational=0.99))["losses"].lead
    assert lead.endswith("Most is lost because of checkpoints, and evaluation by a few ranks.")


def test_a_loss_that_is_a_noun_follows_because_of():
    made = against_one_rank(speedup=2.9, computational=0.99, input=0.5)
    assert blocks(made)["losses"].lead.endswith("Most is lost because of waiting for data.")


def test_ranks_that_compute_faster_than_the_reference_raise_the_waterfall_above_the_ideal():
    (chart,) = parts(blocks(against_one_rank(speedup=3.9, computational=1.5))["losses"], Chart)
    bars = max(chart.spec["datasets"].values(), key=len)
    assert (bars[1]["kind"], bars[1]["to"]) == ("gained", pytest.approx(6.0))
    (bar_layer,) = (layer for layer in chart.spec["layer"] if layer["mark"]["type"] == "bar")
    assert bar_layer["encoding"]["x"]["scale"]["domain"] == [0, pytest.approx(6.0)]


def test_where_a_sample_is_other_work_nothing_is_set_against_the_reference():
    block = blocks(against_one_rank(speedup=None))["losses"]
    assert "computational scaling" not in {bar["what"] for bar in drawn(block)}
    assert not any(row[0] == "Global efficiency" for row in parts(block, Table)[0].rows)


def test_a_factor_that_was_not_measured_is_no_perfect_one():
    made = with_explanation()
    result = made.explained[0].result
    tree = result.efficiency.model_copy(update=dict.fromkeys(("transfer", "serialisation", "load_balance", "parallel")))
    detail = made.explained[0].model_copy(update={"result": result.model_copy(update={"efficiency": tree})})
    found = blocks(made.model_copy(update={"explained": [detail]}))
    assert not parts(found["losses"], Chart)
    (table,) = parts(found["losses"], Table)
    assert [row[2] for row in table.rows].count("–") == 4
    assert len(table.tones) == 3
    assert "not known" in found["losses"].lead
    assert render(made.model_copy(update={"explained": [detail]}))


@given(
    st.floats(1, 1e5),
    st.lists(st.floats(1e-6, 3), max_size=9),
    st.none() | st.floats(1e-3, 1e5),
)
def test_bars_always_close(ideal, factors, measured):
    steps = [Step(name=str(place), plain="", factor=factor) for place, factor in enumerate(factors)]
    found = bars(ideal, steps, measured, unexplained="rest")
    assert ideal + sum(bar.change for bar in found[1:-1]) == pytest.approx(found[-1].end, rel=1e-6, abs=1e-6 * ideal)
    if measured is not None:
        assert found[-1].end == pytest.approx(measured, abs=2e-9 * ideal)
    else:
        assert found[-1].end == pytest.approx(ideal * math.prod(factors), rel=1e-6, abs=1e-6 * ideal)
    for before, after in pairwise(found[:-1]):
        assert after.begin == before.end


def test_a_gain_that_is_none_is_not_shown_as_one():
    gains = {"serialisation": 0.99, "input": 1.004, "transfer": 1.1}
    (table,) = parts(blocks(with_explanation(gains=gains))["losses"], Table)
    shown = {row[0].strip(): row[4] for row in table.rows}
    assert (shown["Serialisation"], shown["Input"], shown["Transfer"]) == ("none", "none", "1.10×")


# --- the first screen -------------------------------------------------------------------------------------------


def test_what_to_change_comes_right_after_the_first_screen_and_once():
    made = blocks(with_explanation())
    assert list(made)[:2] == ["summary", "findings"]
    page = render(with_explanation())
    assert page.count("Rank 0 evaluates alone while") == 1


def test_the_first_screen_of_one_run_gives_its_efficiency():
    made = one()
    result = explained(run=made.show.runs[0].run, ranks=1)
    block = blocks(made.model_copy(update={"explained": [result]}))["summary"]
    useful = f"{100 * result.result.efficiency.parallel.value:.1f} %"
    assert block.lead.endswith(f"and {useful} of its time is useful work.")
    assert parts(block, Tiles)[0].tiles[0].value == useful


def test_what_is_missing_is_no_headline():
    made = one()
    gaps = [f"gap {number}" for number in range(9)]
    run = made.show.runs[0].model_copy(update={"gaps": gaps, "throughput": None})
    words = [f"{run.name} on 1 rank has no throughput."]
    update = {"show": made.show.model_copy(update={"runs": [run]}), "words": words}
    update["details"] = [made.details[0].model_copy(update={"metrics": run})]
    found = blocks(made.model_copy(update=update))
    assert found["summary"].lead == f"digits on 1 rank: a step of {show_time(run.step_s.median)}."
    assert "digits on 1 rank has no throughput." in parts(found["runs"], Points)[0].items
    (notice,) = parts(found["runs"], Notice)
    assert notice.items == [
        "1 rank: gap 0",
        "1 rank: gap 1",
        "1 rank: gap 2",
        "and 6 more gaps, listed at the end of this page",
    ]
    assert parts(found["method"], Notice)[0].items == [f"1 rank: {gap}" for gap in gaps]
    explained_too = [explained(run=run.run, ranks=1)]
    lead = blocks(made.model_copy(update={**update, "explained": explained_too}))["summary"].lead
    assert lead.startswith("digits on 1 rank: a step of")
    assert lead.endswith("of its time is useful work.")


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
    assert block.lead == "2 findings, the most costly first."
    assert dict(cards.cards[0].facts)["gain"] == "1.10× (1.08× to 1.12×)"
    assert "gain" not in dict(cards.cards[2].facts)
    assert cards.cards[0].evidence[0] == ("waiting that rank 3 caused", "31 ms", "steps 5 to 60 of all ranks")


def test_an_upper_bound_is_called_one():
    """Every number that may be less says so: the cost, the share and the speed-up."""
    thin = finding("network-bound", "The network is slow", 0.06, gain={"value": 2.44, "low": 1.31, "high": 2.44})
    (cards,) = parts(blocks(with_explanation(findings=[thin]))["findings"], Cards)
    facts = dict(cards.cards[0].facts)
    assert facts["gain"] == "at most 2.44× (surely 1.31×)"
    assert facts["costs per step"] == "at most 60 ms (25.0 %)"


def test_a_healthy_run_is_said_to_be_healthy():
    block = blocks(with_explanation(findings=[], healthy="8 ranks lose 2 % and nothing stands out."))["findings"]
    assert block.lead == "8 ranks lose 2 % and nothing stands out."
    assert "the data cannot tell" in blocks(with_explanation(findings=[], healthy=None))["findings"].lead


def test_a_replay_that_misses_says_so():
    first = blocks(with_explanation(simulation_error=0.12))["summary"].parts[0]
    assert first.items == ["Indicative only: the replay misses the measured time by 12.0 %."]


def test_an_interval_is_shown_in_as_many_digits_as_it_needs():
    narrow = finding("slow-rank", "one", 0.01, gain={"value": 1.2695, "low": 1.2681, "high": 1.2704})
    (cards,) = parts(blocks(with_explanation(findings=[narrow]))["findings"], Cards)
    assert dict(cards.cards[0].facts)["gain"] == "1.270× (1.268× to 1.270×)"
    bound = finding("cpu-contention", "one", 0.01, gain={"value": 2.44, "low": 1.0, "high": 2.44})
    (cards,) = parts(blocks(with_explanation(findings=[bound]))["findings"], Cards)
    assert dict(cards.cards[0].facts)["gain"] == "at most 2.44×"


def test_the_timeline_does_not_claim_more_than_was_recorded():
    block = blocks(with_explanation())["timeline"]
    assert "as recorded" not in block.lead
    assert "their own order was not recorded" in parts(block, Chart)[0].caption


def test_the_latest_rank_is_named():
    assert "Rank 3 is the latest" in blocks(with_explanation())["lateness"].lead


def test_a_map_and_a_timeline_of_some_ranks_say_so():
    made = explained()
    fewer = made.model_copy(update={"result": made.result.model_copy(update={"ranks": 1024})})
    found = blocks(three().model_copy(update={"explained": [fewer]}))
    assert " of 1,024 ranks, the latest among them" in parts(found["lateness"], Chart)[0].caption
    assert " of 1,024 ranks, the latest among them" in found["timeline"].lead
    assert "among them" not in blocks(with_explanation())["timeline"].lead


def test_commands_and_edits_of_a_remedy_can_be_copied():
    lines = [{"place": "program", "line": "DataLoader(num_workers=2)"}, {"place": "shell", "line": HOSTILE}]
    report = with_explanation(findings=[finding("input-bound", "one", 0.01, lines=lines), finding("old", "two", 0.01)])
    (cards,) = parts(blocks(report)["findings"], Cards)
    assert [one.label for one in cards.cards[0].commands] == ["In the program", "In a shell"]
    assert not cards.cards[1].commands  # stored by an older version
    page = render(report)
    assert "<pre><code>DataLoader(num_workers=2)</code></pre>" in page
    assert "<script>alert" not in page


def test_hostile_words_stay_words():
    page = render(with_explanation(findings=[finding("slow-rank", HOSTILE, 0.01, remedy=HOSTILE, hosts=[HOSTILE])]))
    assert "<script>alert" not in page
    assert "\x1b" not in page
