"""Tables fit the terminal they are printed on, and names in them are text."""

import io
import re
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import HOSTILE, empty, hostile, metrics, one, report, three
from rich.cells import cell_len
from rich.console import Console

from allpull.report import terminal


def printed(renderable, width=100):
    """What a colour terminal of ``width`` columns is sent, with rich's own styles taken out."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    console.print(renderable)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def everything(show, sentences, width):
    return "".join(
        printed(part, width) for part in (terminal.table(show), terminal.phases(show), terminal.words(sentences))
    )


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("make", [one, three, empty, hostile])
def test_no_line_is_wider_than_the_terminal(make, width):
    made = make()
    lines = everything(made.show, made.words, width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [60, 100])
def test_the_numbers_of_every_run_stand_whole_on_its_line(width):
    made = three()
    lines = printed(terminal.table(made.show), width).splitlines()
    for label, expected in {
        "1 rank ": ("533 ± 6", "120 ms", "1.00×", "100.0 %", "97.6 %"),
        "4 ranks ": ("1,573 ± 19", "163 ms", "2.95×", "73.8 %", "97.0 %"),
    }.items():
        (line,) = [line for line in lines if line.startswith(label)]
        assert [text for text in expected if text not in line] == []


def test_on_a_narrow_terminal_the_numbers_become_sentences():
    text = " ".join(printed(terminal.table(three().show), 40).split())
    assert "4 ranks: 1,573 ± 19 samples/s, step 163 ms, speed-up 2.95×, efficiency 73.8 %, test top-1 97.0 %" in text


def test_what_was_not_measured_is_a_dash_and_never_a_zero():
    text = everything(empty().show, [], 100)
    assert "–" in text
    assert not re.search(r"\b0\b", text)
    assert "No phase was measured" in text
    assert "failed" in text


def test_compact_phases_name_the_largest_and_sum_the_rest():
    run = report([metrics(1, phases={"input": 0.01, "forward": 0.2, "backward": 0.5, "wait": None, "other": 0.29})])
    assert terminal.compact_phases(run.show.runs[0]) == "backward 50%, other 29%, forward 20%, rest 1%"


def test_phases_of_many_runs_are_all_shown_on_a_narrow_terminal():
    show = report([metrics(ranks) for ranks in (1, 2, 4, 8, 16, 32)]).show
    text = printed(terminal.phases(show), 60)
    assert [f"{ranks} rank" in text for ranks in (1, 2, 4, 8, 16, 32)] == [True] * 6
    assert text.index("wait") < text.index("transfer") < text.index("optimizer")


def test_a_name_is_neither_markup_nor_an_escape():
    runs = [metrics(2, name="[red]a[/red]"), metrics(2, name=":smile:[/]")]
    text = everything(report(runs).show, ["[bold]said[/bold] [/] :smile:"], 100)
    for shown in ("[red]a[/red]", ":smile:[/]", "[bold]said[/bold] [/] :smile:"):
        assert shown in text


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30) | st.just(HOSTILE), st.sampled_from([30, 60, 100]))
def test_nothing_that_steers_a_terminal_reaches_it(text, width):
    made = hostile(text)
    sent = everything(made.show, made.words, width)
    assert {char for char in sent if unicodedata.category(char) in ("Cc", "Cf")} <= {"\n"}


def test_tables_cost_no_drawing_library():
    code = (
        "import sys; import allpull.report, allpull.report.terminal; "
        "print(sorted({'altair', 'vl_convert', 'jinja2', 'numpy', 'torch', 'polars'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
