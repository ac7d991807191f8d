"""How long accelerators ran nothing of ours: by their own clocks, else by profiler windows, else by the driver.

Steps on a device have ``busy``, the time that its stream had work, collectives and copies aside; what is left of a step
is idle. While a rank evaluates, its device's work is not recorded, so that time is not known. A profiler window has
every kernel, of a few steps. The profiler slows the host down, and hardly its kernels: so what these took is compared
with the length of steps that were not profiled, where there are any. The driver's samples cover everything, roughly:
the share of a sampling period, up to a second, in which any kernel ran (NVML, ``nvmlDeviceGetUtilizationRates``), those
of other programs included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import epochs_of
from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.schema.idle import AcceleratorIdle, EpochIdle, IdleSource
from allpull.traces.kineto import read_window
from allpull.traces.trace import Trace

COVERS = 0.5  # of the epochs' time: device times that know less of it do not stand for it
MOST_WINDOWS = 4  # of as many ranks: each takes a second to read
MAX_BYTES = 64 << 20  # unpacked, of each
MAX_EPOCHS = 1000
ON_CPUS = "no accelerator was recorded: the ranks computed on CPUs"
NOTHING = (
    "accelerators were present, but neither their times, nor profiler windows, nor their utilisation were recorded"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """One epoch, or all steps where there is none: moments on the shared clock, in ns."""

    epoch: int | None
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idle:
    """How long accelerators were idle in one span, of the time that is known; in ns, summed over accelerators."""

    idle_ns: float
    known_ns: float


def accelerator_idle(aligned: AlignedRun) -> AcceleratorIdle:
    """The idle share of ``aligned``, mean over accelerators and epochs, with its source."""
    run = aligned.data
    has_device = aligned.on_device or not run.gpus.is_empty() or any(host.gpus for host in run.hosts)
    if not has_device:
        return _none(ON_CPUS)
    spans = _spans(aligned)
    if not spans:
        return _none("no step was recorded by all ranks")
    whole_ns = float(sum(span.end_ns - span.begin_ns for span in spans)) * run.record.ranks
    if aligned.on_device:
        by_span = [_on_device(aligned.steps, span) for span in spans]
        if sum(one.known_ns for one in by_span) >= COVERS * whole_ns:
            return _answer("device times", spans, by_span, whole_ns)
    window = _in_windows(aligned)
    if window is not None:
        share = window.idle_ns / window.known_ns
        return AcceleratorIdle(
            share=share, source="profiler windows", known=min(1.0, window.known_ns / whole_ns), epochs=[], reason=None
        )
    by_span = [_by_driver(aligned, span) for span in spans]
    if any(one.known_ns for one in by_span):
        return _answer("GPU utilisation", spans, by_span, whole_ns)
    return _none(NOTHING)


def _none(reason: str) -> AcceleratorIdle:
    return AcceleratorIdle(share=None, source=None, known=None, epochs=[], reason=reason)


def _answer(source: IdleSource, spans: Sequence[_Span], by_span: Sequence[_Idle], whole_ns: float) -> AcceleratorIdle:
    known_ns = sum(one.known_ns for one in by_span)
    epochs = [
        EpochIdle(epoch=span.epoch, share=one.idle_ns / one.known_ns if one.known_ns else None)
        for span, one in zip(spans, by_span, strict=True)
        if span.epoch is not None
    ]
    return AcceleratorIdle(
        share=sum(one.idle_ns for one in by_span) / known_ns,
        source=source,
        known=min(1.0, known_ns / whole_ns),
        epochs=epochs[-MAX_EPOCHS:],
        reason=None,
    )


def _spans(aligned: AlignedRun) -> list[_Span]:
    """The epochs that means are of; where none is complete, all steady steps together."""
    epochs = epochs_of(aligned).averaged
    if epochs:
        return [_Span(epoch=one.number, begin_ns=one.begin_ns, end_ns=one.end_ns) for one in epochs]
    numbers = aligned.steady.steps[aligned.steady.used]
    steps = aligned.steps.filter(pl.col("step").is_in(numbers.tolist()))
    if steps.is_empty():
        return []
    begin_ns, end_ns = steps.select(pl.col("begin_ns").min(), pl.col("end_ns").max()).row(0)
    return [_Span(epoch=None, begin_ns=begin_ns, end_ns=end_ns)]


def _on_device(steps: pl.DataFrame, span: _Span) -> _Idle:
    """By the times of steps on devices, of those whose middle is in ``span``; evaluations are left out."""
    middle = (pl.col("begin_ns") + pl.col("end_ns")) // 2
    inside = steps.filter((middle >= span.begin_ns) & (middle < span.end_ns) & pl.col("busy_ns").is_not_null())
    evaluated = pl.col("evaluation_ns").fill_null(0)
    others = (pl.col(name).fill_null(0) for name in ("collective_ns", "copy_ns", "exchange_ns"))
    running = pl.sum_horizontal("busy_ns", *others)
    known = pl.max_horizontal(pl.col("end_ns") - pl.col("begin_ns") - evaluated, pl.lit(0))
    sums = inside.select(known.sum().alias("known"), pl.max_horizontal(known - running, pl.lit(0)).sum().alias("idle"))
    known_ns, idle_ns = sums.row(0)
    return _Idle(idle_ns=float(idle_ns or 0), known_ns=float(known_ns or 0))


def _in_windows(aligned: AlignedRun) -> _Idle | None:
    """By the kernels and copies of the last profiler windows of some ranks; None where none shows a device."""
    run, idle_ns, known_ns, usual_ns = aligned.data, 0.0, 0.0, _usual_step_ns(aligned)
    try:
        root = safe_open.checked_directory(run.directory)
    except RunDirError:
        return None
    last = [log.traces[-1] for _, log in sorted(run.events.items()) if log.traces]
    for window in last[:MOST_WINDOWS]:
        idle = idle_in(read_window(root, window.file, MAX_BYTES))
        if idle is None:
            continue
        rested_ns, length_ns = idle
        undisturbed_ns = length_ns if usual_ns is None else usual_ns * window.steps
        idle_ns += max(0.0, undisturbed_ns - (length_ns - rested_ns))
        known_ns += undisturbed_ns
    return _Idle(idle_ns=idle_ns, known_ns=known_ns) if known_ns else None


def _usual_step_ns(aligned: AlignedRun) -> float | None:
    """The mean length of steps that were not profiled, ns; None where all were."""
    numbers = aligned.steady.steps[aligned.steady.used].tolist()
    steps = aligned.steps.filter(pl.col("step").is_in(numbers) & ~pl.col("tag_traced"))
    lengths = (steps["end_ns"] - steps["begin_ns"]).mean()
    return lengths if isinstance(lengths, float) else None


def idle_in(trace: Trace) -> tuple[int, int] | None:
    """For how long the device of ``trace`` ran neither kernel nor copy, and of how long, in ns; None: no device in it.

    The window is that of the profiler's steps; without those, from the first event of the device to its last.
    """
    running = trace.kernels.stretches() | trace.copies.stretches() | trace.exchanging
    if not trace.on_device or not running:
        return None
    steps = [one for one in trace.annotations if one.mark == "step"]
    begin_ns = min((one.begin_ns for one in steps), default=int(running.begin[0]))
    end_ns = max((one.end_ns for one in steps), default=int(running.end[-1]))
    if end_ns <= begin_ns:
        return None
    return end_ns - begin_ns - running.within(begin_ns, end_ns).total_ns, end_ns - begin_ns


def _by_driver(aligned: AlignedRun, span: _Span) -> _Idle:
    """By the samples of drivers: of each host as many devices as it has ranks, those that were busiest."""
    run, alignment = aligned.data, aligned.clock.alignment
    local_ranks = Counter(header.host for header in run.headers.values())
    idle_ns, known_ns, length_ns = 0.0, 0.0, span.end_ns - span.begin_ns
    for (host,), samples in run.gpus.drop_nulls("busy_share").group_by("host", maintain_order=True):
        if alignment is not None and host not in alignment:
            continue
        times = samples["t_ns"].to_numpy()
        shared = times if alignment is None else alignment.aligned_ns(str(host), times)
        inside = samples.filter(pl.Series((shared >= span.begin_ns) & (shared < span.end_ns)))
        busy = inside.group_by("gpu").agg(pl.col("busy_share").mean())["busy_share"].sort(descending=True)
        for share in busy.head(local_ranks[str(host)]):
            idle_ns, known_ns = idle_ns + (1.0 - share) * length_ns, known_ns + length_ns
    return _Idle(idle_ns=idle_ns, known_ns=known_ns)
