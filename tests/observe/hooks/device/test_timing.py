"""What a device did in each step, against a simulated one whose true times are known; ``tests/gpu`` has a real one."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch, Watched
from tests.observe.hooks.device.simulated_device import CALL_NS, MS, US, Machine, Stream

from allpull.observe.hooks.device.clock import DeviceClock
from allpull.observe.identity import Identity
from allpull.observe.recording.recorder import Recorder
from allpull.observe.recording.step_line import BACKWARD, COLLECTIVE, COPY, EVALUATION, FORWARD, INPUT, OPTIMIZER
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.schema.events import DeviceStep

pytestmark = pytest.mark.torch

STOOD_BEFORE = {"enter", "leave_until", "cut", "collective"}
FEW_US = 30 * US  # launches and our own calls, of which a step has a dozen


class Rig:
    """A rank whose program the test plays, on a simulated machine."""

    def __init__(self, directory: Path, machine: Machine, module: Any) -> None:
        for folder in ("steps", "events"):
            (directory / folder).mkdir(parents=True)
        self.machine = machine
        self.failures: list[tuple[str, str]] = []
        self._events = directory / layout.events_file(0)
        who = Identity(rank=0, local_rank=0, ranks=1, host="h")
        self.recorder = Recorder(
            str(directory), who, budget=1 << 26, warmup_steps=0, clock_ns=machine.time.monotonic_ns
        )
        session = SimpleNamespace(
            recorder=self.recorder, part_failed=lambda part, error: self.failures.append((part, str(error)))
        )
        self.arrivals: list[Any] = []
        inference = SimpleNamespace(session=session, failed=set(), reduces=self.arrivals.append)
        self.device = module.Device(inference)
        self.device.begin()

    @contextmanager
    def phase(self, place: int) -> Iterator[None]:
        depth = self.recorder.enter(place)
        yield
        self.recorder.leave_until(depth)

    def end_step(self) -> None:
        self.recorder.cut()
        self.write()

    def write(self) -> None:
        self.recorder.write_step()
        self.device.at_step(self.recorder.step_number)

    def step(self, kernel_ns: int, *, every_ns: int = CALL_NS, count: int = 1, fetch_ns: int = 0) -> None:
        """One step: a fetch, then ``count`` kernels in each of forward, backward and optimizer."""
        with self.phase(INPUT):
            self.machine.sleep(fetch_ns)
        with self.phase(FORWARD):
            self.machine.launch(kernel_ns, count, every_ns)
        with self.phase(BACKWARD):
            self.machine.launch(kernel_ns, count, every_ns)
            self.arrives()
        with self.phase(OPTIMIZER):
            self.machine.launch(kernel_ns, count, every_ns)
        self.end_step()

    def arrives(self, place: int = 0, buckets: int = 1, network: int = 0) -> None:
        """The last gradient of a bucket that will be reduced was enqueued."""
        self.device.ready(network, place, buckets)

    def told(self) -> list[DeviceStep]:
        """What was written, after all that the device had to do."""
        self.machine.sleep(10**12)
        self.device.finish()
        self.recorder.close(ended_well=True)
        lines = [json.loads(line) for line in self._events.read_text("ascii").splitlines()[1:]]
        return [DeviceStep.model_validate(line) for line in lines if line["kind"] == "device_step"]


@contextmanager
def on_machine(directory: Path, **clock: Any) -> Iterator[Rig]:
    """A rank on a simulated machine; ``clock`` is that of ``Machine``."""
    import torch  # noqa: PLC0415  where it is missing, these tests are skipped

    from allpull.observe.hooks.device import timing  # noqa: PLC0415

    machine = Machine(**clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "watch_copies", lambda _: None)  # whenever the device begins: it would wrap our own torch
        with pytest.MonkeyPatch.context() as at_first:
            at_first.setattr(torch, "cuda", machine.cuda)
            made = Rig(directory, machine, timing)
        patch.setattr(timing, "time", machine.time)
        yield made


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """``rig(**clock)`` is a rank on a simulated machine."""
    folders = (tmp_path / str(number) for number in itertools.count())
    with ExitStack() as stack:
        yield lambda **clock: stack.enter_context(on_machine(next(folders), **clock))


def near(value_ns: int, slack_ns: int = FEW_US) -> Any:
    return pytest.approx(value_ns, abs=slack_ns)


def phases(step: DeviceStep) -> int:
    """What the phases of one step add up to."""
    names = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint", "collective")
    return sum(getattr(step, f"{name}_ns") or 0 for name in names)


def test_a_device_behind_its_host_has_its_own_times(rig: Any) -> None:
    """The host issues a step in 5 ms, of which it fetches; the device takes 30: fetching costs nothing."""
    run = rig(offset_ns=-(10**15), drift_ppm=80)
    for _ in range(40):
        run.step(10 * MS, fetch_ns=5 * MS)
    steps = run.told()
    assert [step.step for step in steps] == list(range(40))
    for step in steps[1:]:
        assert (step.forward_ns, step.backward_ns, step.optimizer_ns) == (near(10 * MS),) * 3
        assert step.end_ns is not None
        assert step.begin_ns is not None
        assert (step.end_ns - step.begin_ns, step.busy_ns) == (near(30 * MS), near(30 * MS))
        assert (step.input_ns, step.paced_ns) == (near(0), near(0))
        assert (step.arrival_ns, step.done_ns) == (near(step.begin_ns + 20 * MS),) * 2
    assert steps[0].begin_ns is None  # where the step before ended is not known
    assert steps[0].busy_ns is None
    # 40 steps behind by 25 ms each: the host's own last step was over long before
    assert steps[-1].end_ns == near(run.machine.passes[-1], steps[-1].bound_ns)


def test_a_device_that_waits_for_batches_had_nothing_to_do(rig: Any) -> None:
    run = rig()
    for _ in range(5):
        run.step(1 * MS, fetch_ns=50 * MS)
    steps = run.told()[1:]
    assert steps
    for step in steps:
        assert (step.input_ns, step.forward_ns) == (near(47 * MS), near(1 * MS))
        assert phases(step) == near(50 * MS)
        assert step.busy_ns == near(3 * MS)


def test_a_launch_bound_step_is_not_called_busy(rig: Any) -> None:
    """1,000 kernels of 2 µs, one in 10: moments around them cannot show the gaps, so busy is not told."""
    run = rig()
    for _ in range(3):
        run.step(2 * US, count=1000, every_ns=10 * US)
    steps = run.told()[1:]
    assert steps
    for step in steps:
        assert step.busy_ns is None
        assert step.paced_ns == near(30 * MS, 100 * US)
        assert step.forward_ns == near(10 * MS)


def test_a_copy_that_blocks_costs_what_the_device_waits_for_it(rig: Any) -> None:
    """The host is held up for the whole step before it; the device only for the 2 ms that the copy itself takes."""
    run = rig()
    machine = run.machine
    for _ in range(6):
        with run.phase(COPY):
            machine.launch(2 * MS)
            machine.synchronize()
        run.step(20 * MS)
    steps = run.told()[1:]
    assert steps
    for step in steps:
        assert step.copy_ns == near(2 * MS)
        assert step.busy_ns == near(60 * MS, 100 * US)
        assert phases(step) == near(62 * MS, 100 * US)


def test_collectives_hidden_in_forward_are_not_forward(rig: Any) -> None:
    """The stream is held up for 7 ms by a broadcast; a gathering on a stream of its own does not count."""
    run = rig()
    machine, beside = run.machine, Stream(9)
    for _ in range(4):
        with run.phase(FORWARD):
            with run.phase(COLLECTIVE):
                machine.synchronize()
                machine.sleep(7 * MS)  # as Gloo does it, which has the host wait
            machine.launch(3 * MS)
            with machine.on(beside), run.phase(COLLECTIVE):
                machine.launch(20 * MS)
        with run.phase(BACKWARD):
            machine.launch(3 * MS)
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.end_step()
    _, *steps = run.told()
    assert len(steps) == 3
    for step in steps:
        assert (step.forward_ns, step.collective_ns) == (near(3 * MS), near(7 * MS))
        assert (step.busy_ns, step.paced_ns) == (near(7 * MS, 60 * US), near(0, 60 * US))
        assert step.arrival_ns is None
        assert step.done_ns is None


def test_the_stream_is_held_up_by_each_call(rig: Any) -> None:
    """The host only issues; the stream comes to a broadcast after 5 ms and to the wait for a gather 3 ms later."""
    run = rig()
    machine = run.machine
    for number in range(4):
        with run.phase(FORWARD):
            machine.launch(5 * MS)
            begin = machine.now_ns
            with run.phase(COLLECTIVE):
                machine.launch(7 * MS)  # what the stream waits for
            run.recorder.collective(0, 2 * number, begin, machine.now_ns - begin, machine.now_ns)
            gathered = machine.now_ns
            with run.phase(COLLECTIVE):
                machine.sleep(CALL_NS)  # its own stream, which this one does not wait for yet
            machine.launch(3 * MS)
            with run.phase(COLLECTIVE):
                begin = machine.now_ns
                machine.launch(2 * MS)
            run.recorder.collective(1, 2 * number + 1, gathered, machine.now_ns - begin, machine.now_ns)
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.end_step()
    _, *steps = run.told()
    assert len(steps) == 3
    for step in steps:
        assert step.begin_ns is not None
        (kind, number, came, blocked, end), (other, later, called, waited, gone) = step.collectives
        assert (kind, number, other, later) == (0, 2 * step.step, 1, 2 * step.step + 1)
        assert (came, blocked, end) == (near(step.begin_ns + 5 * MS), near(7 * MS), near(step.begin_ns + 12 * MS))
        assert (called, waited, gone) == (near(end), near(2 * MS), near(end + 5 * MS))


def test_autocast_around_the_network_is_recorded(rig: Any) -> None:
    import torch  # noqa: PLC0415

    run = rig()
    run.step(1 * MS)
    run.step(1 * MS)
    assert [step.autocast for step in run.told()] == [None] * 2
    run = rig()
    torch.set_autocast_enabled("cuda", True)  # as the context sets it, which refuses to where there is no CUDA
    try:
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        run.step(1 * MS)
        run.step(1 * MS)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
    assert [step.autocast for step in run.told()] == ["bfloat16"] * 2


def test_a_call_on_another_stream_has_no_moments(rig: Any) -> None:
    run = rig()
    machine = run.machine
    for number in range(3):
        with run.phase(FORWARD):
            machine.launch(5 * MS)
            begin = machine.now_ns
            with machine.on(Stream(9)), run.phase(COLLECTIVE):
                machine.launch(7 * MS)
            run.recorder.collective(0, number, begin, machine.now_ns - begin, machine.now_ns)
        run.end_step()
    assert [step.collectives for step in run.told()] == [None] * 3


def test_the_last_gradient_counts_and_only_of_backwards_that_reduce(rig: Any) -> None:
    """Two micro-steps: gradients of the first one stay with their rank."""
    run = rig()
    machine = run.machine
    for _ in range(3):
        for reduces in (False, True):
            with run.phase(FORWARD):
                machine.launch(1 * MS)
            with run.phase(BACKWARD):
                for _ in range(3):
                    machine.launch(2 * MS)
                    if reduces:
                        run.arrives()
                machine.launch(4 * MS)  # the reduction, which the stream waits for
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.end_step()
    for step in run.told():
        assert step.done_ns is not None
        assert step.arrival_ns == near(step.done_ns - 4 * MS)
        assert (step.forward_ns, step.backward_ns) == (near(2 * MS), near(20 * MS))


def test_buckets_are_ready_when_the_stream_has_computed_them(rig: Any) -> None:
    """The host issues all of backward at once; of two gradients that may be a bucket's last, the later one counts."""
    run = rig(drift_ppm=60)
    machine, recorded = run.machine, []
    for _ in range(4):
        with run.phase(FORWARD):
            machine.launch(5 * MS)
        with run.phase(BACKWARD):
            for place in range(3):
                machine.launch(2 * MS)
                run.arrives(place, 3)
                machine.launch(1 * MS)
                run.arrives(place, 3)
            machine.launch(4 * MS)  # the reduction, which the stream waits for
        recorded.append(len(machine.events))
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.end_step()
    steps = run.told()
    for step in steps:
        assert step.ready_ns == [near(step.done_ns - after * MS) for after in (10, 7, 4)]
        assert step.arrival_ns == step.ready_ns[-1]
        assert step.reductions is None
    assert recorded[0] == 8  # forward and backward begin and end, three buckets, and the clock


