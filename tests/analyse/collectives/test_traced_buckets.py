"""Buckets in profiler traces as torch writes them: found, timed on the rank's own clock, and never guessed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.analyse.collectives.traced_buckets import bucket_windows, summary
from allpull.schema.events import Buckets, ClockPair, TraceWindow

MakeAny = Callable[..., Any]
BASE_NS = 1_790_857_026_000_000_000
BEGIN_NS = 10**12  # of step 0 on the monotonic clock, which is AHEAD_NS behind the real-time one
AHEAD_NS = BASE_NS + 4_374_000_000_000_000 - BEGIN_NS
FILE = "traces/rank-00000-step-0000000.json.gz"


def event(name: str, at_ms: float, length_ms: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """An event as Kineto writes it, ``at_ms`` after step 0 began."""
    ts = (BEGIN_NS + AHEAD_NS - BASE_NS) / 1000 + at_ms * 1000
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": length_ms * 1000, "args": args}


def queued(at_ms: float, numbers: int, waits: bool = False) -> dict[str, Any]:
    """DDP, or the program, puts an all-reduce into the queue."""
    dims = [[[numbers]], [], [], [], [], []]
    return event(
        "c10d::allreduce_",
        at_ms,
        0.02,
        **{"Concrete Inputs": ["", "", "", "", str(not waits), "-1"], "Input Dims": dims},
    )


def gloo(at_ms: float, length_ms: float, numbers: int) -> dict[str, Any]:
    """A thread of Gloo reduces."""
    return event(
        "gloo:all_reduce", at_ms, length_ms, "user_annotation", **{"Input Dims": [[numbers]], "Input type": ["float"]}
    )


def nccl(at_ms: float, length_ms: float, numbers: int | None) -> dict[str, Any]:
    """A kernel of NCCL; newer versions name the collective, older ones are known by the kernel's name alone."""
    told = {"Collective name": "allreduce", "In msg nelems": numbers, "dtype": "Float"} if numbers else {}
    return event(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", at_ms, length_ms, "kernel", **told
    )


def trace(events: list[dict[str, Any]]) -> bytes:
    return json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "t"}
    ).encode()


@pytest.fixture
def windowed(tmp_path: Path, make_records: MakeAny, make_log: MakeAny, make_data: MakeAny) -> Callable[..., Any]:
    """A run of three steps of 100 ms on one rank, the first two of them traced by ``content``."""

    def make(content: bytes | None, file: str = FILE, **changes: Any) -> Any:
        (tmp_path / "traces").mkdir(exist_ok=True)
        if content is not None:
            (tmp_path / FILE).write_bytes(gzip.compress(content))
        window = {"kind": "trace", "file": file, "first_step": 0, "steps": 2, "begin_ns": 0, "end_ns": 1}
        clocks = [
            {"kind": "clock", "monotonic_ns": at, "realtime_ns": at + AHEAD_NS} for at in (BEGIN_NS, 2 * BEGIN_NS)
        ]
        log = make_log(
            traces=(TraceWindow.model_validate(window),),
            clocks=tuple(ClockPair.model_validate(pair) for pair in clocks),
            buckets=(Buckets(kind="buckets", step=0, sizes_bytes=[7, 9], t_ns=0),),
        )
        records = make_records([[100]] * 3, backward=[[60]] * 3, arrival=[[70]] * 3, done=[[80]] * 3)
        return make_data(records, 1, events={0: log}, directory=tmp_path, **changes)

    return make


def times_ms(run: Any) -> list[tuple[float | None, ...]]:
    """Step, bucket, size in bytes, and ready, start and end in ms after step 0 began."""
    table = bucket_windows(run).times
    return [
        (step, bucket, size, *(None if at is None else round((at - BEGIN_NS) / 1e6, 3) for at in moments))
        for _, step, bucket, size, *moments in table.rows()
    ]


def test_gloo_buckets_are_ready_when_queued_and_reduced_by_its_threads(windowed: Callable[..., Any]) -> None:
    events = [
        gloo(32, 20, 1000),  # in the file the threads of Gloo come first, as Kineto writes them
        gloo(45, 30, 500),
        queued(30, 1000),
        queued(40, 500),
        queued(130, 1000),
        gloo(131, 4, 1000),
        event("c10d::broadcast_", 2, 1),
        event("aten::add", 3, 1),
    ]
    run = windowed(trace(events))
    assert times_ms(run) == [(0, 0, 4000, 30, 32, 52), (0, 1, 2000, 40, 45, 75), (1, 0, 4000, 130, 131, 135)]
    windows = bucket_windows(run)
    assert windows.gaps == ()
    first, *_ = summary(windows, run.steps)
    assert (first.bucket, first.size_bytes) == (0, 4000)
    assert first.ready_s == pytest.approx(0.030, abs=1e-6)


def test_two_of_one_size_are_reduced_in_the_order_of_the_queue(windowed: Callable[..., Any]) -> None:
    events = [
        queued(30, 100),
        queued(31, 100),
        queued(32, 100),
        gloo(60, 9, 100),
        gloo(30.5, 29, 100),
        gloo(59, 1, 100),
    ]
    assert [row[3:] for row in times_ms(windowed(trace(events)))] == [(30, 30.5, 59.5), (31, 59, 60), (32, 60, 69)]


def test_an_execution_from_before_the_window_is_nobodys(windowed: Callable[..., Any]) -> None:
    events = [gloo(1, 2, 100), queued(30, 100), gloo(31, 5, 100), queued(50, 100)]
    assert [row[3:] for row in times_ms(windowed(trace(events)))] == [(30, 31, 36), (50, None, None)]


