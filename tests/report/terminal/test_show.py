"""The output of ``allpull show`` for several programs and for many runs."""

from __future__ import annotations

import io

from report_samples import metrics, one, report, three
from rich.console import Console

from allpull.report.terminal.show import page


def printed(made) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(page(made))
    return console.file.getvalue().splitlines()


def test_each_program_has_a_table_under_its_name_and_runs_without_a_step_are_listed():
    lines = printed(
        three().model_copy(
            update={
                "program": "big.py",
                "others": [one().model_copy(update={"program": "small.py"})],
                "without_steps": one().details,
            }
        )
    )
    assert lines.index("big.py") < lines.index("small.py")
    assert sum(line.startswith("run ") for line in lines) == 2
    assert lines[-1].startswith("• ")
    assert lines[-1].endswith(": completed")


def test_thirty_runs_are_thirty_lines_that_name_them():
    begun = [f"20260101T0000{second:02}Z" for second in range(30)]
    runs = [metrics(2, run=f"{moment}_made_n2_0", gaps=["no counters"]) for moment in begun]
    lines = printed(report(runs))
    for moment in begun:
        assert sum(moment in line for line in lines) == 1
    assert len(lines) < 40
