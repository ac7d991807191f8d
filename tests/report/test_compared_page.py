"""The page of a comparison begins with the decision and what became of promises; hostile text in it stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, metrics, report

from allpull.report.compared_page import blocks, write
from allpull.report.html.block import Chart, Commands, Table, Tiles
from allpull.schema.base import tag
from allpull.schema.compared import CompareResult
from allpull.schema.explained import RemedyLine
from allpull.schema.reported import ScalingReport


def compared(name: str = "digits", **changes: Any) -> tuple[CompareResult, ScalingReport]:
    """One run before, and one after that is a tenth faster, as was promised."""
    run = {"run": name, "name": name, "directory": "runs/a", "created_utc": "2026-03-12T10:15:00Z"}
    run |= {
        "status": "completed",
        "ranks": 2,
        "steps": 412,
        "throughput": {"value": 980.0, "low": 968.0, "high": 992.0},
    }
    tenth = {"value": 1.1, "low": 1.08, "high": 1.12}
    change = {"metric": "throughput", "unit": "samples/s", "scale": "ratio", "before": 980.0, "after": 1078.0}
    change |= {"change": tenth, "within_runs": tenth, "decision": "faster", "basis": "both sides"}
    promise = {"rule": "slow-rank", "title": name, "ranks": [1], "remedy": name, "promised": tenth, "came": tenth}
    promise |= {"loss_s_before": 0.01, "loss_s_after": 0.0, "state": "gone", "changed": [name], "kept": "kept"}
    fields = {"schema": tag("compare"), "before": [run], "after": [run], "confidence": 0.99, "metric": "throughput"}
    fields |= {"change": tenth, "decision": "faster", "smallest": 0.02, "metrics": [change], "gates": []}
    fields |= {"promised": [promise], "notes": [name]}
    new = {"rule": "slow-rank", "title": name, "ranks": [1], "gain": tenth, "loss_s": 0.0129, "remedy": name}
    fields["appeared"] = [new]
    fields["differences"] = [{"fact": name, "before": name, "after": name, "key": True}]
    runs = report([metrics(2, run="a", name=name), metrics(2, run="b", name=name)])
    return CompareResult.model_validate({**fields, **changes}), runs


def test_the_decision_and_the_promise_come_first() -> None:
    made = blocks(*compared())
    assert list(made)[:4] == ["answer", "promises", "appeared", "metrics"]
    assert made["answer"].lead == "Faster: throughput +10 % (+8 to +12 %), 99 % interval"
    tiles = next(part for part in made["answer"].parts if isinstance(part, Tiles)).tiles
    assert [(tile.label, tile.value) for tile in tiles][-1] == ("promise", "kept")
    assert made["promises"].lead == "The promise of explain: kept."
    (promises,) = [part for part in made["promises"].parts if isinstance(part, Table)]
    assert promises.rows[0][1:5] == ("kept", "1.10× (1.08× to 1.12×)", "1.10× (1.08× to 1.12×)", "gone")


def test_what_is_new_in_a_slower_training_comes_before_promises() -> None:
    assert list(blocks(*compared(decision="slower")))[:4] == ["answer", "appeared", "promises", "metrics"]


@pytest.mark.parametrize(("kept", "shown"), [("less", "not kept"), ("not decidable", "cannot tell")])
def test_a_promise_that_the_data_cannot_judge_is_neither_kept_nor_broken(kept: str, shown: str) -> None:
    result, runs = compared()
    result = result.model_copy(update={"promised": [result.promised[0].model_copy(update={"kept": kept})]})
    tiles = next(part for part in blocks(result, runs)["answer"].parts if isinstance(part, Tiles)).tiles
    assert tiles[-1].value == shown


def test_remedies_of_findings_that_are_still_there_can_be_copied() -> None:
    lines = [RemedyLine(place="starter", line="--set launch.bind=cores")]
    for state, copied in (("gone", 0), ("still there", 1)):
        result, runs = compared()
        promise = result.promised[0].model_copy(update={"lines": lines, "state": state})
        made = blocks(result.model_copy(update={"promised": [promise]}), runs)["promises"]
        assert [part.commands[0].line for part in made.parts if isinstance(part, Commands)] == [lines[0].line] * copied


def test_what_only_the_runs_after_lose_is_listed_with_its_price() -> None:
    (table,) = blocks(*compared())["appeared"].parts
    assert isinstance(table, Table)
    assert table.rows == [("digits", "12.9 ms", "1.10× (1.08× to 1.12×)", "digits")]
    assert "appeared" not in blocks(*compared(appeared=[]))


def test_charts_name_the_sides() -> None:
    made = blocks(*compared())
    (phases,) = [part for part in made["phases"].parts if isinstance(part, Chart)]
    names = {row["run"] for rows in phases.spec["datasets"].values() for row in rows}
    assert names == {"2 ranks · before", "2 ranks · after"}


def test_without_a_promise_and_with_unknown_intervals_there_is_still_an_answer() -> None:
    result, runs = compared(promised=[])
    unknown = result.metrics[0].change.model_copy(update={"low": None, "high": None})
    only = result.metrics[0].model_copy(update={"change": unknown, "decision": "not decidable"})
    made = blocks(result.model_copy(update={"metrics": [only], "decision": "not decidable"}), runs)
    assert "promises" not in made
    assert made["answer"].lead == "Not decidable: throughput +10.0 %, interval not known"
    assert not [part for part in made["metrics"].parts if isinstance(part, Chart)]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = write(*compared(HOSTILE), tmp_path / "compared.html").read_text(encoding="utf-8")
    body, _, _ = text.partition('<script type="module">')
    assert "<script>alert" not in body
    assert "<b>" not in body
    assert "\x1b" not in body
    assert "{{7*7}}" in body