def test_nccl_is_known_by_what_its_kernels_say_and_else_by_their_names(windowed: Callable[..., Any]) -> None:
    told = [queued(30, 1000), queued(40, 500), nccl(41, 3, 1000), nccl(44, 2, 500)]
    assert times_ms(windowed(trace(told))) == [(0, 0, 4000, 41, 41, 44), (0, 1, 2000, 44, 44, 46)]
    untold = [queued(30, 1000), queued(40, 500), nccl(41, 3, None), nccl(44, 2, None)]
    assert times_ms(windowed(trace(untold))) == [(0, 0, 7, 41, 41, 44), (0, 1, 9, 44, 44, 46)]  # sizes: what DDP said


def test_reductions_of_the_programs_own_are_no_buckets(windowed: Callable[..., Any], make_calls: MakeAny) -> None:
    own = [queued(10, 5), gloo(10.1, 1, 5)]  # asynchronous, as DDP's, and before the gradients are back
    events = [*own, queued(30, 1000), gloo(31, 5, 1000), queued(60, 3, waits=True), gloo(60.1, 1, 3)]
    late = [queued(90, 5), gloo(90.1, 1, 5)]  # after them
    calls = make_calls([(0, 0, 0, 0, 9.9, 1, 12)])
    run = windowed(trace([*events, *late]), collectives=calls)
    assert times_ms(run) == [(0, 0, 4000, 30, 31, 36)]


def test_calls_that_follow_within_microseconds_are_all_the_programs_own(
    windowed: Callable[..., Any], make_calls: MakeAny
) -> None:
    events = [event for place in range(4) for event in (queued(10 + place / 50, 5), gloo(10.1 + place, 1, 5))]
    own = make_calls([(0, 0, 0, place, 10 + place / 50, 1, 12 + place) for place in range(4)])
    assert times_ms(windowed(trace(events), collectives=own)) == []
    one = make_calls([(0, 0, 0, 0, 10 + 1 / 50, 1, 12)])
    assert len(times_ms(windowed(trace(events), collectives=one))) == 3


def test_a_trace_without_any_reduction_is_said_and_not_passed_over(windowed: Callable[..., Any]) -> None:
    (gap,) = bucket_windows(windowed(trace([event("aten::add", 3, 1)]))).gaps
    assert gap.text == f"profiler windows: 1 could not be fully used; {FILE}: no reduction of gradients was found in it"


def test_only_so_much_is_unpacked(windowed: Callable[..., Any]) -> None:
    run = windowed(trace([queued(30, 1), gloo(31, 1, 1)] + [event("aten::add", 3, 1)] * 20_000))
    assert bucket_windows(run).times.height == 1
    part = bucket_windows(run, limit_bytes=1 << 20)
    assert part.times.height == 1
    assert "too large to read in full" in part.gaps[0].text
    assert bucket_windows(run, limit_bytes=0).gaps[0].text == "profiler windows: 1 were not read, to keep this short"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"[]", "no reduction"),
        (b'{"traceEvents": [', "it is truncated"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "c10d::allreduce_", "ts": ' + b"9" * 5000 + b"}]}",
            "a number of too many digits",
        ),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
        (b'{"traceEvents": [1, null, "x", [], {}, {"ph": "X"}]}', "no reduction"),
        (b'{"traceEvents": [{"ph": "X", "name": "c10d::allreduce_", "ts": "soon", "args": 5}]}', "no reduction"),
        (b'{"traceEvents": [{"ph": "X", "name": "c10d::allreduce_", "ts": NaN, "dur": Infinity}]}', "no reduction"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "gloo:x", "ts": 1e300, "args": {"Input Dims": [[-1]]}}]}',
            "no reduction",
        ),
        (b"\xff\xfe" * 10, "neither an object nor a list"),
    ],
)
def test_a_trace_that_cannot_be_used_is_a_gap(windowed: Callable[..., Any], content: bytes, says: str) -> None:
    (gap,) = bucket_windows(windowed(content)).gaps
    assert says in gap.text
    assert len(gap.text) < 400


@pytest.mark.parametrize("file", ["../outside.json", "/etc/hostname", "traces", "nothing.json", "nul\0", "x" * 5000])
def test_a_trace_elsewhere_is_not_opened(windowed: Callable[..., Any], tmp_path: Path, file: str) -> None:
    (tmp_path.parent / "outside.json").write_bytes(trace([queued(30, 1), gloo(31, 1, 1)]))
    found = bucket_windows(windowed(None, file=file))
    assert found.times.is_empty()
    assert len(found.gaps) == 1


def test_a_trace_cut_off_in_its_packing_is_a_gap(windowed: Callable[..., Any], tmp_path: Path) -> None:
    run = windowed(trace([queued(30, 1), gloo(31, 1, 1)] * 500))
    whole = (tmp_path / FILE).read_bytes()
    for cut in (0, 5, len(whole) // 2):
        (tmp_path / FILE).write_bytes(whole[:cut])
        assert len(bucket_windows(run).gaps) == 1
    (tmp_path / FILE).write_bytes(whole[:-4])  # of gzip's own trailer: the trace is whole
    assert bucket_windows(run).gaps == ()
    (tmp_path / FILE).write_bytes(b"not gzip at all")
    assert "Not a gzipped file" in bucket_windows(run).gaps[0].text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_trace_reading_it_ends(windowed: Callable[..., Any], data: st.DataObject) -> None:
    whole = trace([queued(30, 1000), gloo(31, 5, 1000)])
    at, cut = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 40))
    changed = (
        whole[:at]
        + data.draw(st.binary(max_size=10) | st.sampled_from([b"null", b"[[", b"-1", b'"x"']))
        + whole[at + cut :]
    )
    found = bucket_windows(windowed(changed))
    assert found.times.height <= 1
    assert len(found.gaps) <= 1