def test_a_bucket_without_its_gradients_leaves_the_arrival(rig: Any) -> None:
    run = rig()
    for _ in range(2):
        with run.phase(BACKWARD):
            run.machine.launch(2 * MS)
            run.arrives(0, 3)
            run.machine.launch(3 * MS)
            run.arrives(2, 3)
            run.machine.launch(4 * MS)
        run.end_step()
    assert [(step.ready_ns, step.done_ns - step.arrival_ns) for step in run.told()] == [(None, near(4 * MS))] * 2


def test_every_reduction_of_a_step_has_the_times_of_the_stream(rig: Any) -> None:
    """Two networks in turn, as in a GAN, after 6 ms without work; of the one in a third pass gradients stay."""
    run = rig()
    machine = run.machine
    for _ in range(4):
        with run.phase(INPUT):
            machine.synchronize()
            machine.sleep(6 * MS)
        for network, reduces in ((1, True), (0, False), (0, True)):
            with run.phase(FORWARD):
                machine.launch(2 * MS)
            with run.phase(BACKWARD):
                machine.launch(3 * MS)
                if reduces:
                    run.arrives(0, 2, network)
                machine.launch(2 * MS)
                if reduces:
                    run.arrives(1, 2, network)
                machine.launch(4 * MS)
            with run.phase(OPTIMIZER):
                machine.launch(1 * MS)
        run.end_step()
    _, *steps = run.told()
    for step in steps:
        begin = step.begin_ns
        assert [numbers[0] for numbers in step.reductions] == [1, 0]
        for numbers, at_ms, passes in zip(step.reductions, (8, 32), (1, 3), strict=True):
            moments = [begin + (at_ms + after) * MS for after in (0, 9)]
            ready = [begin + (at_ms + after) * MS for after in (3, 5)]
            spent = [6 * MS, 0, 2 * MS * passes, 9 * MS * passes, 1 * MS * (passes - 1)]
            assert numbers[1:] == [near(one, 60 * US) for one in (*moments, *spent, *ready)]
        assert (step.arrival_ns, step.ready_ns) == (step.reductions[-1][-1], step.reductions[-1][-2:])


