"""Files from anybody: each is one clear error or a named gap, in bounded memory, and what was imported can be read."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.importers.made import Job, document, gloo_events, nccl_events, save, save_all

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import AllpullError, BadInput
from allpull.importers.assemble import Imported, import_traces
from allpull.rundir.read.run import RunData, read_run
from allpull.traces import json_stream, kineto, unpacked

pytestmark = pytest.mark.slow

JOB = Job(ranks=2, steps=4, late={(step, 1): 2.0 for step in range(4)})
HOSTILE = "</script>\x1b]0;owned\x07\ud800\u202e../../etc/passwd" + "x" * 5000


def imported(folder: Path, out: Path) -> tuple[Imported, RunData]:
    done = import_traces([folder], out=out)
    run = read_run(done.directory)
    metrics(AlignedRun(run))
    return done, run


def with_changes(folder: Path, change: Any, *, ranks: int = 2, gloo: bool = True) -> Path:
    """The traces of ``JOB``, each changed by ``change(trace, rank)``."""
    folder.mkdir()
    for rank in range(ranks):
        events = gloo_events(JOB, rank) if gloo else nccl_events(JOB, rank)
        trace = document(JOB, rank, events)
        save(folder / f"rank{rank}.json", change(trace, rank) or trace)
    return folder


@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_cut_in_the_middle_gives_what_it_has_and_says_so(tmp_path: Path, share: float, packed: bool) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    path = folder / "rank-1.json.gz"
    blob = path.read_bytes()
    if packed:
        path.write_bytes(blob[: int(len(blob) * share)])
    else:
        text = gzip.decompress(blob)
        path.unlink()
        (folder / "rank-1.json").write_bytes(text[: int(len(text) * share)])
    done, run = imported(folder, tmp_path / "runs")
    assert any("rank-1.json" in gap and "read only in part" in gap for gap in done.gaps)
    assert 0 < run.steps.filter(rank=1).height <= 4


@pytest.mark.parametrize(
    "head", ['{"schemaVersion": 1, "distri', '{"traceEvents": [', "[", '{"traceEvents": [{"ph": "X", ']
)
def test_a_trace_cut_at_its_begin_is_one_error(tmp_path: Path, head: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(head)
    with pytest.raises(BadInput):
        import_traces([path], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"name": "x", "args": {"a": ['])
def test_deep_nesting_is_said(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [' + opening * 300_000)
    with pytest.raises(BadInput, match="nested too deeply"):
        import_traces([path], out=tmp_path / "runs")


def test_deep_nesting_after_good_events_keeps_these(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    text = gzip.decompress((folder / "rank-0.json.gz").read_bytes()).decode()
    (folder / "rank-0.json.gz").unlink()
    (folder / "rank-0.json").write_text(text[:-2] + "," + "[" * 200_000)
    done, run = imported(folder, tmp_path / "runs")
    assert run.steps.filter(rank=0).height == 4
    assert any("nested too deeply" in gap for gap in done.gaps)


def test_a_bomb_is_defused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "FREE_BYTES", 1 << 20)
    path = tmp_path / "rank0.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [' + b" " * (64 << 20))
    with pytest.raises(BadInput, match="unpacks to more than 400 times its size"):
        import_traces([path], out=tmp_path / "runs")


def test_one_enormous_value_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE", 1 << 20)
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [{"name": "' + b"x" * (32 << 20) + b'"}]}')
    tracemalloc.start()
    with pytest.raises(BadInput, match="more than 1,048,576 characters"):
        import_traces([path], out=tmp_path / "runs")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20


def test_memory_stays_below_the_size_of_the_trace(tmp_path: Path) -> None:
    """Most of a real trace are operations of the host; they are numbers here."""
    path = tmp_path / "rank0.json"
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::select", "pid": 7, "tid": 7, "args": {"External id": 3}}
    with path.open("w") as file:
        file.write(json.dumps(document(JOB, 0, gloo_events(JOB, 0)))[:-2])
        for place in range(100_000):
            file.write("," + json.dumps({**op, "ts": 20_000_000.0 + place, "dur": 0.5, "pad": "x" * 60}))
        file.write("]}")
    tracemalloc.start()
    import_traces([path], out=tmp_path / "runs")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size


@pytest.mark.parametrize("size", [100_000, 2**31, 2**70, -1, 0, 1.5, "many", None])
def test_a_header_may_claim_any_number_of_ranks(tmp_path: Path, size: Any) -> None:
    def change(trace: Any, _: int) -> None:
        trace["distributedInfo"]["world_size"] = size

    done, run = imported(with_changes(tmp_path / "traces", change), tmp_path / "runs")
    assert run.record.ranks == 2
    if size == 100_000:
        assert any("traces of 2 ranks of 100,000: ranks 2, 3, 4 and 99,995 more left none" in gap for gap in done.gaps)
    else:
        assert not any("left none" in gap for gap in done.gaps)


def test_a_header_may_claim_any_rank(tmp_path: Path) -> None:
    def change(trace: Any, rank: int) -> None:
        trace["distributedInfo"]["rank"] = 999_999 - rank

    _, run = imported(with_changes(tmp_path / "traces", change), tmp_path / "runs")
    assert run.record.ranks == 2


def test_impossible_times_are_counted_and_left_out(tmp_path: Path) -> None:
    strange = [
        {"ts": 10_000_000, "dur": -5},
        {"ts": float("nan"), "dur": 1},
        {"ts": 10_000_000, "dur": float("inf")},
        {"ts": "soon", "dur": 1},
        {"ts": -1, "dur": 1},
        {"ts": 2**80, "dur": 1},
        {"ts": True, "dur": 1},
        {"dur": 1},
        {"ts": 10_000_000, "dur": None},
    ]

    def change(trace: Any, _: int) -> None:
        events = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "tid": 1, **odd} for odd in strange]
        nameless = {"ph": "X", "cat": "cpu_op", "name": 7, "ts": 1, "dur": 1}
        trace["traceEvents"] += [*events, nameless, "no event", None, 3]

    done, run = imported(with_changes(tmp_path / "traces", change), tmp_path / "runs")
    assert any(f"{len(strange) + 4} events with impossible times" in gap for gap in done.gaps)
    assert metrics(AlignedRun(run)).phases["wait"] == pytest.approx(0.001, abs=1e-5)


def test_every_event_twice_is_every_event_once(tmp_path: Path) -> None:
    def change(trace: Any, _: int) -> None:
        trace["traceEvents"] += [dict(event) for event in trace["traceEvents"] if event["cat"] != "x"]

    _, run = imported(with_changes(tmp_path / "traces", change), tmp_path / "runs")
    assert run.steps.height == 8
    assert metrics(AlignedRun(run)).phases["forward"] == pytest.approx(0.005, abs=1e-5)


@pytest.mark.parametrize("tid", [[], {}, None, 1.5, "main", -3])
def test_threads_may_go_by_anything(tmp_path: Path, tid: Any) -> None:
    def change(trace: Any, _: int) -> None:
        for event in trace["traceEvents"]:
            event["tid"] = event["pid"] = tid

    _, run = imported(with_changes(tmp_path / "traces", change, gloo=False), tmp_path / "runs")
    assert metrics(AlignedRun(run)).phases["wait"] == pytest.approx(0.001, abs=1e-5)


def test_a_part_that_is_hidden_by_others_is_no_part(tmp_path: Path) -> None:
    """All of forward lies in a backward of the program's own words: nothing of it is left."""

    def change(trace: Any, _: int) -> None:
        steps = [event for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep")]
        trace["traceEvents"] += [event | {"name": "backward"} for event in steps]

    for gloo in (True, False):
        _, run = imported(with_changes(tmp_path / f"traces{gloo}", change, gloo=gloo), tmp_path / "runs")
        assert run.steps["forward_ns"].fill_null(0).sum() == 0


def test_hostile_names_reach_neither_paths_nor_readers(tmp_path: Path, run_cli: Any) -> None:
    def change(trace: Any, _: int) -> None:
        trace["host_name"] = HOSTILE
        trace["traceName"] = HOSTILE
        for event in trace["traceEvents"]:
            event["args"] |= {"Process Group Name": HOSTILE, "Process Group Ranks": HOSTILE, "dtype": HOSTILE}

    folder = with_changes(tmp_path / "traces", change, gloo=False)
    done = import_traces([folder], out=tmp_path / "runs", name=HOSTILE)
    inside = [path for path in done.directory.rglob("*") if path.is_file()]
    assert all(path.resolve().is_relative_to(tmp_path / "runs") for path in inside)
    assert all(len(part) < 150 for path in inside for part in path.parts)
    shown = run_cli("show", str(done.directory))
    assert shown.returncode == 0, shown.stderr
    assert "\x1b]0;owned" not in shown.stdout
    assert oct(done.directory.stat().st_mode & 0o777) == "0o700"


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    secret = save(tmp_path / "secret.json", document(JOB, 1, gloo_events(JOB, 1)))
    (folder / "rank-7.json").symlink_to(secret)
    (folder / "loop").symlink_to(folder)
    done, run = imported(folder, tmp_path / "runs")
    assert run.record.ranks == 2
    assert sum("a link in a folder is not followed" in gap for gap in done.gaps) == 2
    named, _ = imported(folder / "rank-7.json", tmp_path / "runs")  # by its own name it is
    assert named.summary.startswith("1 rank")


def test_runs_that_stand_in_the_folder_are_not_imported_again(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    first, _ = imported(folder, folder / "runs")
    again, run = imported(folder, folder / "runs")
    assert run.record.ranks == 2
    assert any("a run directory, with traces of its own" in gap for gap in again.gaps)
    assert again.directory != first.directory


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    os.mkfifo(folder / "pipe")
    done, _ = imported(folder, tmp_path / "runs")
    assert any("pipe: not a regular file" in gap for gap in done.gaps)
    with pytest.raises(BadInput, match="not a regular file"):
        import_traces([folder / "pipe"], out=tmp_path / "runs")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04rest", "neither a trace"),
        (b"\x28\xb5\x2f\xfdrest", "neither a trace"),
        (b"\x0a\x10perfetto", "neither a trace"),
        (b'{"some": "json"}', "neither a trace"),
        (b"# a text", "neither a trace"),
        (b"[]", "no step was found"),
        (b"[1, 2, 3]", "no step was found"),
        (b'{"traceEvents": []}', "no step was found"),
        (b'{"traceEvents": {}}', "neither a trace"),
        (b'{"entries": []}', "no step was found"),
        (b"\x80\x04N.", "no step was found"),
        (b"\x1f\x8bnot gzip at all", "not readable as gzip"),
        (b"\xff\xfe\x00", "neither a trace"),
    ],
)
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, run_cli: Any, content: bytes, says: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=says) as told:
        import_traces([path], out=tmp_path / "runs")
    assert told.value.hint
    assert not (tmp_path / "runs").exists()


