"""The POP table as audits print it: on a terminal, on the page, and which runs of many it shows."""

from __future__ import annotations

import io
from typing import Any

from report_samples import metrics, one, report
from rich.console import Console

from allpull.report.pop_layout import columns, sentences
from allpull.report.sections.pop import block
from allpull.report.terminal.pop import pop_table
from allpull.report.terminal.show import page
from allpull.schema.reported import ScalingReport


def pop(load_balance: float, serialisation: float, transfer: float, **changes: Any) -> dict[str, Any]:
    communication = serialisation * transfer
    parallel = load_balance * communication
    outside = {"parallel": parallel, "load_balance": load_balance, "communication": communication, "added": {}}
    return {
        "parallel": parallel,
        "load_balance": load_balance,
        "communication": communication,
        "serialisation": serialisation,
        "transfer": transfer,
        "useful_s_per_sample": 0.001,
        "outside_communication": outside,
        "first_step": 10,
        "steps": 100,
        "seconds": 9.0,
        **changes,
    }


def claix() -> ScalingReport:
    """Sizes 4, 48 and 64 with CLAIX's load balance and communication efficiency."""
    scaled = {"computational": 1.04, "global": 0.34}
    return report(
        [
            metrics(4, pop=pop(0.99, 0.95, 0.96, computational=1.0, **{"global": 0.9})),
            metrics(48, pop=pop(0.99, 0.30, 0.87, **scaled)),
            metrics(64, pop=pop(0.99, 0.37, 0.89, **scaled)),
        ]
    )


def printed(shown: Any, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_line_per_efficiency_and_a_column_per_size() -> None:
    lines = printed(pop_table(claix().show))
    assert lines[0].split() == ["POP", "efficiencies", "4", "ranks", "48", "ranks", "64", "ranks"]
    cells = {line.split("  0.")[0].strip(): line.split()[-3:] for line in lines[2:9]}
    assert cells["Load balance"] == ["0.99", "0.99", "0.99"]
    assert cells["Communication efficiency"] == ["0.91", "0.26", "0.33"]
    assert cells["Parallel efficiency"] == ["0.90", "0.26", "0.33"]
    assert [line.split()[0] for line in lines[2:9]] == [
        *("Global", "Parallel", "Load", "Communication", "Serialisation", "Transfer", "Computational"),
    ]
    assert "against 4 ranks" in lines[9]


def test_a_narrow_terminal_gets_several_tables() -> None:
    assert sum(line.startswith("POP efficiencies") for line in printed(pop_table(claix().show), width=45)) > 1


def test_the_page_has_the_same_numbers() -> None:
    made = block(claix())
    assert made is not None
    table = made.parts[0]
    assert table.columns == ("Efficiency", "4 ranks", "48 ranks", "64 ranks")  # type: ignore[union-attr]
    rows = {row[0].strip(): tuple(row[1:]) for row in table.rows}  # type: ignore[union-attr]
    assert rows["Load balance"] == ("0.99", "0.99", "0.99")
    assert rows["Communication efficiency"] == ("0.91", "0.26", "0.33")
    assert rows["Steps"] == ("100", "100", "100")
    assert "serialisation: 0.37" in made.lead


def test_of_many_runs_each_size_has_the_one_in_the_middle() -> None:
    runs = [
        metrics(ranks, run=f"run{ranks}-{repeat}", pop=pop(0.9 + 0.01 * repeat, 1.0, 1.0))
        for ranks in (2, 4, 8)
        for repeat in range(3)
    ]
    shown = columns(report(runs).show.runs)
    assert [(one.label, round(one.pop.load_balance, 2)) for one in shown] == [
        *(("2 ranks", 0.91), ("4 ranks", 0.91), ("8 ranks", 0.91))
    ]


def test_runs_of_one_size_whose_names_do_not_fit_are_one_column_that_says_so() -> None:
    runs = [
        metrics(2, run=f"20260101T00000{number}Z_made_n2_a", pop=pop(0.9 + 0.01 * number, 1.0, 1.0))
        for number in range(5)
    ]
    narrow, wide = (printed(pop_table(report(runs).show), width) for width in (80, 200))
    assert sum("efficiencies" in line for line in narrow) == 1
    assert any("median" in line for line in narrow)
    assert next(line for line in narrow if "Load" in line).split()[-1] == "0.92"
    assert len(next(line for line in wide if "Load" in line).split()) == 2 + len(runs)
    assert not any("median" in line for line in wide)


def test_one_run_is_a_sentence_and_the_other_count_is_named_where_it_differs() -> None:
    outside = {
        "parallel": 0.5,
        "load_balance": 0.5,
        "communication": 1.0,
        "added": {"evaluation": 0.167, "other": 0.001},
    }
    made = report([metrics(4, pop=pop(1.0, 0.333, 1.0, outside_communication=outside))]).show.runs[0].pop
    assert made is not None
    first, second = sentences(made)
    assert "0.33 = load balance 1.00 × communication 0.33 (serialisation 0.33 × transfer 1.00)" in first
    assert "evaluation 16.7 % of the time" in second
    assert "other" not in second
    assert "0.50 = load balance 0.50 × communication 1.00" in second


def test_without_efficiencies_there_is_nothing() -> None:
    assert block(one()) is None
    assert pop_table(one().show) is None
    assert not [line for line in printed(page(one())) if "POP" in line]
