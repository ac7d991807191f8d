"""The metrics of one run, and the details that a report adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse import learning
from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.call_statistics import call_statistics
from allpull.analyse.collectives.traced_buckets import summary
from allpull.analyse.coverage import epochs as epochs_begun
from allpull.analyse.coverage import observed, recording_overhead
from allpull.analyse.epochs import times
from allpull.analyse.epochs.parts import Epochs, epochs_of, wanted_accuracy
from allpull.analyse.host_load import other_share
from allpull.analyse.io import steady_rates
from allpull.analyse.io.windows import with_windows
from allpull.analyse.iterable_samples import gaps_of_iterable_samples
from allpull.analyse.programs import precision
from allpull.analyse.replicas import gaps_of_replicas, replicas
from allpull.analyse.same_samples import gaps_of_same_samples
from allpull.analyse.statistics import evenly
from allpull.analyse.steps import throughput
from allpull.analyse.steps.device import on_device
from allpull.analyse.steps.grid import arrange, walls
from allpull.analyse.steps.pauses import pauses, some_rank_goes_on, waits
from allpull.analyse.steps.steady import NOT_ON_ALL_RANKS, SteadySteps
from allpull.rundir.read.linked_files import linked_files
from allpull.rundir.read.run import RunData
from allpull.rundir.read.steps import spans
from allpull.schema.gap import Gap, texts
from allpull.schema.reading import Io
from allpull.schema.results import CollectiveUse, Pause, RunDetail, RunMetrics, Steady

MAX_STEP_TIMES = 2000  # enough for a distribution that a page can show


def metrics(aligned: AlignedRun, accuracy: float | None = None) -> RunMetrics:
    """All metrics of one run; speed-up and efficiency need a second run and are left None (``analyse.scaling``).

    ``accuracy``: the test accuracy, a fraction, that ``time_to_accuracy`` is of; None: that at which the training was
    told to stop, if it was.
    """
    run, steady = aligned.data, aligned.steady
    ranks = run.record.ranks
    numbers = steady.steps[steady.used]
    of_steps, gaps_of_phases = _of_steps(aligned, numbers)
    windows = aligned.buckets
    copies = replicas(run.events)
    epochs = epochs_of(aligned)
    reading = with_windows(steady_rates.reading(run.counters, _windows(run.steps, numbers), ranks), aligned, epochs)
    return RunMetrics(
        run=run.record.id,
        name=run.record.name,
        directory=run.shown_directory,
        status=run.record.status,
        ranks=ranks,
        hosts=len({header.host for header in run.headers.values()} or set(run.record.hosts)),
        global_batch=run.record.global_batch,
        steady=Steady(used=int(numbers.size), left_out=steady.left_out),
        io=reading,
        overhead=recording_overhead(run.steps),
        accuracy=learning.last_value(run.events, "test_top1"),
        accuracy_top5=learning.last_value(run.events, "test_top5"),
        speedup=None,
        speedup_interval=None,
        efficiency=None,
        efficiency_interval=None,
        gaps=texts(
            [
                *run.gaps,
                *_gaps_of_rates(steady, has_rate=of_steps["throughput"] is not None),
                *gaps_of_phases,
                *windows.gaps,
                *_gaps_of_reading(run, reading, compares=aligned.clock.compares),
                *_gaps_of_accuracy(run),
                *gaps_of_replicas(copies),
                *gaps_of_same_samples(aligned.same_samples),
                *gaps_of_iterable_samples(aligned.iterable_samples),
            ]
        ),
        clock_error_s=aligned.clock.bound_s,
        replicas=copies,
        observed=observed(run, numbers),
        collectives=_collectives(aligned, numbers),
        pauses=_pauses(aligned),
        buckets=summary(windows, on_device(run.steps, run.events)) if windows.read else None,
        precision=precision(run),
        **of_steps,
        **_times(aligned, epochs, wanted_accuracy(aligned) if accuracy is None else accuracy),
    )


def _of_steps(aligned: AlignedRun, numbers: NDArray[np.int64]) -> tuple[dict[str, Any], tuple[Gap, ...]]:
    """The fields of ``RunMetrics`` that are means over the steps ``numbers``, and what is not known of their phases."""
    grid = arrange(aligned.steps, numbers, aligned.data.record.ranks, aligned.reductions)
    split = aligned.phases(grid, numbers)
    fields = {
        "samples_per_rank_step": throughput.samples_per_rank_step(grid),
        "throughput": throughput.throughput(grid),
        "step_s": throughput.step_time(grid),
        "phases": split.means_s(),
        "closure_error": split.closure_error,
    }
    return fields, split.gaps


def _times(aligned: AlignedRun, epochs: Epochs, wanted: float | None) -> dict[str, Any]:
    """The fields of ``RunMetrics`` that are of epochs; ``wanted``: the accuracy whose time is looked up."""
    training_rate, overall_rate = times.rates(epochs)
    return {
        "epoch_s": times.epoch_time(epochs),
        "time_to_solution_s": times.time_to_solution_s(epochs),
        "time_to_accuracy": None if wanted is None else times.time_to_accuracy(aligned, epochs, wanted),
        "training_samples_per_s": training_rate,
        "overall_samples_per_s": overall_rate,
        "epoch_notes": list(epochs.notes),
    }


def _collectives(aligned: AlignedRun, steps: NDArray[np.int64]) -> list[CollectiveUse] | None:
    """The collectives that the program calls in ``steps``; None where they were not recorded one by one."""
    run = aligned.data
    if run.collectives.is_empty() and not run.steps["collective_ns"].count():
        return None
    return call_statistics(aligned.matched, steps, run.record.ranks, slack_ns=aligned.clock.slack_ns)


def _pauses(aligned: AlignedRun) -> list[Pause]:
    """Evaluations and checkpoints; where other ranks waited meanwhile is unknown if no arrivals were recorded."""
    run, ranks = aligned.data, aligned.data.record.ranks
    if not any(log.spans for log in run.events.values()):
        return []
    recorded = not aligned.matched.calls.is_empty() or aligned.steps["arrival_ns"].count() > 0
    known = recorded and aligned.clock.compares and some_rank_goes_on(run.events, ranks)
    waited = waits(aligned.reductions, aligned.matched, ranks) if known else None
    return pauses(run.events, waited, aligned.clock, ranks=ranks, epochs=epochs_begun(run))


def detail(aligned: AlignedRun, metrics: RunMetrics) -> RunDetail:
    """What a report shows of a run besides its ``metrics``, to which the caller may have added the speed-up."""
    run, steady = aligned.data, aligned.steady
    record = run.record
    times_s = walls(run.steps, steady.steps[steady.used], record.ranks).mean(axis=1)
    return RunDetail(
        metrics=metrics,
        created_utc=record.created_utc,
        command=record.command,
        seed=record.seed,
        threads_per_rank=record.threads_per_rank,
        versions=record.versions,
        git=record.git,
        environment=record.environment,
        hosts=list(run.hosts),
        step_times_s=evenly(times_s.tolist(), MAX_STEP_TIMES),
        curves=learning.curves(run.events),
        exit=record.exit,
        other_cpu_share=other_share(run, _of_hosts(run, steady.steps)),
        linked_files=linked_files(run.directory),
    )


def _of_hosts(run: RunData, steps: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
    """First begin and last end of these steps on each host, in ns."""
    spans: dict[str, tuple[int, int]] = {}
    for rank, begin_ns, end_ns in _windows(run.steps, steps).select("rank", "begin_ns", "end_ns").iter_rows():
        if rank in run.headers:
            known = spans.get(run.headers[rank].host, (begin_ns, end_ns))
            spans[run.headers[rank].host] = (min(known[0], begin_ns), max(known[1], end_ns))
    return spans


def _windows(records: pl.DataFrame, steps: NDArray[np.int64]) -> pl.DataFrame:
    """First begin and last end of these steps on each rank, in ns: columns rank, begin_ns, end_ns."""
    return spans(records, np.isin(records["step"].to_numpy(), steps))


def _gaps_of_rates(steady: SteadySteps, *, has_rate: bool) -> Iterator[Gap]:
    if not steady.steps.size:
        yield Gap(kind="rates", text="no step was recorded by any rank: no rates")
    elif not steady.used.any():
        if set(steady.left_out) == {NOT_ON_ALL_RANKS}:
            yield Gap(kind="rates", text="no step was recorded by all ranks: no rates")
        else:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in steady.left_out.items())
            yield Gap(
                kind="rates",
                text=f"no steady step is left: no rates ({reasons}); more steps per epoch or more epochs leave some",
            )
    elif not has_rate:
        yield Gap(kind="rates", text="samples of some steps were not recorded: no throughput")


def _gaps_of_reading(run: RunData, io: Io, *, compares: bool) -> Iterator[Gap]:
    if run.counters.is_empty():
        yield Gap(kind="reading", text="no counters were recorded: reading is not measured")
        return
    if io.read_bytes_per_s is None:
        yield Gap(
            kind="reading",
            text="not every rank has two counter samples within its steady steps: reading is not measured",
        )
    if not io.windows and compares:
        yield Gap(kind="reading", text="counters miss half of the steps, or more: reading per sample is not measured")


def _gaps_of_accuracy(run: RunData) -> Iterator[Gap]:
    for name in ("test_top1", "test_map"):
        values = learning.metrics_named(run.events, name)
        if values and values[-1].value is None:
            yield Gap(kind="accuracy", text=f"{name} of the last evaluation is null: it could not be computed")
