"""An explanation on terminals of any width: nothing is lost, nothing hostile gets through, nothing is markup."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.explain.made import STEPS, facts, hosts_of, job
from tests.replay.windows import late

from allpull.explain.findings import findings
from allpull.explain.machine import Machine
from allpull.explain.tree import tree
from allpull.report.explained import explained, rule, rules
from allpull.schema.base import tag
from allpull.schema.explained import ExplainResult, PhaseTimes, WindowSeen

HOSTILE = "[bold]no[/bold]\x1b[31m\x07de"


def result(**changes) -> ExplainResult:
    one = job(8, backward=late(8, STEPS, rank=3, by_s=0.02))
    of = facts(one, Machine(hosts=(*hosts_of(3), HOSTILE, *hosts_of(8)[4:]), accelerators=("V100",)))
    grown = tree(one)
    answer = findings(of)
    made = ExplainResult(
        schema=tag("explain"),
        run="made",
        reference=None,
        ranks=8,
        hosts=4,
        window=WindowSeen(steps=STEPS, seconds=one.measured_s, first_step=100, last_step=139, level="bucket"),
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
    window = WindowSeen(steps=0, seconds=0.0, first_step=None, last_step=None, level="step")
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
