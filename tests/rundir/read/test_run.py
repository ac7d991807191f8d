"""Reading a run: what stands on disk comes back exactly, and what is absent is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import read_run
from allpull.rundir.read.steps import SCHEMA
from allpull.schema.base import tag
from allpull.schema.gap import texts

MakeRun = Callable[..., Path]
BASE_NS = 1_700_000_000_000_000_001


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None], line: int) -> None:
    """Change the JSON on one line (from 0, the header); None removes the line."""
    lines = path.read_text().splitlines()
    changed = change(json.loads(lines[line]))
    lines[line : line + 1] = [] if changed is None else [json.dumps(changed)]
    path.write_text("".join(text + "\n" for text in lines))


def test_a_sound_run_comes_back_exactly_and_without_gaps(make_run: MakeRun) -> None:
    run = read_run(make_run(ranks=2, steps=10))
    assert run.gaps == ()
    assert dict(run.steps.schema) == SCHEMA
    assert run.steps["rank"].to_list() == [0] * 10 + [1] * 10
    assert run.steps["begin_ns"][3] == BASE_NS + 3 * 100_000_000  # integers all the way: no float holds this
    assert run.steps["copy_ns"].null_count() == 20
    assert run.steps["forward_ns"].null_count() == 0
    assert run.steps["tag_warmup"].to_list() == ([True] + [False] * 9) * 2
    assert not run.steps["tag_other"].any()
    assert run.headers[1].pid == 101
    assert run.events[0].metrics[0].value == 0.5
    assert run.events[1].end is not None
    assert [host.host for host in run.hosts] == ["here"]


def test_counters_are_one_row_for_each_sample_and_rank(make_run: MakeRun) -> None:
    counters = read_run(make_run(ranks=2)).counters
    assert counters.select("rank", "t_ns", "read_bytes").rows() == [(0, 1, 7), (1, 1, 7), (0, 2, 7), (1, 2, 7)]
    assert counters["cpu_ns"].null_count() == 4  # not measured is null, not 0


def test_one_tagged_step_alone_is_read_wherever_it_is(make_run: MakeRun) -> None:
    root = make_run(ranks=1, steps=300)  # polars ends the program if it subtracts lists from certain single rows
    header, *lines = (root / layout.steps_file(0)).read_text().splitlines()
    for at in range(0, 300, 10):
        records = [{**json.loads(line), "tags": None, "more": "x" * 200} for line in lines]
        records[at]["tags"] = ["warmup"]
        (root / layout.steps_file(0)).write_text("\n".join([header, *map(json.dumps, records)]) + "\n")
        assert read_run(root).steps.filter(pl.col("tag_warmup"))["step"].to_list() == [at]


def test_what_a_newer_minor_version_added_is_passed_over(make_run: MakeRun) -> None:
    root = make_run()
    newer = {"schema": "allpull.steps/1.7", "colour": {"nested": [1]}}
    rewrite(root / layout.steps_file(0), lambda header: {**header, **newer}, 0)
    rewrite(root / layout.steps_file(0), lambda record: {**record, "gpu_ns": {"a": 1}, "tags": ["throttled"]}, 4)
    rewrite(root / layout.events_file(0), lambda header: {**header, "schema": "allpull.events/1.7"}, 0)
    rewrite(root / layout.events_file(0), lambda _: {"kind": "aurora", "t_ns": 3}, 1)
    rewrite(root / "run.json", lambda record: {**record, "schema": "allpull.run/1.7", "weather": "fine"}, 0)
    run = read_run(root)
    assert run.gaps == ()
    assert run.steps.height == 20
    assert run.steps.filter(pl.col("tag_other")).select("rank", "step").rows() == [(0, 3)]
    assert run.events[0].metrics == ()


def test_a_last_line_cut_off_is_dropped_and_named(make_run: MakeRun) -> None:
    root = make_run()
    path = root / layout.steps_file(1)
    path.write_bytes(path.read_bytes()[:-40])
    run = read_run(root)
    assert run.steps.filter(pl.col("rank") == 1).height == 9
    assert texts(run.gaps) == ["rank 1: the last line of the step records is cut off; it was left out"]


def test_a_last_line_that_lacks_only_its_newline_is_whole(make_run: MakeRun) -> None:
    root = make_run()
    path = root / layout.steps_file(1)
    path.write_bytes(path.read_bytes()[:-1])
    run = read_run(root)
    assert (run.steps.height, run.gaps) == (20, ())


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_wherever_a_kill_cuts_the_file_off_the_whole_lines_are_read(make_run: MakeRun) -> None:
    root = make_run(ranks=1, steps=3)
    path = root / layout.steps_file(0)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        header, *lines = whole[:cut].split(b"\n")
        path.write_bytes(whole[:cut])
        run = read_run(root)
        assert run.steps.height == sum(is_json(line) for line in lines)
        assert len(run.headers) == (1 if lines else 0)
        assert bool(run.gaps) == (not lines or (lines[-1] != b"" and not is_json(lines[-1]))), header


def test_a_rank_without_an_end_was_killed(make_run: MakeRun) -> None:
    root = make_run()
    rewrite(root / layout.events_file(1), lambda _: None, 2)
    assert texts(read_run(root).gaps) == ["rank 1 ended without saying so (killed?)"]
    (root / layout.events_file(1)).unlink()
    assert texts(read_run(root).gaps) == [
        "rank 1 ended without saying so (killed?)",
        "rank 1 left no events: of epochs, evaluations and metrics these have none",
    ]


def test_a_rank_without_an_end_in_a_command_that_succeeded_was_not_killed(make_run: MakeRun) -> None:
    root = make_run(kind="run", exit={"code": 0})
    rewrite(root / layout.events_file(1), lambda _: None, 2)
    (gap,) = read_run(root).gaps
    assert gap.kind == "rank ended"
    assert gap.ranks == (1,)
    assert "killed" not in gap.text
    assert "last records may be missing" in gap.text


def test_processes_whose_rank_number_was_taken_are_a_gap(make_run: MakeRun) -> None:
    root = make_run(kind="run")
    for pid in (1, 2):
        process = {"pid": pid, "host": "here", "rank": None, "reason": "any", "refused_rank": 0}
        path = root / layout.process_file("here", pid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(process))
    (gap,) = read_run(root).gaps
    assert gap.kind == "processes left out"
    assert gap.ranks == (0,)
    assert gap.text.startswith("2 processes had the number of a rank that was recorded already, and were left out")


def test_a_rank_that_raised_is_not_called_killed(make_run: MakeRun) -> None:
    root = make_run()
    raised = {"kind": "exception", "type": "KeyError", "message": "conv1", "t_ns": 4}
    rewrite(root / layout.events_file(1), lambda _: raised, 2)
    assert texts(read_run(root).gaps) == ["rank 1 ended by an exception: KeyError"]


def test_what_ended_the_rank_that_failed_first_comes_first(make_run: MakeRun) -> None:
    """Rank 0 fails because rank 1 is gone."""
    root = make_run()
    for rank, name in enumerate(("RuntimeError", "ValueError")):
        raised = {"kind": "exception", "type": name, "message": "any", "t_ns": 4}
        events = root / layout.events_file(rank)
        events.write_text("".join([*events.read_text().splitlines(keepends=True)[:2], json.dumps(raised), "\n"]))
    record = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**record, "exit": {"code": 1, "rank": 1, "host": "here"}}))
    assert [one for one in texts(read_run(root).gaps) if "exception" in one] == [
        "rank 1 ended by an exception: ValueError",
        "rank 0 ended after that by an exception: RuntimeError",
    ]


def test_a_running_job_is_not_called_killed(make_run: MakeRun) -> None:
    root = make_run(status="running")
    rewrite(root / layout.events_file(1), lambda _: None, 2)
    assert texts(read_run(root).gaps) == [
        "run.json says 'running': the job has not ended, or its launcher was killed",
        "rank 1 had not ended yet, or was killed",
    ]


def test_ranks_that_left_nothing_are_a_gap(make_run: MakeRun) -> None:
    root = make_run(ranks=3)
    (root / layout.steps_file(1)).unlink()
    (root / layout.events_file(1)).unlink()
    run = read_run(root)
    assert texts(run.gaps) == ["rank 1 left no step records (run.json says 3 ranks)"]
    assert sorted(run.headers) == [0, 2]


def test_a_rank_killed_before_its_header_was_whole_is_a_gap(make_run: MakeRun) -> None:
    root = make_run()
    (root / layout.steps_file(1)).write_bytes(b"")
    (root / layout.events_file(1)).write_text('{"schema": "allpull.ev')
    assert texts(read_run(root).gaps) == ["rank 1 left no step records (run.json says 2 ranks)"]


def test_a_hundred_thousand_missing_ranks_are_one_gap(make_run: MakeRun) -> None:
    root = make_run(ranks=2)
    rewrite(root / "run.json", lambda record: {**record, "ranks": 100_000}, 0)
    run = read_run(root)
    assert run.gaps[0].text == "ranks 2, 3, 4 and 99,995 more left no step records (run.json says 100,000 ranks)"
    assert len(run.gaps) == 2  # the other: the headers speak of 2 ranks
    assert run.gaps[0].ranks[:3] == (2, 3, 4)
    assert len(run.gaps[0].ranks) < 5_000
    assert max(len(gap) for gap in texts(run.gaps)) < 200


def test_records_that_are_absent_in_the_middle_are_counted(make_run: MakeRun) -> None:
    root = make_run()
    thinned = {"kind": "thinned", "file": "steps", "keep_one_in": 2, "t_ns": 4}
    rewrite(root / layout.steps_file(0), lambda _: None, 5)
    rewrite(root / layout.steps_file(0), lambda _: None, 5)
    rewrite(root / layout.events_file(0), lambda _: thinned, 1)
    assert texts(read_run(root).gaps) == [
        "rank 0: 2 steps between first and last without a record",
        "rank 0: records were thinned to one in 2 to stay within the budget",
    ]


def test_recording_that_stopped_says_why(make_run: MakeRun) -> None:
    root = make_run()
    off = {"kind": "switched_off", "reason": "No space left on device", "t_ns": 4}
    rewrite(root / layout.events_file(0), lambda _: off, 1)
    assert texts(read_run(root).gaps) == ["rank 0: recording stopped before the end: No space left on device"]


def test_files_of_no_rank_of_the_run_are_named_and_not_read(make_run: MakeRun) -> None:
    root = make_run(ranks=2)
    (root / "steps/rank-00007.jsonl").write_text("garbage\n")
    (root / "steps/rank-1.jsonl").write_text("garbage\n")
    (root / "steps/\x1b[31mred.jsonl").write_text("garbage\n")
    assert texts(read_run(root).gaps) == ["steps: 3 files of no rank of this run (it has 2): not read"]


def test_hosts_that_kept_their_files_are_a_gap(make_run: MakeRun) -> None:
    root = make_run(hosts=["here", "there"])
    assert texts(read_run(root).gaps) == ["1 host of 2 left no description of itself"]


def test_a_run_that_never_started_reads(make_run: MakeRun) -> None:
    root = make_run(status="created")
    for folder in ("steps", "events", "counters", "hosts"):
        shutil.rmtree(root / folder)
    run = read_run(root)
    assert run.steps.is_empty()
    assert dict(run.steps.schema) == SCHEMA
    assert run.counters.is_empty()
    assert len(run.gaps) == 3


def test_find_runs_takes_a_run_or_a_folder_of_runs(make_run: MakeRun, tmp_path: Path) -> None:
    root = make_run()
    assert find_runs(root) == [root]
    shutil.copytree(root, tmp_path / "another")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latest").symlink_to(root)
    assert find_runs(tmp_path) == [tmp_path / "another", root]
    with pytest.raises(RunDirError, match=r"no run\.json here or in a folder of it"):
        find_runs(tmp_path / "empty")


@pytest.mark.slow
def test_a_million_records_read(make_run: MakeRun) -> None:
    root = make_run(ranks=8, steps=1)
    steps = pl.int_range(125_000, eager=True)
    times = {"begin_ns": steps * 10**8, "end_ns": (steps + 1) * 10**8, "samples": pl.repeat(64, 125_000, eager=True)}
    body = pl.DataFrame({"step": steps, "epoch": steps // 1000, **times}).write_ndjson()
    for rank in range(8):
        path = root / layout.steps_file(rank)
        header = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps({**header, "budget": 1 << 30}) + "\n" + body)
    run = read_run(root)
    assert run.steps.height == 1_000_000
    assert run.steps.group_by("rank").len()["len"].to_list() == [125_000] * 8
    assert run.steps["end_ns"].max() == 125_000 * 10**8
    assert [gap.kind for gap in run.gaps] == ["host counters"]  # they end with the one step that was made with them


def test_ranks_beyond_five_digits_are_found(make_run: MakeRun) -> None:
    root = make_run(ranks=1)
    lines = (root / layout.steps_file(0)).read_text()
    (root / layout.steps_file(123_456)).write_text(lines.replace('"rank": 0', '"rank": 123456'))
    rewrite(root / "run.json", lambda record: {**record, "schema": tag("run"), "ranks": 200_000}, 0)
    assert sorted(read_run(root).headers) == [0, 123_456]
