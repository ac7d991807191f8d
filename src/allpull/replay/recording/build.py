"""Record the window of a run that a replay can play, from its aligned records.

Which steps: ``step_choice``. Which meetings, and in what order: ``calls`` and ``meetings``. What ranks did in between:
``work``. How long the buckets took: ``bucket_times``. For each rank and step, work and blocked time sum to its wall
time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.matching import OPAQUE, Matched
from allpull.analyse.steps.device import with_host
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording import bucket_times
from allpull.replay.recording.calls import Calls, Moments, calls, in_window, moments
from allpull.replay.recording.meetings import Events, order_events
from allpull.replay.recording.step_choice import ChosenSteps, NoWindow, choose_steps, shorten
from allpull.replay.recording.work import PHASES, lay_out_work
from allpull.replay.window import CALL, REDUCE, WORK, Level, Reductions, Window
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap
from allpull.units import NS_PER_S, show_time

FEW = 0.05  # of the rank-steps: a median may replace so many
SMALL_SHARE = 1e-3  # of a step: unmatched collectives below it are the cost of recording their ends

__all__ = ["NoWindow", "record_window"]


def record_window(aligned: AlignedRun) -> Window | NoWindow:
    """The window of a run, or why there is none."""
    run = aligned.data
    steps = choose_steps(aligned)
    if isinstance(steps, NoWindow):
        return steps
    ranks = run.record.ranks
    steps = shorten(steps, ranks=ranks, events=_count(aligned, steps), buckets=_buckets(run, steps))
    records = in_window(aligned.steps, steps.steps)
    recorded = moments(records, ranks)
    apart_s = float(recorded.begin_s[0].max() - recorded.end_s[-1].min())
    if apart_s > aligned.clock.slack_ns / NS_PER_S:
        by = show_time(apart_s)
        return NoWindow(
            reason=f"a rank began these steps {by} after another had ended them: their clocks do not compare"
        )
    matched_calls, gaps = _calls(aligned, steps, recorded)
    events = order_events(recorded, matched_calls, aligned.clock.bound_s or 0.0)
    if ranks > 1 and not ((events.kind == REDUCE).any() or events.meets.any()):
        return NoWindow(reason="no collective of these steps could be matched across ranks: nobody is seen to wait")
    phases, host_s = _phases(records, recorded, events)
    reductions, level, more_gaps = _reductions(aligned, steps, recorded, events)
    queued_s, queue_gaps = _queued(_matrix(records, "queued_ns", ranks) / NS_PER_S)
    return Window(
        steps=steps.steps,
        odd=steps.odd,
        samples=_matrix(records, "samples", ranks),
        begin_s=recorded.begin_s[0],
        wall_s=recorded.end_s - recorded.begin_s,
        kind=events.kind,
        step_of=events.step_of,
        use=events.use,
        uses=matched_calls.uses,
        work=lay_out_work(events, recorded.begin_s[0], phases, host_s),
        meets=events.meets,
        waits=events.waits,
        early_s=events.early_s,
        transfer_s=events.transfer_s,
        reductions=reductions,
        measured_s=float(recorded.end_s[-1].max()),
        level=level,
        bound_s=aligned.clock.bound_s or 0.0,
        queued_s=queued_s,
        gaps=(*steps.gaps, *gaps, *more_gaps, *_gaps(recorded, events), *queue_gaps),
        complete=aligned.complete,
        on_device="busy_ns" in aligned.steps.columns,
    )


def _count(aligned: AlignedRun, steps: ChosenSteps) -> int:
    """At most how many events a window of ``steps`` has."""
    called = in_window(aligned.matched.calls.select("step", "match"), steps.steps)
    return called["match"].n_unique() + 2 * steps.steps.size


def _buckets(run: RunData, steps: ChosenSteps) -> int:
    """The approximate number of buckets per step."""
    recorded = in_window(run.ready.select("step"), steps.steps).height
    return -(-recorded // (steps.steps.size * run.record.ranks))


def _calls(aligned: AlignedRun, steps: ChosenSteps, recorded: Moments) -> tuple[Calls, Iterator[Gap]]:
    """The matched calls, and gaps for the others.

    Steps of an accelerator have none: the moments of calls are the host's, which runs ahead of it.
    """
    ranks = recorded.end_s.shape[1]
    called = in_window(aligned.matched.calls, steps.steps)
    if "busy_ns" in aligned.steps.columns:
        none = Matched(calls=called.clear(), uses=aligned.matched.uses)
        return calls(none, steps.steps, ranks, recorded.origin_ns), _gap_of_device(called)
    matched_calls = calls(aligned.matched, steps.steps, ranks, recorded.origin_ns)
    return matched_calls, _gap_of_unmatched(called, aligned.matched.uses, recorded)


def _gap_of_device(called: pl.DataFrame) -> Iterator[Gap]:
    if called["end_ns"].count():
        text = "collectives that the program calls are in 'other': when the accelerator was in them is not known"
        yield Gap(kind="blocked in other", text=text)


def _gap_of_unmatched(called: pl.DataFrame, uses: pl.DataFrame, recorded: Moments) -> Iterator[Gap]:
    opaque = uses.with_row_index("use").filter(pl.col("inside").is_in(OPAQUE).fill_null(value=False))
    lost = called.filter(pl.col("match").is_null()).join(opaque, on="use", how="anti")
    blocked_s = float(lost["blocked_ns"].sum()) / NS_PER_S
    if blocked_s > SMALL_SHARE * float((recorded.end_s - recorded.begin_s).sum()):
        each_s = blocked_s / recorded.end_s.size
        accounted = f"'other' holds the {show_time(each_s)} per step that they took"
        text = f"collectives could not all be matched across ranks: {accounted}"
        yield Gap(kind="blocked in other", text=text, seconds=each_s)


def _matrix(records: pl.DataFrame, name: str, ranks: int) -> Floats:
    """Column ``name`` of ``records``, which go by rank and step, as an array of shape (steps, ranks); NaN for null."""
    values = records[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return np.ascontiguousarray(values.reshape(ranks, -1).T)


def _queued(recorded_s: Floats) -> tuple[Floats | None, list[Gap]]:
    """``recorded_s`` (steps, ranks) with a rank's median where a few are NaN, or None; and gaps."""
    lacks = np.isnan(recorded_s)
    if lacks.all():
        return None, []
    text = f"how long ranks waited for a CPU is not known in {int(lacks.sum()):,} of {lacks.size:,} rank-steps"
    gap = Gap(kind="CPU waiting", text=text)
    if lacks.mean() > FEW or lacks.all(axis=0).any():
        return None, [gap]
    return np.where(lacks, np.nanmedian(recorded_s, axis=0), recorded_s), [gap] if lacks.any() else []