def test_networks_that_reduce_in_one_pass_arrive_with_the_later(rig: Any) -> None:
    run = rig()
    for _ in range(2):
        run.step(1 * MS)
        with run.phase(BACKWARD):
            run.machine.launch(3 * MS)
            run.arrives(network=1)
            run.machine.launch(2 * MS)
            run.arrives(network=0)
            run.machine.launch(4 * MS)
        run.end_step()
    step = run.told()[-1]
    assert step.done_ns - step.arrival_ns == near(4 * MS)
    assert [(numbers[0], step.done_ns - numbers[-1]) for numbers in step.reductions] == [
        (0, near(4 * MS)),
        (1, near(6 * MS)),
    ]
    assert step.ready_ns is None


def test_a_step_whose_gradients_stay_has_no_arrival(rig: Any) -> None:
    run = rig()
    for _ in range(2):
        with run.phase(FORWARD):
            run.machine.launch(1 * MS)
        with run.phase(BACKWARD):
            run.machine.launch(1 * MS)
        run.end_step()
    assert [(step.arrival_ns, step.done_ns) for step in run.told()] == [(None, None)] * 2


def test_arrivals_on_another_stream_are_on_the_same_clock(rig: Any) -> None:
    run = rig(drift_ppm=-50)
    machine, other = run.machine, Stream(3)
    for _ in range(3):
        with run.phase(FORWARD):
            machine.launch(5 * MS)
        with run.phase(BACKWARD):
            machine.launch(5 * MS)
            with machine.on(other):
                other.free_ns = machine.main.free_ns  # autograd has it wait
                run.arrives()
            machine.launch(5 * MS)
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.end_step()
    steps = run.told()
    assert [step.done_ns - step.arrival_ns for step in steps] == [near(5 * MS)] * 3
    assert [step.backward_ns for step in steps] == [near(10 * MS)] * 3


