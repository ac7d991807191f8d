"""Epoch times, time to solution and reading as words and rows, alike on a terminal and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allpull.report.wording import ABSENT, labels, percent, rate, times
from allpull.schema.epochs import AccuracyTime, EpochTime
from allpull.schema.precision import PrecisionRatio
from allpull.schema.reading import IoWindow
from allpull.schema.results import RunMetrics
from allpull.units import counted, show_count, show_time

PARTS = ("training", "evaluation", "checkpoint", "start", "other")
PART_TITLES = (
    "Training is the time from the first batch to the last step of an epoch, start that until the last rank has its "
    "first batch, other that after the last step. Evaluations and checkpoints count while any rank is in one. "
    "The first epoch is not in the mean."
)
LEFT_OUT = (
    "warm-up, the first step of each epoch and those with an evaluation or a checkpoint, with all else that these "
    "steps take"
)
APART = 0.9  # of the rate of steady steps: a lower rate is another number
METRICS = {"test_top1": "top-1", "test_map": "mean average precision"}
COLUMNS = ("epoch", *PARTS, "to solution", "speed-up")


def rows(runs: Sequence[RunMetrics]) -> tuple[list[str], list[list[str]]]:
    """The columns and a row per run that has epochs, labelled; a column that would be empty or 0 is left out."""
    known = [(label, run) for label, run in zip(labels(runs), runs, strict=True) if run.epoch_s is not None]
    cells = [[label, *_cells(run)] for label, run in known]
    kept = [at for at in range(1 + len(COLUMNS)) if at < 2 or any(row[at] not in {ABSENT, "0 s"} for row in cells)]
    titles = ("run", *COLUMNS)
    return [titles[at] for at in kept], [[row[at] for at in kept] for row in cells]


def _cells(run: RunMetrics) -> Iterator[str]:
    if run.epoch_s is None:
        return
    yield _total(run.epoch_s)
    yield from (show_time(getattr(run.epoch_s, part)) for part in PARTS)
    yield ABSENT if run.time_to_solution_s is None else show_time(run.time_to_solution_s)
    speedup = None if run.epoch_speedup is None else run.epoch_speedup.epoch
    yield times(None if speedup is None else speedup.value)


def _total(epoch: EpochTime) -> str:
    interval = epoch.interval
    if interval is None or interval.high is None:
        return show_time(epoch.total)
    return f"{show_time(epoch.total)} ± {show_time(interval.high - interval.value)}"


def sentences(run: RunMetrics) -> Iterator[str]:
    """The epochs of one run, its time to solution, its rates, and what does not count."""
    if run.epoch_s is not None:
        yield from _epoch(run.epoch_s)
    if run.training_samples_per_s is not None and run.overall_samples_per_s is not None:
        trained, overall = show_count(run.training_samples_per_s), show_count(run.overall_samples_per_s)
        yield f"{trained} samples/s while training, {overall} samples/s over whole epochs."
        if run.throughput is not None and run.training_samples_per_s < APART * run.throughput.value:
            yield f"The {show_count(run.throughput.value)} samples/s of steady steps leave out {LEFT_OUT}."
    if run.time_to_solution_s is not None:
        solved = show_time(run.time_to_solution_s)
        yield f"Time to solution: {solved}, from the begin of the first epoch to the end of the last."
    if run.time_to_accuracy is not None:
        yield _accuracy(run.time_to_accuracy)
    if run.epoch_notes and (run.epoch_s is not None or (run.observed is not None and run.observed.epochs)):
        yield f"Epochs: {'; '.join(run.epoch_notes)}."
    elif run.epoch_notes:
        yield f"{run.epoch_notes[0].capitalize()}."


def whole_epochs(run: RunMetrics) -> str | None:
    """The rate over whole epochs, where it is far below that of steady steps; otherwise None."""
    overall = run.overall_samples_per_s
    if overall is None or run.throughput is None or overall >= APART * run.throughput.value:
        return None
    return f"over whole epochs: {show_count(overall)} samples/s"


def _epoch(epoch: EpochTime) -> Iterator[str]:
    spread = "" if epoch.epochs < 2 else f", {show_time(epoch.shortest)} to {show_time(epoch.longest)}"
    parts = ", ".join(
        f"{part} {show_time(seconds)} ({_share(seconds / epoch.total)})"
        for part in PARTS
        if (seconds := getattr(epoch, part)) > 0 and epoch.total > 0
    )
    yield f"An epoch takes {_total(epoch)} ({counted(epoch.epochs, 'epoch')}{spread}): {parts}."
    if epoch.first is not None and epoch.epochs < len(epoch.each):
        start = f", {show_time(epoch.first.start)} of it to its first batch" if epoch.first.start > 0 else ""
        yield f"The first epoch, not in this mean, took {show_time(epoch.first.total)}{start}."


def _share(share: float) -> str:
    """A share of an epoch, without digits that tell nobody anything.

    >>> _share(5.9e-9)
    'under 0.1 %'
    """
    return "under 0.1 %" if share < 0.001 else percent(share)


def _accuracy(reached: AccuracyTime) -> str:
    what = f"A test {METRICS.get(reached.metric, reached.metric)} of {percent(reached.wanted)}"
    if reached.epoch is None:
        return f"{what} was not reached; the best was {percent(reached.best)}."
    after = "a time that is not known" if reached.time_s is None else show_time(reached.time_s)
    return f"{what} was reached after {after}, in epoch {reached.epoch} (the first is 0)."


def precision_rows(ratios: Sequence[PrecisionRatio]) -> list[list[str]]:
    """A row per precision and size: what over what, ranks, ratio, 95 % interval."""
    return [
        [
            f"{one.precision} over {one.over}",
            f"{one.ranks:,}",
            times(one.ratio.value),
            ABSENT if one.ratio.low is None else f"{times(one.ratio.low)} to {times(one.ratio.high)}",
        ]
        for one in ratios
    ]


def window_rows(windows: Sequence[IoWindow]) -> list[list[str]]:
    """A row per window: its name and length, bytes/s, reads/s, from storage, bytes and reads per sample."""
    return [
        [
            f"{one.name}, {show_time(one.seconds)}",
            rate(one.read_bytes_per_s),
            ABSENT if one.reads_per_s is None else show_count(one.reads_per_s),
            rate(one.storage_read_bytes_per_s),
            rate(per_sample(one.read_bytes, one.samples)).removesuffix("/s"),
            ABSENT if (reads := per_sample(one.reads, one.samples)) is None else f"{reads:.3g}",
        ]
        for one in windows
    ]


def per_sample(amount: float | None, samples: int | None) -> float | None:
    """``amount`` for each of ``samples``; None where one is not known, or there are none."""
    return None if amount is None or not samples else amount / samples
