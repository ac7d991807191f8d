"""Step records and events: what is written for what a loop says, on an injected clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull import marks
from allpull.errors import BadInput
from allpull.observe.identity import Identity
from allpull.observe.recording import journal, recorder
from allpull.observe.recording.recorder import Recorder
from allpull.observe.recording.step_line import EVALUATION, FORWARD
from allpull.rundir import layout
from allpull.schema import base
from allpull.schema.events import EVENT, EventsHeader
from allpull.schema.steps import PHASES, StepRecord, StepsHeader

WHO = Identity(rank=0, local_rank=0, ranks=1, host="node1")


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def ms(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * 1e6)


@pytest.fixture
def loop(tmp_path):
    """A recorder on a clock in our hands, listening to marks."""
    for folder in layout.FOLDERS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    clock = Clock()
    recorder = Recorder(str(tmp_path), WHO, budget=1 << 20, warmup_steps=2, clock_ns=clock, realtime_ns=clock)
    before = marks.listen(recorder)
    yield clock, recorder, tmp_path
    marks.listen(before)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def steps_of(folder: Path) -> list[StepRecord]:
    header, *records = read(folder / layout.steps_file(0))
    StepsHeader.model_validate(header)
    return [StepRecord.model_validate(record) for record in records]


def events_of(folder: Path) -> list:
    header, *records = read(folder / layout.events_file(0))
    EventsHeader.model_validate(header)
    return [EVENT.validate_python(record) for record in records]


def one_step(clock: Clock, *, forward_ms: float = 10, samples: int = 64) -> None:
    for name, milliseconds in (("input", 1), ("forward", forward_ms), ("backward", 20), ("optimizer", 2)):
        with marks.phase(name):
            clock.ms(milliseconds)
    clock.ms(0.5)  # between the phases
    marks.step(samples)


def test_versions_of_writer_and_schema_agree():
    assert journal.VERSION == base.VERSION
    assert recorder.KNOWN == PHASES


def test_phases_are_exact_and_steps_contiguous(loop):
    clock, recorder, folder = loop
    marks.epoch(0)
    for _ in range(3):
        one_step(clock)
    recorder.close(ended_well=True)
    records = steps_of(folder)
    assert [record.step for record in records] == [0, 1, 2]
    for record in records:
        assert (record.input_ns, record.forward_ns, record.backward_ns) == (1_000_000, 10_000_000, 20_000_000)
        assert record.end_ns - record.begin_ns == 33_500_000
    assert records[1].begin_ns == records[0].end_ns
    assert records[0].tags == ["first_batch", "warmup"]
    assert records[1].tags == ["warmup"]
    assert records[2].tags == []


def test_what_was_never_said_is_null_and_what_did_not_happen_this_time_is_0(loop):
    clock, recorder, folder = loop
    one_step(clock)
    with marks.phase("evaluation"):
        clock.ms(5)
    one_step(clock)
    one_step(clock)
    recorder.close(ended_well=True)
    assert [record.evaluation_ns for record in steps_of(folder)] == [None, 5_000_000, 0]
    assert {record.copy_ns for record in steps_of(folder)} == {None}


def test_what_happens_inside_an_evaluation_belongs_to_it(loop):
    clock, recorder, folder = loop
    one_step(clock)
    with marks.phase("evaluation"):
        clock.ms(1)
        with marks.phase("forward"):
            clock.ms(7)
        with marks.phase("input"):
            clock.ms(2)
    one_step(clock)
    recorder.close(ended_well=True)
    record = steps_of(folder)[1]
    assert (record.evaluation_ns, record.forward_ns) == (10_000_000, 10_000_000)
    assert "evaluation" in record.tags
    span = next(event for event in events_of(folder) if event.kind == "span")
    assert (span.name, span.end_ns - span.begin_ns) == ("evaluation", 10_000_000)


def test_an_evaluation_that_was_none_is_time_of_the_step(loop):
    """1 ms evaluates after the step; what follows it turns out to be work of the next step."""
    clock, recorder, folder = loop
    one_step(clock)
    with marks.phase("evaluation"):
        clock.ms(1)
    recorder.enter(EVALUATION)
    with marks.phase("forward"):
        clock.ms(7)
    clock.ms(2)
    recorder.retract(FORWARD)
    one_step(clock)
    recorder.close(ended_well=True)
    record = steps_of(folder)[1]
    assert (record.evaluation_ns, record.forward_ns) == (1_000_000, 19_000_000)
    spans = [event for event in events_of(folder) if event.kind == "span"]
    assert [span.end_ns - span.begin_ns for span in spans] == [1_000_000]


def test_nested_phases_are_disjoint_and_names_of_the_users_own_are_kept(loop):
    clock, recorder, folder = loop
    with marks.phase("forward"):
        clock.ms(3)
        with marks.phase('aug"ment\n'):
            clock.ms(4)
        clock.ms(5)
    marks.step(1)
    recorder.close(ended_well=True)
    record = steps_of(folder)[0]
    assert record.forward_ns == 8_000_000
    assert record.named == {'aug"ment\n': 4_000_000}


def backward(clock, recorder, ready, milliseconds=10):
    """A backward pass whose gradients are ready at its end, and reduced 4 ms later."""
    with marks.phase("backward"):
        clock.ms(milliseconds)
        ready.append((0, (clock.now_ns,)))
        clock.ms(4)


def test_arrival_and_done_need_a_backward_of_this_step(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [ready.pop()] if ready else ()
    with marks.phase("forward"):
        clock.ms(10)
    backward(clock, recorder, ready)
    marks.step(1)
    ready.append((0, (1,)))  # of long ago
    with marks.phase("backward"):
        clock.ms(1)
    marks.step(1)
    one_step(clock)
    recorder.close(ended_well=True)
    first, stale, none = steps_of(folder)
    assert first.done_ns - first.arrival_ns == 4_000_000
    assert (stale.arrival_ns, none.arrival_ns) == (None, None)
    assert first.reductions is None


def test_moments_of_buckets_are_recorded_and_the_last_is_the_arrival(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [(0, tuple(ready))]
    with marks.phase("backward"):
        for _ in range(3):
            clock.ms(5)
            ready.append(clock.now_ns)
        clock.ms(4)
    marks.step(1)
    recorder.close(ended_well=True)
    (step,) = steps_of(folder)
    assert step.ready_ns == ready
    assert step.arrival_ns == ready[-1]
    assert step.reductions is None


def test_every_reduction_of_a_step_is_listed_with_what_was_spent_before(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [ready.pop()] if ready else ()
    begins = []
    for forward_ms in (3, 5):
        with marks.phase("forward"):
            clock.ms(forward_ms)
        begins.append(clock.now_ns)
        backward(clock, recorder, ready)
    with marks.phase("backward"):  # reduces nothing: no_sync
        clock.ms(7)
    marks.step(1)
    one_step(clock)
    recorder.close(ended_well=True)
    step, none = steps_of(folder)
    ms = 1_000_000
    assert step.reductions == [
        [0, begins[0], begins[0] + 14 * ms, 0, 0, 3 * ms, 14 * ms, 0, begins[0] + 10 * ms],
        [0, begins[1], begins[1] + 14 * ms, 0, 0, 8 * ms, 28 * ms, 0, begins[1] + 10 * ms],
    ]
    assert (step.arrival_ns, step.done_ns) == (begins[1] + 10 * ms, begins[1] + 14 * ms)
    assert step.backward_ns == 35 * ms
    assert none.reductions is None


def test_networks_that_reduce_together_have_an_entry_each(loop):
    clock, recorder, folder = loop
    moments = []
    recorder.arrival = lambda: [(0, (moments[1], moments[2])), (1, (moments[0],))]
    with marks.phase("backward"):
        for _ in range(3):
            clock.ms(5)
            moments.append(clock.now_ns)
        clock.ms(1)
    marks.step(1)
    recorder.close(ended_well=True)
    (step,) = steps_of(folder)
    assert [(one[0], one[8:]) for one in step.reductions] == [(0, moments[1:]), (1, moments[:1])]
    assert step.arrival_ns == moments[2]
    assert step.ready_ns is None


def test_another_network_alone_is_listed_too(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [(1, ready.pop()[1])]
    backward(clock, recorder, ready)
    marks.step(1)
    recorder.close(ended_well=True)
    assert steps_of(folder)[0].reductions[0][0] == 1


def test_a_step_with_an_unknown_reduction_has_no_arrival(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [ready.pop()] if ready else None
    backward(clock, recorder, ready)
    with marks.phase("backward"):
        clock.ms(3)
    marks.step(1)
    backward(clock, recorder, ready)
    marks.step(1)
    recorder.close(ended_well=True)
    unknown, known = steps_of(folder)
    assert (unknown.arrival_ns, unknown.done_ns, unknown.reductions) == (None, None, None)
    assert known.arrival_ns is not None


def test_a_step_that_is_cut_again_counts_on(loop):
    clock, recorder, folder = loop
    ready = []
    recorder.arrival = lambda: [ready.pop()] if ready else ()
    for _ in range(2):
        with marks.phase("forward"):
            clock.ms(3)
        backward(clock, recorder, ready)
        with marks.phase("optimizer"):
            clock.ms(2)
        recorder.cut()
    recorder.write_step()
    recorder.close(ended_well=True)
    (step,) = steps_of(folder)
    ms = 1_000_000
    assert [one[3:8] for one in step.reductions] == [[0, 0, 3 * ms, 14 * ms, 0], [0, 0, 6 * ms, 28 * ms, 2 * ms]]


def test_short_steps_share_the_waiting_for_a_cpu_that_is_read_for_them(loop, monkeypatch):
    clock, recorder, folder = loop
    reads = []
    monkeypatch.setattr(recorder.queue, "since", lambda: reads.append(clock.now_ns) or 3_000_000)
    recorder.begin_here()
    reads.clear()
    for milliseconds in (*[4] * 13, 30, 5, 30, 5):
        clock.ms(milliseconds)
        marks.step(1)
    recorder.close(ended_well=True)
    queued = [step.queued_ns for step in steps_of(folder)]
    assert queued[:13] == [230_769] * 13  # in 52 ms
    assert queued[13:] == [3_000_000, 428_571, 2_571_428, 3_000_000]  # by their lengths; the end closes the last one
    assert len(reads) == 4


def test_a_resumed_training_says_so(loop):
    clock, recorder, folder = loop
    marks.epoch(3, 70)
    one_step(clock)
    recorder.close(ended_well=True)
    record = steps_of(folder)[0]
    assert (record.step, record.epoch) == (70, 3)
    assert record.tags == ["resumed", "first_batch", "warmup"]


def test_a_metric_that_is_not_finite_is_null(loop):
    _, recorder, folder = loop
    for value in (0.5, float("nan"), float("inf"), None):
        marks.metric("test_top1", value)
    recorder.close(ended_well=True)
    values = [event.value for event in events_of(folder) if event.kind == "metric"]
    assert values == [0.5, None, None, None]


def test_an_exception_and_the_missing_end_are_recorded(loop):
    _, recorder, folder = loop
    recorder.journal.raised(ValueError("no \x1b[31m<b>"))
    recorder.close(ended_well=False)
    kinds = [event.kind for event in events_of(folder)]
    assert "exception" in kinds
    assert "end" not in kinds


class Trap(Exception):
    """An exception of somebody's, which does more than it should when it is asked for a hint."""

    @property
    def hint(self) -> str:
        raise SystemExit(3)


