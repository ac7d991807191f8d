"""The observations of one run on a terminal: its collectives, spans between steps, and how each is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from allpull.report import epoch_layout, idle_text
from allpull.report.pop_layout import sentences
from allpull.report.printable import printable, short
from allpull.report.terminal import table
from allpull.report.terminal.epochs import epoch_table, precision_table, reading_over_time
from allpull.report.terminal.pop import pop_table
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, joined, percent, rate, without_steps
from allpull.schema.reported import ProgramTable, ScalingReport
from allpull.schema.results import BucketTime, CollectiveUse, Observed, Pause, RunMetrics
from allpull.schema.steps import ROLLOUTS
from allpull.units import counted, show_bytes, show_count, show_time

WIDE = 76  # columns from which the table of collectives fits
MOST_DESCRIBED = 6  # runs; of more, each has a line in a table, and a program one sentence
MOST_ROWS = 8  # collectives that are shown; the others are summed
MOST_RANKS = 3  # named in a sentence
ACCUMULATES = 1.01  # backward passes per step above which gradients accumulate
MUCH = 0.1  # of a step: below it, nobody asks what other is
BOUNDARIES = {
    "parameter.update": "updates of parameters, which no torch.optim.Optimizer made",
    "gradient.clear": "cleared gradients, because no torch.optim.Optimizer stepped",
    "zero_grad": "zero_grad, because no step of an optimizer was observed",
    "loader.next": "the next batch after a backward pass, because no update of parameters was observed",
    "backward": "each backward pass, because no update of parameters was observed",
}
LEFT_OUT = {"ragged": "short last batch"}
PARTS = {
    "marks": "marks of the program",
    "loaders": "loaders",
    "arrays": "tensors made of arrays",
    "networks": "forward",
    "gradients": "backward",
    "optimizers": "optimizers",
    "scalers": "gradient scalers",
    "collectives": "collectives",
    "post-accumulate-hook": "arrivals of gradients",
    "buckets": "buckets of DDP",
    "DDP settings": "settings of DDP",
    "input shapes": "shapes of input",
    "replicas": "digests of replicas",
    "windows": "profiler windows",
    "device": "events on the accelerator",
    "loader workers": "times of loader workers",
    "stalls": "stalls (garbage collection, compilation, CUDA allocator)",
    "notes": "calls of steady steps",
}
"""What each part of observation records, in the order of a step; importers name their sources themselves."""


def page(report: ScalingReport) -> RenderableType:
    """The output of ``allpull show``: a table per program, its meaning and what is missing.

    A single run is shown in detail; of many there is a line for each, and little else.
    """
    tables: list[ProgramTable] = [report, *report.others]
    is_brief = sum(len(one.show.runs) for one in tables) > MOST_DESCRIBED
    parts = [part for one in tables for part in _of_program(one, is_brief=is_brief)]
    if report.without_steps:
        lines = [without_steps(one) for one in report.without_steps]
        parts += [Text(), "Without a step, in no table:", bullets(lines)]
    if report.damaged:
        parts += [Text(), "Not readable:", bullets(report.damaged)]
    return Group(*parts)


def _of_program(report: ProgramTable, *, is_brief: bool) -> list[RenderableType]:
    show = report.show
    parts: list[RenderableType] = []
    if report.program:
        parts += [Text(), Text(printable(report.program), style="bold underline")]
    is_alone = len(show.runs) == 1 and not is_brief and not report.program
    parts.append(table.table(show, with_phases=not is_brief and not is_alone))
    if is_alone:
        parts += [table.phases(show), observations(show.runs[0])]
    tables = [] if len(show.runs) < 2 else [precision_table(show), epoch_table(show), pop_table(show)]
    parts += [part for one in tables if one is not None for part in (Text(), one)]
    shown_above = 1 if is_alone and show.runs[0].throughput is not None else 0  # the headline repeats both tables
    parts.append(bullets(report.words[:1] if is_brief else report.words[shown_above:]))
    missing = [f"{run.run}: {gap}" for run in show.runs for gap in run.gaps]
    if is_brief and missing:
        short_of = counted(sum(1 for run in show.runs if run.gaps), "run")
        missing = [f"{counted(len(missing), 'gap')} in the records of {short_of}: allpull show RUN lists them"]
    if show.notes or missing:
        parts += ["Note:", bullets([*show.notes, *missing])]
    return parts


def observations(run: RunMetrics) -> RenderableType:
    """The collectives of ``run`` and, in sentences, other observations; empty if there are none."""
    return _Seen(run)


def name_of(use: CollectiveUse) -> str:
    """The readable name of a collective: ``broadcast in forward``."""
    inside = f" in {short(use.inside, 20)}" if use.inside else ""
    return f"{short(use.op, 40)}{inside}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The observations, laid out for the width of the console."""

    run: RunMetrics

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        uses = self.run.collectives or []
        if uses and options.max_width >= WIDE:
            yield Text()
            yield _table(uses)
        lines = list(_sentences(self.run))
        if options.max_width < WIDE:
            lines = [*(_sentence(use) for use in uses[:MOST_ROWS]), *lines]
        if lines:
            yield Text()
            yield bullets(lines)