def _phases(records: pl.DataFrame, recorded: Moments, events: Events) -> tuple[dict[str, Floats], Floats | None]:
    """Seconds of each of ``PHASES`` without time blocked in events, shape (steps, ranks); and of ``host``, if known."""
    ranks = recorded.end_s.shape[1]
    seconds = {name: np.nan_to_num(_matrix(records, f"{name}_ns", ranks)) / NS_PER_S for name in PHASES}
    seconds["backward"] = np.maximum(seconds["backward"] - recorded.reduced_s, 0)
    called_s = np.zeros(recorded.end_s.shape)
    at = events.kind == CALL
    blocked_s = events.leave_s[at] - events.stand_s[at]
    for name in OPAQUE:
        inside_s = np.zeros(recorded.end_s.shape)
        np.add.at(inside_s, events.step_of[at], np.where(events.inside[at] == WORK.index(name), blocked_s, 0))
        seconds[name] = np.maximum(seconds[name] - inside_s, 0)
    np.add.at(called_s, events.step_of[at], blocked_s)
    if "busy_ns" not in records.columns:
        return seconds, None
    called_s += np.nan_to_num(_matrix(records, "collective_ns", ranks)) / NS_PER_S  # none of them is an event
    busy_s = _matrix(records, "busy_ns", ranks) / NS_PER_S
    wall_s = recorded.end_s - recorded.begin_s
    phases = with_host(seconds, reducing_s=recorded.reduced_s, called_s=called_s, busy_s=busy_s, wall_s=wall_s)
    host_s = phases.pop("host", None)
    return {name: times for name, times in phases.items() if times is not None}, host_s


def _reductions(
    aligned: AlignedRun, steps: ChosenSteps, recorded: Moments, events: Events
) -> tuple[Reductions | None, Level, list[Gap]]:
    """The reductions, whether it is known when their buckets were ready, and what is not known of that."""
    if not recorded.reduces.any():
        return None, "step", []
    run = aligned.data
    at = events.kind == REDUCE
    stand_s, leave_s = events.stand_s[at], events.leave_s[at]
    known = bucket_times.leads(run.ready, steps.steps, recorded)
    if known is None:
        is_single = bucket_times.single(run.events.values())
        lead_s = np.zeros((stand_s.shape[0], 1, stand_s.shape[1]))
        sizes = bucket_times.sizes(run.events, int(steps.steps[0]), None)
        reductions = bucket_times.solve_reductions(stand_s, leave_s, lead_s, sizes)
        return reductions, "bucket" if is_single else "step", []
    lead_s = known.seconds[recorded.reduces]
    count = lead_s.shape[1]
    sizes = bucket_times.sizes(run.events, int(steps.steps[0]), count)
    gaps: list[Gap] = []
    if known.missing:
        of_all = f"{known.missing:,} of {stand_s.size:,} rank-steps"
        text = f"when buckets were ready is not known in {of_all}: medians of their ranks are used instead"
        gaps.append(Gap(kind="bucket times", text=text))
    return bucket_times.solve_reductions(stand_s, leave_s, lead_s, sizes, aligned.buckets), "bucket", gaps


def _gaps(recorded: Moments, events: Events) -> Iterator[Gap]:
    unreduced = int((~recorded.reduces).sum())
    if recorded.reduces.any() and unreduced:
        count = f"{unreduced:,} of {recorded.reduces.size:,} steps"
        text = f"the reduction of gradients was not recorded by all ranks in {count}"
        yield Gap(kind="reductions", text=text)
    if events.moved:
        times = f"{events.moved:,} time{'s' if events.moved > 1 else ''}"
        text = f"ranks seem to have been in two collectives at once {times}: they were clipped to what is possible"
        yield Gap(kind="contradictions", text=text)
