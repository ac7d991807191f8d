"""The output of ``allpull show`` for several programs and for many runs."""

from __future__ import annotations

import io

from report_samples import metrics, one, report, three
from rich.console import Console

from allpull.report import epoch_layout
from allpull.report.html.block import Tiles
from allpull.report.sections import blocks
from allpull.report.terminal import epochs
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


def same_size():
    """Two runs on as many ranks, the second of which is faster."""
    slow, fast = "20260101T000000Z_made_n2_0", "20260101T000100Z_made_n2_1"
    runs = [metrics(2, run=slow, reference=slow, efficiency=1.0), metrics(2, run=fast, reference=slow, efficiency=1.6)]
    return report(runs)


def test_of_as_many_ranks_nothing_is_called_efficiency():
    lines = printed(same_size())
    assert "speed-up" in lines[0]
    assert not any("effic" in line or "160" in line for line in lines)
    scaled = report([metrics(1, run="a", reference="a"), metrics(2, run="b", reference="a", efficiency=0.9)])
    assert "90.0 %" in "".join(printed(scaled))


def test_the_newest_of_as_many_ranks_leads_the_report():
    block = blocks(same_size())["summary"]
    assert block.lead.endswith("in the newest of 2 runs on 2 ranks.")
    labels = [tile.label for part in block.parts if isinstance(part, Tiles) for tile in part.tiles]
    assert labels[:2] == ["samples per second", "median step"]


def test_a_rate_of_steady_steps_that_leaves_a_loss_out_says_so():
    run = one().show.runs[0]
    for share, said in ((0.7, True), (0.95, False)):
        trained = share * run.throughput.value
        rates = {"training_samples_per_s": trained, "overall_samples_per_s": trained}
        words = " ".join(epoch_layout.sentences(run.model_copy(update=rates)))
        assert "samples/s while training" in words
        assert ("samples/s of steady steps leave out warm-up, the first step of each epoch" in words) is said
        shown = epoch_layout.whole_epochs(run.model_copy(update=rates))
        assert (shown is not None and shown.startswith("over whole epochs: ")) is said


def test_epoch_times_lose_columns_before_they_break_a_line():
    columns = ("run", "epoch", *epoch_layout.PARTS, "to solution", "speed-up")
    rows = [["2 ranks · 20260101T000000Z", "2.36 s ± 732 ms", *["8.39 ms"] * 5, "9.91 s", "1.00×"]] * 3
    for width, kept in ((200, 9), (80, 4), (60, 3)):
        console = Console(file=io.StringIO(), width=width)
        console.print(epochs.EpochTable(columns, rows))
        lines = console.file.getvalue().splitlines()
        assert len(lines) == 2 + len(rows), lines
        assert sum(column in lines[0] for column in columns) >= kept