def test_a_stream_that_nobody_waited_for_tells_no_arrival(rig: Any) -> None:
    run = rig()
    with run.phase(BACKWARD):
        run.machine.launch(5 * MS)
        with run.machine.on(Stream(3, free_ns=run.machine.now_ns + 30 * MS)):
            run.arrives()
        run.machine.launch(5 * MS)
    with run.phase(OPTIMIZER):
        run.machine.launch(1 * MS)
    run.end_step()
    (step,) = run.told()
    assert (step.arrival_ns, step.done_ns, step.backward_ns) == (None, None, near(10 * MS))


def test_what_comes_after_the_cut_is_of_the_next_step(rig: Any) -> None:
    """Of two optimizers one never steps: a step is written when the next one is well under way."""
    run = rig()
    machine = run.machine
    for number in range(4):
        with run.phase(FORWARD):
            machine.launch(2 * MS)
        with run.phase(BACKWARD):
            machine.launch(3 * MS)
            run.arrives()
        if number:
            run.write()
        with run.phase(OPTIMIZER):
            machine.launch(1 * MS)
        run.recorder.cut()
    run.write()
    steps = run.told()
    assert [(step.step, step.forward_ns, step.backward_ns) for step in steps] == [
        (number, near(2 * MS), near(3 * MS)) for number in range(4)
    ]
    assert [step.end_ns for step in steps[1:-1]] == [near(step.begin_ns) for step in steps[2:]]


def test_what_the_host_does_before_it_says_that_a_step_ends_is_of_the_next_one(rig: Any) -> None:
    """A loop that fetches ahead, and says itself where its steps end: the device waits for the batch after that."""
    run = rig()
    for _ in range(4):
        with run.phase(FORWARD):
            run.machine.launch(2 * MS)
        with run.phase(BACKWARD):
            run.machine.launch(2 * MS)
        with run.phase(INPUT):
            run.machine.sleep(10 * MS)
        run.end_step()
    steps = run.told()
    assert [(step.input_ns, step.forward_ns) for step in steps[1:]] == [(near(6 * MS), near(2 * MS))] * 3


