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

from allpull.report.terminal import table
from allpull.report.terminal.show import observations


def printed(renderable, width=100):
    """What a colour terminal of ``width`` columns is sent, with rich's own styles taken out."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    console.print(renderable)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def everything(show, sentences, width):
    return "".join(printed(part, width) for part in (table.table(show), table.phases(show), table.bullets(sentences)))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("make", [one, three, empty, hostile])
def test_no_line_is_wider_than_the_terminal(make, width):
    made = make()
    lines = everything(made.show, made.words, width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [60, 100])
def test_the_numbers_of_every_run_stand_whole_on_its_line(width):
    made = three()
    lines = printed(table.table(made.show), width).splitlines()
    for label, expected in {
        "1 rank ": ("533 ± 6", "120 ms", "1.00×", "100.0 %", "97.6 %"),
        "4 ranks ": ("1,573 ± 19", "163 ms", "2.95×", "73.8 %", "97.0 %"),
    }.items():
        (line,) = [line for line in lines if line.startswith(label)]
        assert [text for text in expected if text not in line] == []


def test_on_a_narrow_terminal_the_numbers_become_sentences():
    text = " ".join(printed(table.table(three().show), 40).split())
    assert (
        "4 ranks: 1,573 ± 19 samples/s, median step 163 ms, speed-up 2.95×, efficiency 73.8 %, test top-1 97.0 %"
        in text
    )


def test_what_was_not_measured_is_a_dash_and_never_a_zero():
    text = everything(empty().show, [], 100)
    assert "–" in text
    assert not re.search(r"\b0\b", text)
    assert "No phase was measured" in text
    assert "failed" in text


def test_compact_phases_name_the_largest_and_sum_the_rest():
    run = report([metrics(1, phases={"input": 0.01, "forward": 0.2, "backward": 0.5, "wait": None, "other": 0.29})])
    assert table.compact_phases(run.show.runs[0]) == "backward 50%, other 29%, forward 20%, rest 1%"


def test_phases_of_many_runs_are_all_shown_on_a_narrow_terminal():
    show = report([metrics(ranks) for ranks in (1, 2, 4, 8, 16, 32)]).show
    text = printed(table.phases(show), 60)
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
        "import sys; import allpull.report, allpull.report.terminal.table; "
        "print(sorted({'altair', 'vl_convert', 'jinja2', 'numpy', 'torch', 'polars'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def observed_run(**changes):
    """A run of which everything was seen; texts are ``text``."""
    text = changes.pop("text", "forward")
    use = {
        "op": "broadcast",
        "size_bytes": 6168,
        "dtype": "int64",
        "group": "0",
        "group_ranks": 4,
        "inside": text,
        "steady": True,
        "calls": 400,
        "unmatched": 8,
        "calls_per_step": 1.0,
        "blocked_s_per_step": 0.012,
        "wait_s": 0.0154,
        "transfer_s": 0.00135,
        "algbw_bytes_per_s": 4.57e6,
        "busbw_bytes_per_s": 4.57e6,
    }
    nothing = dict.fromkeys(("wait_s", "transfer_s", "algbw_bytes_per_s", "busbw_bytes_per_s"))
    barrier = {**use, **nothing, "op": "barrier", "inside": None, "size_bytes": 0, "steady": False, "unmatched": 0}
    evaluation = {"name": "evaluation", "times": 3, "ranks": [0], "seconds": 6.0, "s_per_epoch": 2.0}
    bucket = {"bucket": 0, "size_bytes": 1 << 20, "seen": 6, "ready_s": 0.03, "start_s": 0.031, "end_s": 0.04}
    known = {
        "boundary": text,
        "sources": ["gradients", text],
        "steps": 100,
        "epochs": 3,
        "samples": 6400,
        "skipped_steps": 2,
        "backward_passes": 4.0,
        "stopped_parts": [text],
        "energy_j_per_epoch": 5200.0,
    }
    whole = {
        "collectives": [use, barrier, *[{**use, "op": f"all_gather{place}"} for place in range(20)]],
        "pauses": [{**evaluation, "waited_s": 5.9, "waited_in": f"broadcast in {text}"}],
        "buckets": [bucket, {**bucket, "bucket": 1, "size_bytes": 25 << 20, "ready_s": 0.05, "end_s": 0.09}],
        "observed": known,
        "clock_error_s": 35e-6,
        "io": {"read_bytes_per_s": 3.3e9, "reads_per_s": 36_500, "storage_read_bytes_per_s": 0.33e9},
        **changes,
    }
    return report([metrics(4, **whole)]).show


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("text", ["forward", HOSTILE])
def test_what_was_seen_fits_the_terminal_and_steers_nothing(width, text):
    show = observed_run(text=text)
    sent = printed(observations(show.runs[0]), width) + printed(table.phases(show), width)
    assert max(cell_len(line) for line in sent.splitlines()) <= width
    assert {char for char in sent if unicodedata.category(char) in ("Cc", "Cf")} <= {"\n"}


def test_how_steps_end_and_what_has_no_phase_are_said():
    observed = observed_run().runs[0].observed.model_dump()
    changes = {
        "boundary": "parameter.update",
        "sources": ["loaders"],
        "epochs": 0,
        "named": {"rollout": 0.02, "augment": 0.001},
    }
    show = observed_run(observed={**observed, **changes}, phases={"input": None, "forward": 0.06, "other": 0.04})
    said = " ".join(printed(observations(show.runs[0]), 200).split())
    for part in (
        "Steps end at updates of parameters, which no torch.optim.Optimizer made",
        "100 steps, 6,400 samples (rows of the first tensor that the network was given); 103 steady",
        "No loader was used: batches that the program makes itself are part of other (40.0 %)",
        "Collecting what the program learns from takes, per step: rollout 20 ms, which is part of forward.",
        "Phases that the program named, per step: augment 1 ms.",
    ):
        assert part in said, part


def test_pauses_that_some_ranks_have_more_often_say_so():
    run = observed_run().runs[0]
    pause = run.pauses[0].model_copy(update={"ranks": [], "fewest": 1, "shortest_s": 0.5})
    said = " ".join(printed(observations(run.model_copy(update={"pauses": [pause]})), 200).split())
    assert "Evaluation on every rank: 1 to 3 times, 500 ms to 6 s in all, 2 s per epoch." in said


@pytest.mark.parametrize("width", [50, 100])
def test_what_was_seen_is_said_in_numbers_with_units(width):
    said = " ".join(printed(observations(observed_run().runs[0]), width).split())
    for part in (
        "100 steps in 3 epochs, 6,400 samples; 103 steady",
        "2 steps skipped, because a gradient was not finite",
        "A steady step has 4 backward passes",
        "Evaluation on rank 0: 3 times, 6 s in all, 2 s per epoch; the other 3 ranks, each, waited 5.9 s meanwhile",
        "2 buckets of 1 MiB to 25 MiB: the first ready after 30 ms, the last after 50 ms, all reduced after 90 ms",
        "Ranks read 3.3 GB/s, 36,500 reads/s, 10.0 % of it from storage",
        "5,200 J per epoch",
        "168 of 8,800 calls of collectives could not be matched",
        "The clocks of the ranks agree to within 35 µs",
        "Steps end at forward; observed: backward and forward",
        "broadcast in forward",
    ):
        assert part in said, part


def test_more_from_storage_than_was_asked_for_is_no_share():
    io = {"read_bytes_per_s": 2000.0, "reads_per_s": None, "storage_read_bytes_per_s": 20_000.0}
    said = " ".join(printed(observations(observed_run(io=io).runs[0]), 200).split())
    assert "Ranks read 2 kB/s; storage gave 20 kB/s, which is read ahead, or through mapped files." in said


def test_collectives_stand_in_a_table_where_there_is_room():
    lines = printed(observations(observed_run().runs[0]), 100).splitlines()
    (row,) = [line for line in lines if line.startswith("broadcast in forward")]
    assert " ".join(row.split()[3:]) == "6.02 KiB 1 15.4 ms 1.35 ms 4.57 MB/s 4.57 MB/s"
    (row,) = [line for line in lines if line.startswith("barrier")]
    assert row.split() == ["barrier", "–", "between", "–", "–", "–", "–"]
    assert any("14 more, blocked 168 ms per step in all" in line for line in lines)


def test_a_wait_across_hosts_carries_its_bound():
    text = printed(table.phases(observed_run()), 100)
    assert re.search(r"wait +12\.9 ms ± 35 µs +\d+%", text)
    assert "±" not in printed(table.phases(three().show), 100)


def test_of_a_run_without_anything_seen_nothing_is_said():
    assert printed(observations(one().show.runs[0])) == ""