def test_what_an_error_advises_is_recorded_and_masked_and_other_attributes_of_that_name_are_left_alone(loop):
    _, recorder, folder = loop
    recorder.journal.raised(BadInput("no labels", hint="set password=hunter2"))
    recorder.journal.raised(BadInput("no labels"))
    recorder.journal.raised(Trap("no"))
    odd = ValueError("no")
    odd.hint = ["no text"]  # type: ignore[attr-defined]  # libraries give their exceptions attributes of any kind
    recorder.journal.raised(odd)
    recorder.close(ended_well=False)
    hints = [event.hint for event in events_of(folder) if event.kind == "exception"]
    assert hints == ["set password=[redacted]", None, None, None]


def test_a_secret_that_the_end_of_a_message_would_cut_is_masked(loop):
    _, recorder, folder = loop
    recorder.journal.raised(BadInput(f"{'x' * 3960} https://user:secretpassword@host"))
    recorder.close(ended_well=False)
    (event,) = (event for event in events_of(folder) if event.kind == "exception")
    assert len(event.message) <= 4000
    assert "secret" not in event.message


@given(st.lists(st.sampled_from(["input", "forward", "backward", "mine", "evaluation"]), max_size=30))
def test_any_nesting_adds_up_to_the_wall(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("run")
    for name in layout.FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    clock = Clock()
    recorder = Recorder(str(folder), WHO, budget=1 << 20, warmup_steps=0, clock_ns=clock, realtime_ns=clock)

    def nest(rest: list[str]) -> None:
        clock.ms(1)
        if rest:
            with recorder.phase(rest[0]):
                nest(rest[1:])
                clock.ms(1)

    with recorder.phase("optimizer"):
        nest(names)
    recorder.step(1)
    recorder.close(ended_well=True)
    record = steps_of(folder)[0]
    known = [getattr(record, f"{name}_ns") or 0 for name in PHASES]
    assert sum(known) + sum((record.named or {}).values()) == record.end_ns - record.begin_ns


def test_a_full_disk_stops_recording_and_not_the_training(tmp_path, loop):
    """The real thing: /dev/full takes no byte."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    folder = tmp_path / "full"
    for name in layout.FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    program = (
        "import os, sys\n"
        "from allpull.observe.identity import Identity\n"
        "from allpull.observe.recording.recorder import Recorder\n"
        "from allpull.rundir import write\n"
        "real = os.open\n"
        "write.os.open = lambda path, *rest: real('/dev/full', os.O_WRONLY) if 'steps' in path else real(path, *rest)\n"
        "who = Identity(rank=0, local_rank=0, ranks=1, host='n')\n"
        "recorder = Recorder(sys.argv[1], who, budget=9999, warmup_steps=0)\n"
        "for _ in range(1000):\n"
        "    recorder.step(1)\n"
        "recorder.close(ended_well=True)\n"
        "print('trained on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained on\n"), done.stderr
    assert done.stderr.count("recording stopped, the program continues: rank-00000.jsonl: No space left on device") == 1
    events = events_of(folder)
    assert [event.kind for event in events if event.kind in ("switched_off", "end")] == ["switched_off", "end"]
    assert events[-1].left_out > 900


def test_a_forked_child_writes_nothing(loop):
    clock, recorder, folder = loop
    os.register_at_fork(after_in_child=recorder.disown)
    one_step(clock)
    child = os.fork()
    if child == 0:
        one_step(clock)
        recorder.close(ended_well=True)
        os._exit(0)
    os.waitpid(child, 0)
    recorder.close(ended_well=True)
    assert len(steps_of(folder)) == 1