def test_of_many_gradients_one_event_is_kept(rig: Any) -> None:
    """Until it is known which parameters come last, all are told: more of them than a step may have marks."""
    run = rig()
    for _ in range(3):
        with run.phase(FORWARD):
            run.machine.launch(1 * MS)
        with run.phase(BACKWARD):
            for _ in range(1000):
                run.machine.launch(10 * US)
                run.arrives()
            run.machine.launch(3 * MS)
        with run.phase(OPTIMIZER):
            run.machine.launch(1 * MS)
        run.end_step()
    assert len(run.machine.events) < 30
    steps = run.told()
    assert [step.done_ns - step.arrival_ns for step in steps] == [near(3 * MS)] * 3


def test_times_stay_sharp_in_long_runs_and_after_long_steps(rig: Any) -> None:
    """Times between events are floats of 24 bits: a run of hours, timed from its begin, would have milliseconds."""
    run = rig(drift_ppm=0)
    ends = []
    for _ in range(300):
        run.step(2 * MS, fetch_ns=10**11)
        ends.append(run.machine.passes[-1])
    for step, begin, end in zip(run.told()[1:], ends, ends[1:], strict=False):
        assert (step.forward_ns, step.optimizer_ns) == (near(2 * MS, 7 * US),) * 2
        assert step.end_ns - step.begin_ns == near(end - begin, 15 * US)


def never_dry(run: Any) -> list[DeviceStep]:
    """20 s in which the device always has work: 200 ms of it from the start, and then as much as the host issues."""
    with run.phase(FORWARD):
        run.machine.launch(200 * MS)
    for _ in range(400):
        run.step(17 * MS, fetch_ns=50 * MS)
    return run.told()


def test_a_device_that_never_runs_dry_shows_its_clock(rig: Any) -> None:
    run = rig(drift_ppm=80)
    steps = never_dry(run)
    assert max(step.bound_ns for step in steps) < 150 * US  # drift alone would make it 1.6 ms
    assert steps[-1].end_ns == near(run.machine.passes[-1], 150 * US)
    assert steps[-1].input_ns == near(0)
    assert [step for step in steps if step.reductions] == []


def test_one_hardware_queue_hides_the_clock_and_costs_a_few_polls(rig: Any) -> None:
    """With CUDA_DEVICE_MAX_CONNECTIONS=1 our stream may wait for the program's."""
    run = rig(drift_ppm=80)
    run.machine.cuda.Stream = lambda _: run.machine.main
    steps = never_dry(run)
    assert steps[-1].bound_ns > 1 * MS
    assert abs(steps[-1].end_ns - run.machine.passes[-1]) <= steps[-1].bound_ns
    assert run.machine.queries < 3000


def test_evaluation_costs_what_lies_between_phases(rig: Any) -> None:
    run = rig()
    machine = run.machine
    run.step(5 * MS)
    with run.phase(EVALUATION):
        for _ in range(600):  # far more than a step may have marks
            with run.phase(INPUT):
                machine.sleep(10 * US)
            with run.phase(FORWARD):
                machine.launch(100 * US)
        machine.synchronize()
    run.step(5 * MS)
    steps = run.told()
    assert len(steps) == 2
    assert steps[1].evaluation_ns == near(60 * MS, 100 * US)
    assert steps[1].forward_ns == near(5 * MS)
    assert steps[1].busy_ns == near(15 * MS)  # beside evaluation


def test_an_evaluation_that_was_none_costs_nothing(rig: Any) -> None:
    run = rig()
    machine = run.machine
    run.step(5 * MS)
    run.recorder.enter(EVALUATION)
    with run.phase(FORWARD):
        machine.launch(2 * MS)
    machine.synchronize()
    run.recorder.retract(FORWARD)
    run.step(5 * MS)
    steps = run.told()
    assert len(steps) == 2
    assert steps[1].evaluation_ns is None
    assert steps[1].forward_ns == near(5 * MS)


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured(rig: Any) -> None:
    """The simulated device refuses both, as CUDA does; the captured step has no times, and those around it do."""
    run = rig()
    run.step(1 * MS)
    run.machine.capturing = True
    run.step(1 * MS)
    run.machine.capturing = False
    run.step(1 * MS)
    run.step(1 * MS)
    steps = run.told()
    assert run.failures == []
    assert [step.step for step in steps] == [0, 2, 3]
    assert [step.begin_ns is None for step in steps] == [True, True, False]
    assert run.device.left_out == 1


