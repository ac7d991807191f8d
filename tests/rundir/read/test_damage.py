"""A damaged line is one clear error: file, line, field, and what to do; or it is left out and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import AllpullError, RunDirError
from allpull.rundir import layout
from allpull.rundir.read import steps
from allpull.rundir.read.lines import MAX_FILE_BYTES
from allpull.rundir.read.run import RunData, read_run
from allpull.schema.gap import texts
from allpull.schema.results import RunMetrics

MakeRun = Callable[..., Path]
BIG = 10**30
JUNK = [
    b"null",
    b"-",
    b"9" * 25,
    b"1e400",
    b'"',
    b"\n",
    b"{}",
    b"[[[[",
    b"\x00",
    b"\xff",
    b"NaN",
    b"\\ud800",
    b"\r",
    b",",
]


def put(path: Path, line: int, text: bytes) -> None:
    """Replace one line (from 1, as errors count), its newline kept."""
    lines = path.read_bytes().splitlines()
    lines[line - 1] = text
    path.write_bytes(b"\n".join(lines) + b"\n")


def change(path: Path, line: int, **fields: Any) -> None:
    record = json.loads(path.read_bytes().splitlines()[line - 1])
    put(path, line, json.dumps({**record, **fields}).encode())


def without(path: Path, line: int, field: str) -> None:
    record = json.loads(path.read_bytes().splitlines()[line - 1])
    del record[field]
    put(path, line, json.dumps(record).encode())


FIELDS = [
    ({"begin_ns": None}, "begin_ns is null"),
    ({"step": "5"}, "step is '5', expected a whole number"),
    ({"end_ns": 5.5}, "end_ns is 5.5, expected a whole number"),
    ({"epoch": True}, "epoch is True, expected a whole number"),
    ({"epoch": -1}, "epoch is -1, expected 0 to"),
    ({"forward_ns": -1}, "forward_ns is -1, expected 0 to"),
    ({"forward_ns": [1]}, r"forward_ns is \[1\], expected a whole number"),
    ({"samples": "x" * 500}, "samples is 'x{39}, expected"),
    ({"samples": BIG}, "more than 64 bits hold"),
    ({"arrival_ns": 2**63 - 1}, "arrival_ns is 9223372036854775807, expected"),
    ({"named": {"mine": BIG}, "begin_ns": None}, "more than 64 bits hold"),
    ({"tags": "warmup"}, "tags is 'warmup', expected a list of words"),
    ({"end_ns": 3}, "end_ns is 3, before begin_ns .* negative duration"),
    ({"step": 3}, "step is 3: written twice"),
    ({"step": 1}, "step is 1: out of order, after step 3"),
    ({"begin_ns": 5}, "begin_ns is 5, before that of the step before"),
]
LINES = [
    (b"", "an empty line"),
    (b"   ", "an empty line"),
    (b"[1, 2]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"step": 4, "epo', "not JSON"),
    (b'{"step": NaN}', "not JSON"),
    (b"\x00\x00\x00", "not JSON"),
    (b'{"step": 4, "tags": ["\xff\xfe"]}', "not JSON"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "not JSON: recursion limit"),
    (b'{"step": 4, "epoch": 1e999}', "not JSON|epoch"),
]


@pytest.mark.parametrize(("fields", "says"), FIELDS)
def test_a_wrong_field_is_named_with_file_and_line(make_run: MakeRun, fields: dict[str, Any], says: str) -> None:
    root = make_run()
    path = root / layout.steps_file(1)
    change(path, 6, **fields)
    with pytest.raises(RunDirError, match=rf"steps/rank-00001\.jsonl, line 6: .*{says}") as caught:
        read_run(root)
    assert "--skip-damaged" in caught.value.hint
    run = read_run(root, skip_damaged=True)
    assert run.steps.height == 19
    assert "rank 1: 1 damaged step record left out" in texts(run.gaps)


@pytest.mark.parametrize(("text", "says"), LINES)
def test_a_line_that_is_no_record_is_named(make_run: MakeRun, text: bytes, says: str) -> None:
    root = make_run()
    put(root / layout.steps_file(0), 7, text)
    with pytest.raises(RunDirError, match=rf"steps/rank-00000\.jsonl, line 7: (?:{says})"):
        read_run(root)
    assert read_run(root, skip_damaged=True).steps.height == 19


@pytest.mark.parametrize("field", ["step", "epoch", "begin_ns", "end_ns"])
def test_a_required_field_that_is_absent_is_named(make_run: MakeRun, field: str) -> None:
    root = make_run()
    without(root / layout.steps_file(0), 3, field)
    with pytest.raises(RunDirError, match=f"line 3: {field} is missing"):
        read_run(root)


def test_only_the_damaged_lines_are_left_out(make_run: MakeRun) -> None:
    root = make_run(ranks=1, steps=10)
    path = root / layout.steps_file(0)
    put(path, 4, b"garbage")
    change(path, 5, end_ns=None)
    change(path, 6, step=1)
    run = read_run(root, skip_damaged=True)
    assert run.steps["step"].to_list() == [0, 1, 5, 6, 7, 8, 9]
    assert "rank 0: 3 damaged step records left out" in texts(run.gaps)


def test_events_and_counters_are_checked_too(make_run: MakeRun) -> None:
    root = make_run()
    change(root / layout.events_file(0), 2, kind="mertic")
    with pytest.raises(RunDirError, match=r"events/rank-00000\.jsonl, line 2: .*mertic"):
        read_run(root)
    change(root / layout.events_file(0), 2, kind="metric", step="x" * 10_000)
    with pytest.raises(RunDirError, match=r"line 2: metric\.step: Input should be a valid integer") as caught:
        read_run(root)
    assert len(caught.value.message) < 500
    change(root / layout.counters_file("here"), 3, ranks={"7": {"processes": 1}})
    run = read_run(root, skip_damaged=True)
    assert "rank 0: 1 damaged event left out" in texts(run.gaps)
    assert "counters: 1 damaged sample left out" in texts(run.gaps)
    with pytest.raises(RunDirError, match=r"line 3: ranks has '7', expected 0 to 1"):
        read_run(root_with_sound_events(root))


def root_with_sound_events(root: Path) -> Path:
    change(root / layout.events_file(0), 2, step=1)
    return root


def test_counters_that_go_back_in_time_are_damage(make_run: MakeRun) -> None:
    root = make_run()
    change(root / layout.counters_file("here"), 3, t_ns=-5)
    with pytest.raises(RunDirError, match=r"counters/here\.jsonl, line 3: t_ns is -5, before that of the sample"):
        read_run(root)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schema": "allpull.steps/2.0"}, "written by a newer allpull"),
        ({"schema": "allpull.events/1.0"}, "expected allpull.steps"),
        ({"schema": None}, "schema is None"),
        ({"schema": [BIG]}, "more than 64 bits"),
        ({"rank": 1}, "its header says rank 1"),
        ({"pid": "x"}, "pid: Input should be a valid integer"),
        ({"clock": {}}, "clock.monotonic_ns: Field required"),
    ],
)
def test_a_damaged_header_is_an_error_even_when_lines_are_skipped(
    make_run: MakeRun, fields: dict[str, Any], says: str
) -> None:
    root = make_run()
    change(root / layout.steps_file(0), 1, **fields)
    with pytest.raises(RunDirError, match=rf"steps/rank-00000\.jsonl.*{says}"):
        read_run(root, skip_damaged=True)


@pytest.mark.parametrize("budget", [512, 0, -5])
def test_a_file_that_grew_past_its_budget_is_refused(make_run: MakeRun, budget: int) -> None:
    root = make_run()
    change(root / layout.steps_file(0), 1, budget=budget)
    with pytest.raises(RunDirError, match=r"steps/rank-00000\.jsonl: .* grew past its budget"):
        read_run(root, skip_damaged=True)


def test_no_header_may_allow_more_than_four_gib(make_run: MakeRun) -> None:
    root = make_run()
    path = root / layout.steps_file(0)
    change(path, 1, budget=2**62)
    with path.open("r+b") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # sparse: it takes no room
    with pytest.raises(RunDirError, match=r"more than the 4 GiB that can be right: .* grew past its budget"):
        read_run(root)


def test_a_first_line_without_end_is_no_header(make_run: MakeRun) -> None:
    root = make_run()
    (root / layout.steps_file(0)).write_bytes(b"x" * (3 << 20))
    with pytest.raises(RunDirError, match="too long for a header"):
        read_run(root)


def test_fast_and_slow_path_accept_the_same_lines(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line-by-line path is the oracle of the columnar one: forced onto it, a sound file reads the same."""
    root = make_run()
    fast = read_run(root)
    sifted: list[int] = []
    sift = steps._sift
    monkeypatch.setattr(steps, "_is_shallow", lambda body: False)
    monkeypatch.setattr(
        steps, "_sift", lambda lines, *rest, **options: sifted.append(1) or sift(lines, *rest, **options)
    )
    assert read_run(root).steps.equals(fast.steps)
    assert len(sifted) == 2


