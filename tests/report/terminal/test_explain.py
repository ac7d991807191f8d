"""An explanation on terminals of any width: nothing is lost, nothing hostile gets through, nothing is markup."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.explain.made import STEPS, facts, hosts_of, job
from tests.replay.windows import late

from allpull.explain.efficiency_tree import tree
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.findings import findings
from allpull.report.terminal.explain import explained, rule, rules
from allpull.schema.base import tag
from allpull.schema.explained import ExplainedWindow, ExplainResult, PhaseTimes
from allpull.schema.results import Interval

HOSTILE = "[bold]no[/bold]\x1b[31m\x07de"


def result(**changes) -> ExplainResult:
    one = job(8, backward=late(8, STEPS, rank=3, by_s=0.02))
    of = facts(one, Machine(hosts=(*hosts_of(3), HOSTILE, *hosts_of(8)[4:]), gpus={"node1": ("V100",)}))
    grown = tree(one)
    answer = findings(of)
    made = ExplainResult(
        schema=tag("explain"),
        run="made",
        reference=None,
        ranks=8,
        hosts=4,
        window=ExplainedWindow(steps=STEPS, seconds=one.measured_s, first_step=100, last_step=139, level="bucket"),
        efficiency=grown.efficiency,
        gains=grown.gains,
        simulation_error=0.0,
        clock_error_s=None,
        phases=PhaseTimes(mean={}, per_rank={}),
        findings=list(answer.findings),
        healthy=None,
        notes=[f"a note on {HOSTILE}"],
    )
    return made.model_copy(update=changes)


def printed(shown, width: int) -> str:
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_every_finding_its_price_and_its_remedy_are_there(width: int) -> None:
    words = " ".join(printed(explained(result()), width).replace("•", " ").split())
    for said in ("Rank 3", "computes 20", "It costs", "What to do:", "[slow-rank]", "[mixed-precision]", "Advice:"):
        assert said.replace(" ", "") in words.replace(" ", ""), said


def test_names_are_neither_markup_nor_commands_to_the_terminal() -> None:
    text = printed(explained(result()), 120)
    assert "[bold]no[/bold]de" in text
    assert "\x07" not in text
    assert "\x1b" not in text


def test_the_factors_of_a_wide_terminal_say_what_is_lost() -> None:
    assert "the same rank is late each step" in printed(explained(result()), 120)
    assert "the same rank is late each step" not in printed(explained(result()), 70)


def test_a_healthy_run_is_one_sentence_and_a_run_without_a_window_says_why() -> None:
    healthy = printed(explained(result(findings=[], healthy="Nothing stands out.", notes=[])), 80)
    assert healthy.rstrip().endswith("Nothing stands out.")
    window = ExplainedWindow(steps=0, seconds=0.0, first_step=None, last_step=None, level="step")
    empty = result(findings=[], efficiency=None, window=window, notes=["nothing can be explained: no step"])
    text = printed(explained(empty), 80)
    assert "nothing to explain" in text
    assert "no step" in text


def test_many_notes_are_counted() -> None:
    text = printed(explained(result(notes=[f"note {number}" for number in range(30)])), 80)
    assert "18 more in --json" in text


def test_the_manual_is_printed_as_text() -> None:
    assert "[x]" in printed(rules({"[x]": "a rule."}), 60)
    page = printed(rule("slow", "A rule.", {"What it is": "one\ntwo\n\nthree"}), 60)
    assert page.split() == ["slow", "A", "rule.", "What", "it", "is", "one", "two", "three"]


def test_a_finding_says_when_it_is_wrong_once_for_each_rule() -> None:
    slow = job(8, backward=late(8, STEPS, rank=3, by_s=0.02) + late(8, STEPS, rank=6, by_s=0.03))
    answer = findings(facts(slow, Machine(hosts=hosts_of(8)))).findings
    assert {one.rule for one in answer} == {"slow-rank"}
    text = " ".join(printed(explained(result(findings=list(answer))), 100).split())
    assert text.count("When it is wrong: Where the data of one rank are harder") == 1


def test_an_upper_bound_is_called_one() -> None:
    (one,) = [each for each in result().findings if each.rule == "slow-rank"]
    bound = one.model_copy(update={"gain": Interval(value=1.35, low=1.0, high=1.35)})
    assert "training is at most 1.35× as fast." in printed(explained(result(findings=[bound])), 200)
    surely = one.model_copy(update={"gain": Interval(value=1.35, low=1.12, high=1.35)})
    assert "at most 1.35× as fast (surely 1.12×)." in printed(explained(result(findings=[surely])), 200)
    told = one.model_copy(update={"gain": Interval(value=1.35, low=1.31, high=1.38)})
    text = printed(explained(result(findings=[told])), 200)
    assert "training is 1.35× as fast (1.31× to 1.38×)." in text
    assert "at most" not in text


def test_a_loss_that_another_takes_the_place_of_is_no_gain() -> None:
    text = printed(explained(result(gains={"serialisation": 0.99, "transfer": 1.2})), 120)
    assert "0.99×" not in text
    assert "none" in text
    assert "1.20×" in text


def test_of_some_ranks_of_a_job_only_what_they_were_blocked_is_told() -> None:
    one = result()
    assert one.efficiency is not None
    unknown = dict.fromkeys(("transfer", "serialisation", "load_balance"))
    some = one.efficiency.model_copy(update={**unknown, "collectives": Interval(value=0.7, low=0.6, high=0.8)})
    text = printed(explained(result(efficiency=some)), 120)
    assert "  collectives" in text
    assert "load balance" not in text