def test_steps_on_a_new_stream_begin_anew(rig: Any) -> None:
    run = rig()
    run.step(2 * MS)
    with run.machine.on(Stream(5)):
        run.step(2 * MS)
        run.step(2 * MS)
    with run.phase(FORWARD):
        run.machine.launch(1 * MS)
    with run.machine.on(Stream(6)), run.phase(BACKWARD):
        run.machine.launch(1 * MS)
    run.end_step()
    steps = run.told()
    assert [(step.step, step.begin_ns is None) for step in steps] == [(0, True), (1, True), (2, False)]
    assert run.device.left_out == 1  # its phases went to two streams


def test_another_device_has_another_clock(rig: Any) -> None:
    """Events of two devices cannot be timed together, which the simulated ones refuse too."""
    run = rig()
    run.step(2 * MS)
    with run.machine.on(Stream(0, device_index=1)):
        run.step(2 * MS)
        run.step(2 * MS)
    assert [step.forward_ns for step in run.told()] == [near(2 * MS)] * 3
    assert run.failures == []


def test_a_device_that_hangs_costs_neither_time_nor_memory(rig: Any) -> None:
    run = rig()
    run.machine.main.free_ns = 10**18
    for _ in range(400):
        before = run.machine.now_ns
        run.step(1 * MS)
        assert run.machine.now_ns - before < 40 * CALL_NS
    assert run.device.left_out == 400 - 256
    assert len(run.machine.events) < 8 * 260
    assert run.failures == []


def test_events_are_used_again(rig: Any) -> None:
    run = rig()
    for _ in range(1000):
        run.step(100 * US, fetch_ns=1 * MS)
    assert len(run.told()) == 1000
    assert len(run.machine.passes) >= 7 * 1000
    assert len(run.machine.events) < 2000  # a fifth of a second's steps at a time


def test_the_program_is_not_held_up(rig: Any) -> None:
    """It is asked of two steps whether they are done; and twice a second, on a dry stream, for some microseconds."""
    run = rig()
    for _ in range(1000):
        run.step(100 * US, fetch_ns=1 * MS)
    assert run.machine.queries < 2 * 1000 + 3 * 20
    run.machine.sleep(10**9)
    run.machine.launch(20 * MS)  # now it only seems dry: the optimizer was long done
    before = run.machine.now_ns
    run.step(1 * MS)
    assert run.machine.now_ns - before < 1 * MS  # of which some are for telling a fifth of a second of steps
    behind = rig()
    for _ in range(1000):
        behind.step(2 * MS)
    assert behind.machine.queries <= 2 * 1000  # never dry, it is not waited for


def test_few_steps_are_resolved_at_once_and_all_that_takes_is_recording(rig: Any) -> None:
    """No stall that other ranks would wait for: the longest time between two steps is that of eight steps' events."""
    run = rig()
    asked: list[int] = []
    for _ in range(1000):
        before = run.machine.now_ns
        run.step(100 * US)
        run.machine.synchronize()
        asked.append(run.machine.now_ns - before)
    assert max(asked) < 2 * min(asked)
    run.recorder.flush()
    assert run.recorder.hooks_ns == 0
    run.step(100 * US)
    calls = 6 * 2 * CALL_NS  # an event for each begin and end of a phase on the device, recorded and asked for its time
    assert run.recorder.hooks_ns == pytest.approx(calls, rel=0.5)


def test_an_error_ends_this_part_alone(rig: Any) -> None:
    run = rig()
    run.step(1 * MS)
    run.machine.fault = RuntimeError("CUDA error: device-side assert triggered")
    for _ in range(5):
        run.step(1 * MS)
    assert run.failures == [("device", "CUDA error: device-side assert triggered")]
    run.recorder.close(ended_well=True)
    assert run.recorder.step_number == 6


def test_where_cuda_is_not_started_nothing_stands_before_the_recorder(rig: Any) -> None:
    run = rig(initialized=False)
    run.step(1 * MS)
    assert not STOOD_BEFORE & set(vars(run.recorder))
    run.machine.initialized = True  # the program starts it in its first epoch
    run.step(1 * MS)
    run.step(1 * MS)
    assert set(vars(run.recorder)) >= STOOD_BEFORE
    assert [step.step for step in run.told()] == [2]