def _table(uses: Sequence[CollectiveUse]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    result.add_column("collective", overflow="fold", style="bold")
    for title in ("size", "per step", "wait", "transfer", "algbw", "busbw"):
        result.add_column(title, justify="right", overflow="fold")
    for use in uses[:MOST_ROWS]:
        result.add_row(Text(name_of(use)), *(Text(cell) for cell in _cells(use)))
    remaining = uses[MOST_ROWS:]
    if remaining:
        blocked_s = sum(use.blocked_s_per_step for use in remaining)
        result.add_row(Text(f"{len(remaining):,} more, blocked {show_time(blocked_s)} per step in all"))
    return result


def _cells(use: CollectiveUse) -> Iterator[str]:
    yield show_bytes(use.size_bytes) if use.size_bytes else ABSENT
    yield show_count(use.calls_per_step) if use.steady else "between"
    yield _time(use.wait_s)
    yield _time(use.transfer_s)
    yield rate(use.algbw_bytes_per_s)
    yield rate(use.busbw_bytes_per_s)


def _sentence(use: CollectiveUse) -> str:
    often = f"{show_count(use.calls_per_step)} per step" if use.steady else "between steps"
    size = f" of {show_bytes(use.size_bytes)}" if use.size_bytes else ""
    return f"{name_of(use)}{size}, {often}: wait {_time(use.wait_s)}, transfer {_time(use.transfer_s)}"


def _sentences(run: RunMetrics) -> Iterator[str]:
    yield from _amount(run)
    yield from epoch_layout.sentences(run)
    yield from _unknown_input(run)
    for pause in run.pauses:
        yield _pause(pause, run.ranks)
    if run.buckets:
        yield _buckets(run.buckets)
    idle = idle_text.sentence(run.idle)
    if idle:
        yield idle
    if run.pop is not None and run.ranks > 1:
        yield from sentences(run.pop)
    if run.io.read_bytes_per_s is not None:
        yield _reading(run)
    yield from _reading_per_sample(run)
    if run.observed and run.observed.energy_j_per_epoch is not None:
        yield f"The accelerators used {show_count(run.observed.energy_j_per_epoch)} J per epoch."
    unmatched = sum(use.unmatched for use in run.collectives or [])
    if unmatched:
        calls = sum(use.calls for use in run.collectives or [])
        yield f"{unmatched:,} of {calls:,} calls of collectives could not be matched across ranks."
    if run.clock_error_s:
        whose = "the ranks" if run.ranks > 1 else "host and accelerator"
        bound = show_time(run.clock_error_s)
        yield f"The clocks of {whose} agree to within {bound}: waits are uncertain by as much."
    if run.observed and run.observed.boundary:
        sources = f"; observed: {_parts(run.observed.sources)}" if run.observed.sources else ""
        yield f"Steps end at {BOUNDARIES.get(run.observed.boundary, run.observed.boundary)}{sources}."


def _parts(names: Sequence[str]) -> str:
    """Parts of observation by what they record.

    >>> _parts(["stalls", "networks", "torch.profiler"])
    'forward, stalls (garbage collection, compilation, CUDA allocator) and torch.profiler'
    """
    known = [PARTS[name] for name in PARTS if name in names]
    return joined([*known, *sorted(name for name in names if name not in PARTS)])


def _amount(run: RunMetrics) -> Iterator[str]:
    observed = run.observed
    if observed is None or not observed.steps:
        return
    samples = "" if observed.samples is None else f", {observed.samples:,} samples"
    if samples and not observed.epochs:  # from no loader
        samples += " (rows of the first tensor that the network was given)"
    left_out = ", ".join(
        f"{count:,} {LEFT_OUT.get(reason, reason.replace('_', ' '))}" for reason, count in run.steady.left_out.items()
    )
    steady = f"; {run.steady.used:,} steady" + (f", left out: {left_out}" if left_out else "")
    epochs = f" in {counted(observed.epochs, 'epoch')}" if observed.epochs else ""
    if (observed.steps_made or 0) > observed.steps:  # the others were thinned, or not to be observed
        steps = f"{observed.steps:,} of {counted(observed.steps_made or 0, 'step')} were recorded"
        samples = samples and f"{samples} in them"
        yield f"{steps},{epochs}{samples}{steady}."
    else:
        yield f"{counted(observed.steps, 'step')}{epochs}{samples}{steady}."
    if observed.skipped_steps:
        yield f"{counted(observed.skipped_steps, 'step')} skipped, because a gradient was not finite."
    if observed.backward_passes is not None and observed.backward_passes > ACCUMULATES:
        yield f"A steady step has {show_count(observed.backward_passes)} backward passes, on average over ranks."
    yield from _named(observed)
    if observed.stopped_parts:
        yield f"Not observed to the end: {_parts(observed.stopped_parts)}."


def _unknown_input(run: RunMetrics) -> Iterator[str]:
    """A program that is observed to have no loader, where much time is not explained."""
    other_s, step_s = run.phases.get("other"), sum(filter(None, run.phases.values()))
    looked = run.observed is not None and "loaders" in run.observed.sources
    if looked and run.phases.get("input") is None and other_s and other_s >= MUCH * step_s:
        share = percent(other_s / step_s)
        yield f"No loader was used: batches that the program makes itself are part of other ({share})."


def _named(observed: Observed) -> Iterator[str]:
    rollouts = {name: s for name, s in observed.named.items() if name in ROLLOUTS}
    if rollouts:
        spent = joined([f"{name} {show_time(s)}" for name, s in rollouts.items()])
        be = "is" if len(rollouts) == 1 else "are"
        yield f"Collecting what the program learns from takes, per step: {spent}, which {be} part of forward."
    named = [f"{short(name, 40)} {show_time(s)}" for name, s in observed.named.items() if name not in rollouts]
    if named:
        more = f" and {len(named) - MOST_ROWS:,} more" if len(named) > MOST_ROWS else ""
        yield f"Phases that the program named, per step: {', '.join(named[:MOST_ROWS])}{more}."


def _pause(pause: Pause, ranks: int) -> str:
    where = "every rank" if not pause.ranks else _ranks(pause.ranks)
    often, spent = f"{pause.times:,} time{'s' * (pause.times != 1)}", show_time(pause.seconds)
    if pause.fewest is not None and pause.shortest_s is not None and pause.fewest < pause.times:
        often, spent = f"{pause.fewest:,} to {often}", f"{show_time(pause.shortest_s)} to {spent}"
    each = "" if pause.s_per_epoch is None else f", {show_time(pause.s_per_epoch)} per epoch"
    line = f"{pause.name.capitalize()} on {where}: {often}, {spent} in all{each}"
    if pause.waited_s is None or not pause.ranks:
        return f"{line}."
    waiting_ranks = ranks - len(pause.ranks)
    inside = f", most of it in {pause.waited_in}" if pause.waited_in else ""
    who = "the other rank" if waiting_ranks == 1 else f"the other {waiting_ranks:,} ranks, each,"
    return f"{line}; {who} waited {show_time(pause.waited_s)} meanwhile{inside}."


def _ranks(ranks: Sequence[int]) -> str:
    shown = [str(rank) for rank in ranks[:MOST_RANKS]]
    more = [f"{len(ranks) - MOST_RANKS:,} more"] if len(ranks) > MOST_RANKS else []
    return f"rank{'s' * (len(ranks) != 1)} {joined([*shown, *more])}"


def _buckets(buckets: Sequence[BucketTime]) -> str:
    sizes = sorted(one.size_bytes for one in buckets if one.size_bytes is not None)
    spread = f" of {show_bytes(sizes[0])} to {show_bytes(sizes[-1])}" if sizes else ""
    if sizes and sizes[0] == sizes[-1]:
        spread = f" of {show_bytes(sizes[0])}"
    ready = [one.ready_s for one in buckets if one.ready_s is not None]
    ended = [one.end_s for one in buckets if one.end_s is not None]
    moments = (
        f": the first ready after {show_time(min(ready))}, the last after {show_time(max(ready))}" if ready else ""
    )
    done = f", all reduced after {show_time(max(ended))} of a step" if ended else ""
    return f"Gradients go in {counted(len(buckets), 'bucket')}{spread}{moments}{done} (profiler windows)."


def _reading(run: RunMetrics) -> str:
    io = run.io
    calls = "" if io.reads_per_s is None else f", {show_count(io.reads_per_s)} reads/s"
    read, stored = io.read_bytes_per_s, io.storage_read_bytes_per_s
    origin = ""
    if read is not None and stored is not None and stored > read:
        origin = f"; storage gave {rate(stored)}, which is read ahead, or through mapped files"
    elif read and stored is not None:
        origin = f", {percent(stored / read)} of it from storage"
    return f"Ranks read {rate(read)}{calls}{origin}."


def _reading_per_sample(run: RunMetrics) -> Iterator[str]:
    """What was read per sample, in which window; and over time."""
    window = next((one for one in reversed(run.io.windows) if one.name != "steady steps" and one.samples), None)
    if window is not None and (run.io.read_bytes_per_sample or 0) >= 1:  # less is not of the data
        size = rate(run.io.read_bytes_per_sample).removesuffix("/s")
        reads = "" if run.io.reads_per_sample is None else f" in {run.io.reads_per_sample:.3g} reads"
        where = f"{window.name}, {show_time(window.seconds)}"
        yield f"A sample takes {size}{reads} ({where}, with {rate(window.read_bytes_per_s)} on average)."
    if run.io.over_time is not None and (line := reading_over_time(run.io.over_time)):
        yield f"{line}."


def _time(time_s: float | None) -> str:
    return ABSENT if time_s is None else show_time(time_s)