@pytest.mark.parametrize("deep", [b"[" * 10**6 + b"]" * 10**6, b'{"a":' * 10**5 + b"1" + b"}" * 10**5, b"[[]," * 999])
def test_nesting_never_reaches_the_columnar_parser(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, deep: bytes
) -> None:
    """A few thousand levels end the whole process in polars before 2.1."""
    root = make_run(ranks=1)
    put(root / layout.steps_file(0), 5, b'{"step": 3, "later": ' + deep + b"}")
    columns = steps._columns
    bodies: list[dict[int, bytes]] = []
    monkeypatch.setattr(steps, "_columns", lambda body: bodies.append(body) or columns(body))
    assert read_run(root, skip_damaged=True).steps.height == 9
    assert len(bodies) == 1
    assert b"later" not in bodies[0][0]


def test_a_newer_field_of_some_depth_is_no_damage(make_run: MakeRun) -> None:
    root = make_run(ranks=1)
    change(root / layout.steps_file(0), 5, later=[[[[{}] * 40]]] * 3)
    assert read_run(root).steps.height == 10


def test_long_lines_that_are_not_deep_stay_on_the_fast_path(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run(ranks=1)
    change(root / layout.steps_file(0), 5, named={f"phase {number}": number for number in range(300)})
    monkeypatch.setattr(steps, "_sift", None)
    assert read_run(root).steps.height == 10


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_happens_to_a_file_the_answer_is_a_run_or_one_error(
    make_run: MakeRun, tmp_path: Path, data: st.DataObject
) -> None:
    root = tmp_path / "run"
    if not root.exists():
        make_run(ranks=1, steps=4)
    files = [layout.steps_file(0), layout.events_file(0), layout.counters_file("here"), "run.json", "hosts/here.json"]
    path = root / data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    cut = data.draw(st.integers(0, 30))
    junk = data.draw(st.sampled_from(JUNK) | st.binary(max_size=12))
    path.write_bytes(whole[:at] + junk + whole[at + cut :])
    try:
        answers = [answer(root, skip_damaged=skip_damaged) for skip_damaged in (False, True)]
    finally:
        path.write_bytes(whole)
    for found in answers:
        if isinstance(found, AllpullError):
            assert found.hint
        else:
            assert (found.steps["end_ns"] >= found.steps["begin_ns"]).all()
            assert RunMetrics.model_validate_json(metrics(AlignedRun(found)).model_dump_json())


def answer(root: Path, *, skip_damaged: bool) -> RunData | AllpullError:
    try:
        return read_run(root, skip_damaged=skip_damaged)
    except AllpullError as error:
        return error