PRETENDING = """
import atexit, os, sys, time, types
import torch
import torch.distributed as dist
from torch import nn
from allpull.observe.hooks.torch import copies
from allpull.observe.hooks.imports import AfterImport
from allpull.observe.hooks.install import start

class Event:
    def __init__(self, enable_timing): self.at = None
    def record(self, stream): self.at = time.monotonic_ns()
    def query(self): return True
    def elapsed_time(self, other): return (other.at - self.at) / 1e6

torch.version.cuda = "12.8"
stream = types.SimpleNamespace(device_index=0, stream_id=0)
torch.cuda.Event, torch.cuda.current_stream = Event, lambda: stream
torch.cuda.Stream = lambda device: types.SimpleNamespace(device_index=device, stream_id=7)
torch.cuda.is_current_stream_capturing = torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
copies.ACCELERATOR = "meta"  # what this torch can copy to
start(os.environ["JOB"], AfterImport(print)).torch_imported()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
"""A program whose torch says that it has CUDA; its device passes every event at once."""


@pytest.fixture
def pretended(tmp_path: Path) -> Watched:
    """A training by real hooks, with DDP and a pretended device that passes all at once."""
    version = pytest.importorskip("torch").version
    if version.cuda or version.hip:
        pytest.skip("this torch was built for an accelerator, and wants events of its own")
    directory = tmp_path / "run"
    for folder in layout.FOLDERS:
        (directory / folder).mkdir(parents=True)
    job = directory / layout.SPEC
    JobFile(directory=str(directory), budget=1 << 24).write(str(job))
    program = tmp_path / "program.py"
    network = "model = nn.parallel.DistributedDataParallel(model)\n"
    loop = LOOP.replace("optimizer.zero_grad()", "x.to('meta'); dist.all_reduce(torch.ones(3)); optimizer.zero_grad()")
    end = "dist.destroy_process_group()\n"  # else Gloo's threads may abort the process as it ends
    program.write_text(PRETENDING + TRAINING.replace("optimizer =", network + "optimizer =") + loop + end)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "JOB": str(job), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Watched(code=done.returncode, out=done.stdout, err=done.stderr, directory=directory)


@pytest.mark.slow
def test_the_real_hooks_mark_real_steps(pretended: Watched) -> None:
    """On a device that does all at once its times are the host's: each step's events agree with its record."""
    assert (pretended.code, pretended.err) == (0, "")
    assert pretended.events("switched_off") == []
    steps, device = pretended.steps(), pretended.events("device_step")
    assert [step.step for step in device] == list(range(10)) == [step.step for step in steps]
    assert "device" in pretended.header().sources
    for host, step in zip(steps[1:], device[1:], strict=True):
        assert None not in (host.arrival_ns, host.done_ns, step.arrival_ns, step.done_ns)
        assert step.begin_ns <= step.arrival_ns <= step.done_ns <= step.end_ns
        inside = [
            step.begin_ns,
            host.begin_ns,
            host.arrival_ns,
            step.arrival_ns,
            host.done_ns,
            step.end_ns,
            host.end_ns,
        ]
        for earlier, later in itertools.pairwise(inside):  # as the hooks run, one after the other
            assert earlier <= later + step.bound_ns
        assert 0 < (step.forward_ns or 0) <= step.end_ns - step.begin_ns
        for (kind, number, begin, *_), called in zip(host.collectives, step.collectives, strict=True):
            assert called[:2] == [kind, number]
            assert begin <= called[2] + step.bound_ns
            assert called[4] <= host.end_ns + step.bound_ns
        assert None not in (host.copy_ns, step.copy_ns, step.input_ns, step.backward_ns, step.optimizer_ns)


@pytest.mark.slow
def test_a_torch_without_an_accelerator_has_none_of_it(watched: Watch) -> None:
    """Nothing is imported, nothing wrapped, nothing in the way of the recorder."""
    version = pytest.importorskip("torch").version
    if version.cuda or version.hip:
        pytest.skip("this torch was built for an accelerator")
    run = watched(
        TRAINING
        + LOOP
        + """
