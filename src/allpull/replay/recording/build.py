"""Record the window of a run that a replay can play, from its aligned records.

Which steps: ``step_choice``. Which meetings, and in what order: ``calls`` and ``meetings``. What ranks did in between:
``work``. How long the buckets took: ``bucket_times``. For each rank and step, work and blocked time sum to its wall
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.matching import OPAQUE, Matched
from allpull.analyse.steps.device import with_host
from allpull.analyse.steps.grid import Floats
from allpull.replay.recording import bucket_times
from allpull.replay.recording.calls import Calls, Moments, StepRecords, calls, moments
from allpull.replay.recording.chosen_steps import ChosenSteps
from allpull.replay.recording.meetings import Events, order_events
from allpull.replay.recording.segments import in_segments
from allpull.replay.recording.step_choice import NoWindow, choose_steps, shorten
from allpull.replay.recording.work import PHASES, lay_out_work
from allpull.replay.window import CALL, REDUCE, WORK, Level, Reductions, Window
from allpull.schema.gap import Gap
from allpull.units import NS_PER_S, show_time

FEW = 0.05  # of the rank-steps: a median may replace so many
OF_HOST = ("paced", "issued", "fetched")
SMALL_SHARE = 1e-3  # of a step: unmatched collectives below it are the cost of recording their ends
UNIDENTIFIED = 0.5  # of the time in no phase: with most of it in collectives it is not work

__all__ = ["NoWindow", "Record", "record_window"]

Record = Callable[[AlignedRun], Window | NoWindow]
"""``record_window``, or what keeps windows that several results rest on."""


def record_window(aligned: AlignedRun) -> Window | NoWindow:
    """The window of a run, or why there is none."""
    run = aligned.data
    steps = choose_steps(aligned)
    if isinstance(steps, NoWindow):
        return steps
    ranks = run.record.ranks
    steps = shorten(steps, ranks=ranks, events=_count(aligned, steps), buckets=_buckets(aligned, steps))
    records = StepRecords(of_run=aligned.steps, inside=steps.hold(aligned.steps["step"]))
    recorded = moments(records, steps.inside(aligned.reductions), steps, ranks)
    apart_s = float(recorded.begin_s[0].max() - recorded.end_s[-1].min())
    if apart_s > aligned.clock.slack_ns / NS_PER_S:
        by = show_time(apart_s)
        return NoWindow(
            reason=f"a rank began these steps {by} after another had ended them: their clocks do not compare"
        )
    matched_calls, gaps = _calls(aligned, steps, recorded)
    events = order_events(recorded, matched_calls, aligned.clock.bound_s or 0.0)
    if ranks > 1 and not ((events.kind == REDUCE).any() or events.meets.any()):
        return _without_meetings(aligned, steps)
    reductions, level, more_gaps = _reductions(aligned, steps, recorded, events)  # takes most memory: before the work
    phases, host_s = _phases(records, recorded, events)
    work = lay_out_work(*in_segments(events, recorded, phases, host_s))
    del phases, host_s  # as large as the records of a long run
    more_gaps += _gap_of_unidentified(aligned, steps, records, work)
    reductions = _with_own(reductions, recorded, events, work)
    paced_s, issued_s, fetched_s = (_seconds_or_none(records, f"{name}_ns", ranks) for name in OF_HOST)
    local = np.isin(steps.numbers, aligned.local.to_numpy())
    queued_s, queue_gaps = _queued(_matrix(records, "queued_ns", ranks) / NS_PER_S)
    return Window(
        steps=steps.numbers,
        odd=steps.kinds > 0,
        odd_tags=steps.kinds,
        samples=_matrix(records, "samples", ranks),
        begin_s=recorded.begin_s[0],
        wall_s=recorded.end_s - recorded.begin_s,
        kind=events.kind,
        step_of=events.step_of,
        use=events.use,
        uses=matched_calls.uses,
        work=work,
        meets=events.meets,
        waits=events.waits,
        early_s=events.early_s,
        transfer_s=events.transfer_s,
        reductions=reductions,
        measured_s=float(recorded.end_s[-1].max()),
        level=level,
        bound_s=aligned.clock.bound_s or 0.0,
        queued_s=queued_s,
        gaps=(*steps.gaps, *gaps, *more_gaps, *aligned.reduction_gaps, *_gaps(recorded, events, local), *queue_gaps),
        complete=aligned.complete,
        on_device=aligned.on_device,
        paced_s=paced_s,
        issued_s=issued_s,
        fetched_s=fetched_s,
        elements=_elements(records, run.steps, ranks),
    )


def _without_meetings(aligned: AlignedRun, steps: ChosenSteps) -> NoWindow:
    """Why a window of ``steps`` has no collective of all ranks."""
    if np.isin(steps.numbers, aligned.local.to_numpy()).all():
        why = "gradients were exchanged within groups of fewer than all ranks: who waited within them is not told"
        return NoWindow(reason=why)
    return NoWindow(reason="no collective of these steps could be matched across ranks: nobody is seen to wait")


def _count(aligned: AlignedRun, steps: ChosenSteps) -> int:
    """At most how many events a window of ``steps`` has."""
    called = steps.inside(aligned.matched.calls.select("step", "match"))
    return called["match"].n_unique() + 2 * steps.size


def _buckets(aligned: AlignedRun, steps: ChosenSteps) -> int:
    """The approximate number of buckets per step."""
    counts = aligned.ready["ready_ns"].list.len().cast(pl.Int64).filter(steps.hold(aligned.ready["step"]))
    return -(-int(counts.sum()) // (steps.size * aligned.data.record.ranks))


def _calls(aligned: AlignedRun, steps: ChosenSteps, recorded: Moments) -> tuple[Calls, Iterator[Gap]]:
    """The matched calls, and gaps for the others.

    Steps of an accelerator have none where only the host's moments are known, which runs ahead of it.
    """
    ranks = recorded.end_s.shape[1]
    called = steps.inside(aligned.matched.calls)
    if not aligned.calls_compare:
        none = Matched(calls=called.clear(), uses=aligned.matched.uses)
        return calls(none, steps, ranks, recorded.origin_ns), _gap_of_device(called)
    matched_calls = calls(aligned.matched, steps, ranks, recorded.origin_ns)
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


def _gap_of_unidentified(
    aligned: AlignedRun, steps: ChosenSteps, records: StepRecords, work: dict[str, Floats]
) -> Iterator[Gap]:
    """Of hosts, time in ``collective_ns`` beyond what calls blocked them.

    It is the waiting for collectives that are not observed, and the issuing of asynchronous ones.
    """
    called = steps.inside(aligned.matched.calls)
    unknown_s = (int(records["collective_ns"].sum()) - int(called["blocked_ns"].sum())) / NS_PER_S
    if "other" in work and not aligned.on_device and unknown_s > UNIDENTIFIED * float(work["other"].sum()):
        each_s = unknown_s / (steps.size * aligned.data.record.ranks)
        text = (
            f"'other' holds {show_time(each_s)} per step in collectives that are not identified, or that it took to "
            "issue asynchronous ones"
        )
        yield Gap(kind="blocked in other", text=text, seconds=each_s)


def _matrix(records: StepRecords, name: str, ranks: int) -> Floats:
    """Column ``name`` of ``records``, which go by rank and step, as an array of shape (steps, ranks); NaN for null."""
    values = records[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return np.ascontiguousarray(values.reshape(ranks, -1).T)


def _elements(records: StepRecords, steps: pl.DataFrame, ranks: int) -> Floats | None:
    """The elements of each step, (steps, ranks), NaN for not known; None: samples have one size, or no known one.

    Those of samples of one size are recorded once, in the first of all ``steps``: the others follow from their samples.
    """
    told = steps.lazy().filter(pl.col("elements").is_not_null(), pl.col("samples") > 0)
    sizes = (
        told.select("rank", "step", per_sample=pl.col("elements") / pl.col("samples"))
        .sort("step")
        .group_by("rank")
        .agg(pl.col("step").first(), pl.col("per_sample").first(), until=pl.col("step").get(1, null_on_oob=True))
        .join(steps.lazy().group_by("rank").agg(begin=pl.col("step").min()), on="rank")
        .collect()
    )
    if not sizes["until"].count() and (sizes.height < ranks or sizes["per_sample"].n_unique() == 1):
        return None
    elements, samples = _matrix(records, "elements", ranks), _matrix(records, "samples", ranks)
    numbers = records["step"].to_numpy().reshape(ranks, -1).T
    for rank, per_sample, until in (
        sizes.filter(pl.col("step") == pl.col("begin"))
        .select("rank", "per_sample", pl.col("until").fill_null(np.iinfo(np.int64).max))
        .iter_rows()
    ):
        before = np.isnan(elements[:, rank]) & (numbers[:, rank] < until)
        elements[before, rank] = per_sample * samples[before, rank]
    return elements


def _seconds_or_none(records: StepRecords, name: str, ranks: int) -> Floats | None:
    """Column ``name`` in s, (steps, ranks), 0 for null; None where there is no such column, or nothing in it."""
    if name not in records or not records[name].count():
        return None
    return np.nan_to_num(_matrix(records, name, ranks)) / NS_PER_S


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


def _phases(records: StepRecords, recorded: Moments, events: Events) -> tuple[dict[str, Floats], Floats | None]:
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
    if "busy_ns" not in records:
        return seconds, None
    recorded_s = np.nan_to_num(_matrix(records, "collective_ns", ranks)) / NS_PER_S
    called_s = np.maximum(called_s, recorded_s)  # some of them are no events
    busy_s = _matrix(records, "busy_ns", ranks) / NS_PER_S
    wall_s = recorded.end_s - recorded.begin_s
    phases = with_host(seconds, reducing_s=recorded.reduced_s, called_s=called_s, busy_s=busy_s, wall_s=wall_s)
    host_s = phases.pop("host", None)
    return {name: times for name, times in phases.items() if times is not None}, host_s


def _reductions(
    aligned: AlignedRun, steps: ChosenSteps, recorded: Moments, events: Events
) -> tuple[Reductions | None, Level, list[Gap]]:
    """The reductions, whether it is known when their buckets were ready, and what is not known of that."""
    reduced = recorded.reductions
    if not reduced.step_of.size:
        return None, "step", []
    at = events.kind == REDUCE
    stand_s, leave_s = events.stand_s[at], events.leave_s[at]
    listed = steps.inside(aligned.listed)
    leads = bucket_times.all_leads(aligned.ready, listed, steps)
    of_networks = [
        _of_networks(aligned, recorded, place, (stand_s, leave_s), (steps, leads))
        for place in range(len(reduced.names))
    ]
    levels = {level for _, level, _ in of_networks}
    gaps = [gap for *_, some in of_networks for gap in some]
    joined = _joined([lane for lane, *_ in of_networks], reduced.networks)
    return joined, "bucket" if levels == {"bucket"} else "step", gaps


def _of_networks(
    aligned: AlignedRun,
    recorded: Moments,
    place: int,
    at: tuple[Floats, Floats],
    leads: tuple[ChosenSteps, bucket_times.LeadTimes],
) -> tuple[Reductions, Level, list[Gap]]:
    """The reductions of one set of networks, as for all of them.

    ``at``: when ranks reached and left each reduction; ``leads``: the steps, and all of ``bucket_times``.
    """
    run, reduced = aligned.data, recorded.reductions
    rows = np.flatnonzero(reduced.networks == place)
    numbers = [int(number) for number in reduced.names[place].split("+")]
    stand_s, leave_s = (moments_s[rows] for moments_s in at)
    worked_s = reduced.arrival_s[rows] - recorded.begin_s[reduced.step_of[rows]]
    steps, recorded_leads = leads
    first = int(steps.numbers[0])
    row_of = np.full((recorded.end_s.shape[0], int(reduced.place.max()) + 2), -1)  # the last place: of no reduction
    row_of[reduced.step_of[rows], reduced.place[rows]] = np.arange(rows.size)
    in_rows = row_of[
        steps.rows(pl.Series(recorded_leads.step)), np.minimum(recorded_leads.meeting, row_of.shape[1] - 1)
    ]
    known = [
        bucket_times.leads(recorded_leads.of(in_rows, number), worked_s, least=2 if len(numbers) == 1 else 1)
        for number in numbers
    ]
    whole = [one for one in known if one is not None]
    if len(whole) < len(numbers):
        is_single = len(numbers) == 1 and bucket_times.single(run.events.values(), numbers[0])
        lead_s = np.zeros((stand_s.shape[0], 1, stand_s.shape[1]))
        sizes = bucket_times.sizes(run.events, first, None, numbers[0]) if len(numbers) == 1 else None
        lane = bucket_times.solve_reductions(stand_s, leave_s, lead_s, sizes)
        return lane, "bucket" if is_single else "step", []
    lead_s, order = _on_one_lane([one.seconds for one in whole])
    each = [
        bucket_times.sizes(run.events, first, one.seconds.shape[1], number)
        for one, number in zip(whole, numbers, strict=True)
    ]
    known_sizes = [one for one in each if one is not None]
    sizes = np.concatenate(known_sizes)[order] if len(known_sizes) == len(each) else None
    gaps: list[Gap] = []
    missing = sum(one.missing for one in whole)
    if missing:
        of_all = f"{missing:,} of {stand_s.size * len(whole):,} rank-steps"
        text = f"when buckets were ready is not known in {of_all}: medians of their ranks are used instead"
        gaps.append(Gap(kind="bucket times", text=text))
    windows = aligned.buckets if len(reduced.names) == 1 else None
    return bucket_times.solve_reductions(stand_s, leave_s, lead_s, sizes, windows), "bucket", gaps


def _on_one_lane(leads_s: list[Floats]) -> tuple[Floats, NDArray[np.intp]]:
    """The leads of all buckets of some networks, (reductions, buckets, ranks), in the order of one lane; and the order.

    Those of a single network are changed in place: they may be as large as the rest of a window.
    """
    lead_s = leads_s[0]
    order = np.arange(lead_s.shape[1])
    if len(leads_s) > 1:
        every_s = np.concatenate(leads_s, axis=1)
        order = np.argsort(-np.median(every_s, axis=(0, 2)), kind="stable")
        lead_s = every_s[:, order]
    return np.minimum.accumulate(lead_s, axis=1, out=lead_s), order


def _with_own(lane: Reductions | None, recorded: Moments, events: Events, work: dict[str, Floats]) -> Reductions | None:
    """``lane`` with the share of backward that is of the pass that reduces, where any pass has its begin recorded."""
    begin_s = recorded.reductions.begin_s
    if lane is None or np.isnan(begin_s).all() or "backward" not in work:
        return lane
    before_s = work["backward"][events.kind == REDUCE]
    own_s = np.where(np.isnan(begin_s), before_s, np.clip(recorded.reductions.arrival_s - begin_s, 0, before_s))
    return replace(lane, own=np.divide(own_s, before_s, out=np.ones_like(before_s), where=before_s > 0))


def _joined(lanes: list[Reductions], networks: NDArray[np.intp]) -> Reductions:
    """The reductions of all sets of ``networks`` in their order."""
    if len(lanes) == 1:
        return replace(lanes[0], networks=networks)
    ranks = lanes[0].tail_s.shape[1]
    buckets = max(lane.buckets for lane in lanes)
    lead_s, seconds = np.zeros((networks.size, buckets, ranks)), np.zeros((networks.size, buckets))
    tail_s = np.zeros((networks.size, ranks))
    for place, lane in enumerate(lanes):
        rows, empty = networks == place, buckets - lane.buckets
        lead_s[rows, empty:], lead_s[rows, :empty] = lane.lead_s, lane.lead_s[:, :1]
        seconds[rows, empty:], tail_s[rows] = lane.seconds, lane.tail_s
    return Reductions(lead_s=lead_s, seconds=seconds, tail_s=tail_s, size_bytes=None, networks=networks)


def _gaps(recorded: Moments, events: Events, local: NDArray[np.bool_]) -> Iterator[Gap]:
    """What is not known of meetings; ``local`` (steps,): without one, as gradients were not exchanged among all."""
    steps, reduced = recorded.end_s.shape[0], np.unique(recorded.reductions.step_of).size
    if 0 < reduced < steps - np.count_nonzero(local):
        count = f"{steps - reduced:,} of {steps:,} steps"
        text = f"the reduction of gradients was not recorded by all ranks in {count}"
        yield Gap(kind="reductions", text=text)
    matched_s = np.maximum(recorded.reductions.done_s - recorded.reductions.arrival_s, 0).sum()
    unmatched_s = float(recorded.reduced_s.sum() - matched_s)
    walls_s = float((recorded.end_s - recorded.begin_s).sum())
    if (recorded.reductions.place > 0).any() and unmatched_s > SMALL_SHARE * walls_s:
        each_s = unmatched_s / recorded.end_s.size
        text = f"ranks reduced gradients differently often: 'other' holds the {show_time(each_s)} per step that it took"
        yield Gap(kind="blocked in other", text=text, seconds=each_s)
    if events.moved:
        times = f"{events.moved:,} time{'s' if events.moved > 1 else ''}"
        text = f"ranks seem to have been in two collectives at once {times}: they were clipped to what is possible"
        yield Gap(kind="contradictions", text=text)
