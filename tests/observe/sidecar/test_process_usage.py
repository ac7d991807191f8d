"""What a rank's processes did is neither lost nor counted twice when one of them ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from allpull.observe.sidecar.process_usage import INHERITED, KEPT, Key, ProcessSample, ProcessUsage
from allpull.schema.counters import RankCounters


@dataclass
class Process:
    """A process as Linux accounts for it: ``io`` holds what reaped children did too, ``switches`` only its own."""

    key: Key
    parent: Process | None
    io: int = 0
    switches: int = 0
    alive: bool = True


@dataclass
class Kernel:
    """One rank with its descendants; an independent model of fork, exit and reaping."""

    processes: list[Process] = field(default_factory=list)
    done_io: int = 0
    done_switches: int = 0
    orphans: bool = False

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def fork(self, parent: Process | None) -> None:
        self.processes.append(Process((100 + len(self.processes), float(len(self.processes))), parent))

    def work(self, process: Process, amount: int) -> None:
        process.io += amount
        process.switches += 1
        self.done_io += amount
        self.done_switches += 1

    def exit(self, process: Process) -> None:
        process.alive = False
        if process.parent is not None:
            process.parent.io += process.io  # wait_task_zombie
        for child in self.living():
            if child.parent is process:
                child.parent = None  # init adopts it
                self.orphans = True

    def look(self) -> list[ProcessSample]:
        return [
            ProcessSample(
                process.key,
                process.parent.key if process.parent else None,
                7,
                {"read_bytes": process.io, "switches": process.switches},
            )
            for process in self.living()
        ]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["fork", "work", "work", "exit", "look"]), st.integers(0, 20), st.integers(0, 1000)),
    max_size=40,
)


def run(kernel: Kernel, operation: tuple[str, int, int], *, spare_root: bool) -> None:
    what, which, amount = operation
    living = kernel.living()
    if not living or (spare_root and what == "exit" and which % len(living) == 0):
        return
    process = living[which % len(living)]
    if what == "fork":
        kernel.fork(process)
    elif what == "work":
        kernel.work(process, amount)
    elif what == "exit":
        kernel.exit(process)


@given(OPERATIONS)
def test_figures_never_fall_and_never_pass_what_was_done(operations: list[tuple[str, int, int]]) -> None:
    kernel, usage, before = Kernel(), ProcessUsage(), {"read_bytes": 0, "switches": 0}
    kernel.fork(None)
    for operation in operations:
        run(kernel, operation, spare_root=False)
        if operation[0] == "look":
            figures = usage.update(kernel.look()).get(7)
            if figures is None:
                continue
            for name, done in (("read_bytes", kernel.done_io), ("switches", kernel.done_switches)):
                value = figures[name]
                assert value is not None
                assert before[name] <= value <= done
                before[name] = value


@given(OPERATIONS)
def test_io_is_exact_while_parents_outlive_their_children(operations: list[tuple[str, int, int]]) -> None:
    kernel, usage = Kernel(), ProcessUsage()
    kernel.fork(None)
    for operation in operations:
        run(kernel, operation, spare_root=True)
        if operation[0] == "look" and not kernel.orphans:
            assert usage.update(kernel.look())[7]["read_bytes"] == kernel.done_io


@given(OPERATIONS)
def test_all_is_exact_when_every_end_is_looked_at(operations: list[tuple[str, int, int]]) -> None:
    kernel, usage = Kernel(), ProcessUsage()
    kernel.fork(None)
    usage.update(kernel.look())
    for operation in operations:
        run(kernel, ("look", 0, 0), spare_root=False)
        usage.update(kernel.look())
        run(kernel, operation, spare_root=False)
        figures = usage.update(kernel.look())[7]
        assert (figures["read_bytes"], figures["switches"]) == (kernel.done_io, kernel.done_switches)
        assert figures["processes"] == len(kernel.living())


def sample(pid: int, start: float, parent: Key | None = None, rank: int = 0, **figures: int | None) -> ProcessSample:
    return ProcessSample((pid, start), parent, rank, dict(figures))


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    usage = ProcessUsage()
    usage.update([sample(10, 1.0, read_bytes=500)])
    assert usage.update([sample(10, 2.0, read_bytes=3)])[0]["read_bytes"] == 503


def test_ranks_do_not_mix() -> None:
    usage = ProcessUsage()
    usage.update([sample(10, 1.0, rank=0, read_bytes=5), sample(11, 1.0, rank=1, read_bytes=7)])
    figures = usage.update([sample(11, 1.0, rank=1, read_bytes=8)])
    assert (figures[0]["read_bytes"], figures[0]["processes"]) == (5, 0)
    assert (figures[1]["read_bytes"], figures[1]["processes"]) == (8, 1)


def test_what_could_not_be_read_is_none_and_not_zero() -> None:
    figures = ProcessUsage().update([sample(10, 1.0, read_bytes=None, threads=2)])[0]
    assert figures["threads"] == 2
    assert all(figures[name] is None for name in (*INHERITED, *KEPT, "memory_bytes"))


def test_what_could_not_be_read_this_time_is_what_it_was() -> None:
    usage = ProcessUsage()
    usage.update([sample(10, 1.0, cpu_ns=9, threads=2), sample(11, 1.0, (10, 1.0), cpu_ns=1)])
    figures = usage.update([sample(10, 1.0), sample(11, 1.0, (10, 1.0), cpu_ns=2)])[0]
    assert (figures["cpu_ns"], figures["threads"]) == (11, None)


def test_figures_are_those_of_the_schema() -> None:
    figures = ProcessUsage().update([sample(10, 1.0)])[0]
    assert set(figures) == set(RankCounters.model_fields)
    RankCounters.model_validate(figures, strict=True)
