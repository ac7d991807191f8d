"""The operators and kernels that take most of profiler windows, by name and by class of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from allpull.analyse.statistics import evenly
from allpull.errors import BadInput, RunDirError
from allpull.rundir import safe_open
from allpull.rundir.read.run import RunData
from allpull.schema.base import tag
from allpull.schema.gap import named_ranks
from allpull.schema.operators import (
    ClassTime,
    KernelResult,
    KernelTime,
    KernelWindow,
    Operator,
    OperatorSummary,
    WorkClass,
)
from allpull.traces.operators import Kind, Sums, self_times, work_times

MAX_BYTES = 64 << 20  # unpacked: a second or two
MOST = 15  # of each kind
WHERE: Mapping[Literal["device", "cpu"], tuple[Kind, ...]] = {"device": ("kernel", "copy"), "cpu": ("operator",)}
MOST_WINDOWS = 8  # of as many ranks, spread evenly: more say the same


def operator_summary(run: RunData) -> OperatorSummary | None:
    """Operators and kernels of the last window of the first rank that has one; None without a readable window."""
    rank, log = next(((rank, log) for rank, log in sorted(run.events.items()) if log.traces), (0, None))
    if log is None:
        return None
    window = log.traces[-1]
    try:
        root = safe_open.checked_directory(run.directory)
    except RunDirError:
        return None
    listed = [
        Operator(name=name, kind="kernel" if kind == "kernel" else "operator", calls=calls, self_s=self_s)
        for (kind, name), (calls, self_s) in self_times(root, window.file, MAX_BYTES).items()
    ]
    kept = []
    for kind in ("operator", "kernel"):
        kept += sorted((one for one in listed if one.kind == kind), key=lambda one: -one.self_s)[:MOST]
    if not kept:
        return None
    totals = {kind: sum(one.self_s for one in listed if one.kind == kind) for kind in ("operator", "kernel")}
    return OperatorSummary(rank=rank, first_step=window.first_step, steps=window.steps, total_s=totals, operators=kept)


def kernel_result(run: RunData) -> KernelResult:
    """The work in the last profiler window of each rank, of some ranks where there are many, by class and by name.

    Raises:
        BadInput: there is no window that can be read.
        RunDirError: the run directory cannot be opened.
    """
    windows = [
        KernelWindow(rank=rank, first_step=last.first_step, steps=last.steps, file=last.file)
        for rank, log in sorted(run.events.items())
        if log.traces
        for last in (log.traces[-1],)
    ]
    windows = evenly(windows, MOST_WINDOWS)
    if not windows:
        raise BadInput(
            f"{run.record.id} has no profiler window",
            hint="record some: allpull run --trace every=500,steps=3 -- COMMAND, or torch.profiler in your program",
        )
    times = [work_times(safe_open.checked_directory(run.directory), one.file, MAX_BYTES) for one in windows]
    read = [window for window, sums in zip(windows, times, strict=True) if sums]
    if not read:
        raise BadInput(
            f"no profiler window of {run.record.id} can be read: {windows[0].file} is missing, damaged or empty",
            hint="traces lie in the run directory; copy them along with it",
        )
    steps = sum(window.steps for window in read)
    unread = [window.rank for window, sums in zip(windows, times, strict=True) if not sums]
    notes = [f"the windows of {named_ranks(unread, len(unread))} could not be read"] if unread else []
    classes: list[ClassTime] = []
    top: list[KernelTime] = []
    for on, kinds in WHERE.items():
        of_kind = _joined([{work: sum_ for work, sum_ in sums.items() if work.kind in kinds} for sums in times])
        by_class, by_name = _per_step(of_kind, on, steps)
        classes += by_class
        top += by_name[:MOST]
    return KernelResult(schema=tag("kernels"), run=run.record.id, windows=read, classes=classes, top=top, notes=notes)


def _joined(each: list[Sums]) -> dict[tuple[WorkClass, str], tuple[int, float]]:
    """(class, name) → calls and seconds, summed over windows."""
    joined: dict[tuple[WorkClass, str], tuple[int, float]] = {}
    for sums in each:
        for work, (calls, seconds) in sums.items():
            before, so_far_s = joined.get((work.work, work.name), (0, 0.0))
            joined[work.work, work.name] = (before + calls, so_far_s + seconds)
    return joined


def _per_step(
    joined: Mapping[tuple[WorkClass, str], tuple[int, float]], on: Literal["device", "cpu"], steps: int
) -> tuple[list[ClassTime], list[KernelTime]]:
    """Classes and names with their time per step, the largest first; empty where no time passed."""
    total_s = sum(seconds for _, seconds in joined.values())
    if total_s <= 0:
        return [], []
    by_class: dict[WorkClass, tuple[int, float]] = {}
    for (work, _), (calls, seconds) in joined.items():
        before, so_far_s = by_class.get(work, (0, 0.0))
        by_class[work] = (before + calls, so_far_s + seconds)
    classes = [
        ClassTime(on=on, work=work, calls_per_step=calls / steps, s_per_step=seconds / steps, share=seconds / total_s)
        for work, (calls, seconds) in by_class.items()
    ]
    names = [
        KernelTime(
            on=on,
            work=work,
            name=name,
            calls_per_step=calls / steps,
            s_per_step=seconds / steps,
            share=seconds / total_s,
        )
        for (work, name), (calls, seconds) in joined.items()
    ]
    return sorted(classes, key=lambda one: -one.s_per_step), sorted(names, key=lambda one: -one.s_per_step)