def test_missing_files_and_places_are_clear_errors(tmp_path: Path, run_cli: Any) -> None:
    done = run_cli("import", str(tmp_path / "none.json"), "-o", str(tmp_path / "runs"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.json: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no trace found"):
        import_traces([tmp_path / "empty"], out=tmp_path / "runs")
    folder = save_all(tmp_path / "traces", JOB)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file is not a folder"):
        import_traces([folder], out=tmp_path / "file" / "runs")


def test_nothing_is_left_behind_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_all(tmp_path / "traces", JOB)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("allpull.importers.directory.shutil.copyfileobj", full)
    with pytest.raises(BadInput, match=r"cannot write a run directory in .*runs: No space left on device"):
        import_traces([folder], out=tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_too_many_of_anything_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    for name, limit in (("MAX_EVENTS", 20), ("MAX_KEPT", 9), ("MAX_THREADS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(kineto, name, limit)
            done, _ = imported(folder, tmp_path / name)
            assert any("the remaining" in gap and "not read" in gap for gap in done.gaps), name


def test_a_pickle_with_a_class_is_refused_and_the_traces_beside_it_are_read(tmp_path: Path) -> None:
    folder = save_all(tmp_path / "traces", JOB)
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Path("x")]}))
    done, run = imported(folder, tmp_path / "runs")
    assert run.record.ranks == 2
    assert any("nccl_trace_rank_0" in gap and "refused" in gap for gap in done.gaps)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = (
    "Collective name",
    "In msg nelems",
    "Group size",
    "dtype",
    "Seq",
    "correlation",
    "Input Dims",
    "Input type",
)
MEMBERS = ("distributedInfo", "baseTimeNanoseconds", "host_name")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.booleans())
def test_whatever_a_field_holds_the_run_can_be_read(tmp_path_factory: Any, data: st.DataObject, gloo: bool) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    job = Job(ranks=2, steps=2)
    for rank in range(2):
        events = gloo_events(job, rank) if gloo else nccl_events(job, rank)
        trace = document(job, rank, events)
        for _ in range(data.draw(st.integers(0, 6))):
            event = data.draw(st.sampled_from(events))
            event[data.draw(st.sampled_from(FIELDS))] = data.draw(json_values)
        for _ in range(data.draw(st.integers(0, 3))):
            event = data.draw(st.sampled_from(events))
            if isinstance(event.get("args"), dict):
                event["args"][data.draw(st.sampled_from(ARGUMENTS))] = data.draw(json_values)
        if data.draw(st.booleans()):
            trace[data.draw(st.sampled_from(MEMBERS))] = data.draw(json_values)
        save(folder / f"rank{rank}.json", trace)
    try:
        imported(folder, folder / "runs")
    except AllpullError:
        pass


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_bytes_change_the_run_can_be_read(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    job = Job(ranks=2, steps=2)
    for rank in range(2):
        text = bytearray(json.dumps(document(job, rank, gloo_events(job, rank))).encode())
        for _ in range(data.draw(st.integers(0, 8))):
            place = data.draw(st.integers(0, len(text) - 1))
            text[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
        (folder / f"rank{rank}.json").write_bytes(bytes(text))
    try:
        imported(folder, folder / "runs")
    except AllpullError:
        pass