import gc, sys
assert not [name for name in sys.modules if name.startswith("_allpull.observe.hooks.device.timing")]
assert "_allpull.observe.hooks.torch.copies" not in sys.modules
assert "to" not in vars(torch.Tensor)
recorder, = [thing for thing in gc.get_objects() if type(thing).__name__ == "Recorder"]
assert not {"enter", "leave_until", "cut"} & set(vars(recorder))
"""
    )
    assert (run.code, run.err) == (0, "")
    assert "device" not in run.header().sources
    assert run.events("device_step") == run.events("switched_off") == []


KERNELS = st.lists(
    st.tuples(
        st.sampled_from([FORWARD, BACKWARD, OPTIMIZER, INPUT, COPY, None]),
        st.integers(0, 3 * MS),  # the kernel
        st.integers(CALL_NS, 2 * MS),  # the host's time for issuing it
        st.booleans(),  # whether the host waits then
    ),
    max_size=8,
)


@given(
    offset_ns=st.integers(-(10**15), 10**15),
    drift_ppm=st.floats(-99, 99),
    program=st.lists(KERNELS, min_size=2, max_size=6),
    pause_ns=st.sampled_from([0, MS, 10**9]),
)
def test_what_is_told_is_true(
    tmp_path_factory: pytest.TempPathFactory, offset_ns: int, drift_ppm: float, program: Any, pause_ns: int
) -> None:
    """Of any program on any clock: moments within their bound, phases within the step, busy and paced as they say."""
    directory = tmp_path_factory.mktemp("run")
    with on_machine(directory, offset_ns=offset_ns, drift_ppm=drift_ppm) as run:
        machine = run.machine
        ends, issuing = [], []
        for number in range(12):
            spans = []
            for place, kernel_ns, every_ns, waits in [*program[number % len(program)], (OPTIMIZER, 1000, 1000, False)]:
                marks_before = len(machine.passes)
                if place is not None:
                    depth = run.recorder.enter(place)
                if place != INPUT:
                    machine.launch(kernel_ns, 1, every_ns)
                else:
                    machine.sleep(every_ns)
                if waits:
                    machine.synchronize()
                if place is not None:
                    run.recorder.leave_until(depth)
                if len(machine.passes) > marks_before:
                    spans.append((machine.passes[marks_before], machine.passes[-1]))
            ends.append(machine.passes[-1])
            issuing.append(spans)
            run.end_step()
            machine.sleep(pause_ns)
        steps = run.told()
    assert run.failures == []
    assert [step.step for step in steps] == list(range(12))
    for step, begin, end, spans in zip(steps[1:], ends, ends[1:], issuing[1:], strict=False):
        assert None not in (step.begin_ns, step.end_ns, step.bound_ns, step.paced_ns)
        assert abs(step.end_ns - end) <= step.bound_ns
        assert abs(step.begin_ns - begin) <= step.bound_ns + (end - begin) // 10_000
        wall = step.end_ns - step.begin_ns
        few = 6 * US + wall // 5_000  # a launch, stamps, and drift within the step
        assert phases(step) <= wall + few
        empty = sum(last - first - worked(machine.main, first, last) for first, last in spans)
        lag = 8 * US * len(spans)  # an event is asked for some µs before an empty stream passes it
        assert empty <= step.paced_ns + lag + few
        if step.busy_ns is not None:
            busy = worked(machine.main, begin, end)
            assert busy - (step.copy_ns or 0) <= step.busy_ns + few
            assert step.busy_ns <= busy + wall * 0.1 + lag + step.bound_ns + few


def worked(stream: Stream, begin: int, end: int) -> int:
    """How much of this time a stream had work."""
    return sum(max(0, min(last, end) - max(first, begin)) for first, last in stream.worked)


@given(
    offset_ns=st.integers(-(10**15), 10**15),
    drift_ppm=st.floats(-100, 100),
    looks=st.lists(
        st.tuples(st.integers(0, 10**10), st.integers(0, 10**8), st.integers(0, 10**9)), min_size=1, max_size=40
    ),
)
def test_the_true_offset_is_within_the_bound(
    offset_ns: int, drift_ppm: float, looks: list[tuple[int, int, int]]
) -> None:
    """Each event is asked for, stamped and seen after waits of any length; the clocks drift as quartz does."""
    clock, now = DeviceClock(), 0
    for pause, queued, unseen in looks:
        now += pause
        position = offset_ns + round(now * (1 + drift_ppm / 1e6))
        clock.learn(position, asked_ns=now - queued, seen_ns=now + unseen)
        for then in (now, now + 10**9):
            position = offset_ns + round(then * (1 + drift_ppm / 1e6))
            offset = clock.offset_ns(position)
            assert abs(position + offset - then) <= clock.bound_ns(position, offset)


def test_a_dry_stream_shows_the_offset_to_microseconds() -> None:
    clock = DeviceClock()
    clock.learn(0, asked_ns=-5 * US, seen_ns=6 * US)
    clock.learn(10**9, asked_ns=10**9 - 10**8, seen_ns=10**9 + 10**8)  # one second on, the device is far behind
    assert clock.bound_ns(10**9, clock.offset_ns(10**9)) <= 11 * US + 2 * 100 * US + 2 * US
    clock.learn(2 * 10**9, asked_ns=2 * 10**9 - 5 * US, seen_ns=2 * 10**9 + 6 * US)
    assert clock.bound_ns(2 * 10**9, clock.offset_ns(2 * 10**9)) <= 13 * US


def test_a_clock_that_jumped_is_learned_anew() -> None:
    clock = DeviceClock()
    clock.learn(0, asked_ns=0, seen_ns=10 * US)
    clock.learn(10**9, asked_ns=10**12, seen_ns=10**12 + 10 * US)
    offset = clock.offset_ns(10**9)
    assert 10**9 + offset == pytest.approx(10**12, abs=clock.bound_ns(10**9, offset))
