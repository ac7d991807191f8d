"""Where the time of an epoch goes: training, evaluation, checkpoint, start and the rest, for the job as a whole.

The first epoch begins on the first rank, each later one when the last rank has begun it: what rank 0 does
alone at the end of an epoch (an evaluation, while the other ranks wait for it at their next collective) belongs to the
epoch that it ends. An epoch lasts until the next one begins; the last one until its last step, evaluation, checkpoint
or metric ends. With S the moment when the last rank has its first batch, and T the end of the last step, each moment of
an epoch is

- evaluation while any rank evaluates, else checkpoint while any rank writes one;
- else start before S, training from S to T, and other after T. Where T was not recorded, nothing is other.

So the parts are disjoint, and in whole nanoseconds they add up to the epoch. All moments are those of the host.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.of_ranks import RankEpoch, as_arrays, moments_ns, of_ranks, samples_of
from allpull.analyse.learning import metrics_named
from allpull.analyse.steps.pauses import Moments, pause_spans, union
from allpull.rundir.read.events import EventLog
from allpull.units import NS_PER_S, counted, show_time

PARTS = ("training", "evaluation", "checkpoint", "start", "other")
LEAST_EPOCHS = 2
MISSING = 0.01  # of an epoch
OPEN = "what the program did after the last step of the last epoch is not known: it is not in the mean, if others are"
NO_EPOCHS = "no epoch times: neither a pass over a loader with steps in it nor a mark of an epoch was recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A complete epoch of the job, in ns on the shared clock; ``parts_ns`` by the names of ``PARTS``."""

    number: int
    first_step: int
    steps: int
    samples: int | None
    begin_ns: int
    end_ns: int
    last_step_ns: int
    parts_ns: Mapping[str, int]

    @property
    def total_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pauses:
    """When any rank evaluated, and when any wrote a checkpoint: disjoint intervals each, begins and ends in ns."""

    evaluation: tuple[Moments, Moments]
    checkpoint: tuple[Moments, Moments]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Epochs:
    """The complete epochs of a run in order; ``notes`` say which are left out, and what is not known.

    ``begin_ns``: when the first epoch began, complete or not; ``has_first``: it is the first of ``complete``.
    ``ends_training``: the run began with the first epoch of the training and completed the last. ``pauses_ns`` are the
    disjoint intervals, begins and ends, in which any rank evaluated or wrote a checkpoint. ``may_be_cut``: the only one
    ended with a program, which may have left its loader before it had seen all samples. ``is_open``: what the program
    did after the last step of the last one is not known.
    """

    complete: tuple[Epoch, ...]
    begin_ns: int | None
    has_first: bool
    ends_training: bool
    pauses_ns: tuple[Moments, Moments]
    may_be_cut: bool = False
    is_open: bool = False
    notes: tuple[str, ...] = ()

    @property
    def averaged(self) -> tuple[Epoch, ...]:
        """Those that means are of: all but the first, and the last one if it is open, as long as there are others."""
        later = self.complete[1:] if self.has_first and len(self.complete) > 1 else self.complete
        return later[:-1] if self.is_open and len(later) > 1 else later


def epochs_of(run: AlignedRun) -> Epochs:
    """The epochs of ``run``; where clocks of hosts do not compare, as the ranks of one host show them."""
    logs, notes = _logs_on_one_clock(run)
    spans = run.clock.shared(pause_spans(logs), ("begin_ns", "end_ns")).sort("rank", "begin_ns")
    by_rank = of_ranks(run, logs, spans)
    if not by_rank:
        nothing = Epochs(complete=(), begin_ns=None, has_first=False, ends_training=False, pauses_ns=union(spans))
        return replace(nothing, notes=(NO_EPOCHS,))
    keys = max((tuple(one.key for one in own) for own in by_rank.values()), key=len)
    of_key: dict[tuple[int, int], list[RankEpoch]] = {key: [] for key in keys}
    for own in by_rank.values():
        for one in own:
            of_key.setdefault(one.key, []).append(one)
    edges = [max(one.begin_ns for one in of_key[key]) for key in keys]
    edges[0] = min(one.begin_ns for one in of_key[keys[0]])
    ends = [*_last_moments(run, logs, spans), *(one.last_step_ns for one in of_key[keys[-1]])]
    edges.append(max([edges[-1], *(end_ns for end_ns in ends if end_ns is not None)]))
    steps_of = {key: max(one.steps for one in of_key[key]) for key in keys}
    short = _incomplete(run, logs, keys, steps_of, has_end=all(one.last_step_ns for one in of_key[keys[-1]]))
    pauses = Pauses(**{name: union(spans.filter(pl.col("name") == name)) for name in ("evaluation", "checkpoint")})
    unmarked = _records_without(run, by_rank)
    complete = tuple(
        _epoch(of_key[key], steps_of[key], (begin, end), pauses, unmarked)
        for key, begin, end in zip(keys, edges, edges[1:], strict=False)
        if key not in short
    )
    missing = _missing(run, logs, keys, short)
    notes += [f"epoch {number} is left out: {reason}" for (number, _), reason in short.items()]
    notes += list(_notes(run, complete, missing, _before(spans, edges[0])))
    is_open = keys[-1] not in short and _is_open(run, complete)
    if is_open:
        notes.append(OPEN)
    return Epochs(
        complete=complete,
        begin_ns=edges[0],
        has_first=keys[0] not in short,
        ends_training=missing is None,
        pauses_ns=union(spans),
        may_be_cut=_may_be_cut(run, complete),
        is_open=is_open,
        notes=tuple(notes),
    )


def wanted_accuracy(run: AlignedRun) -> float | None:
    """The accuracy at which the training was told to stop, where it was."""
    train = run.data.record.spec.get("train")
    wanted = train.get("stop_at_top1") if isinstance(train, dict) else None
    return float(wanted) if isinstance(wanted, int | float) and wanted > 0 else None


def _logs_on_one_clock(run: AlignedRun) -> tuple[dict[int, EventLog], list[str]]:
    """The events of the ranks that left a mark of an epoch, by rank, as far as their clocks compare."""
    logs = {rank: log for rank, log in sorted(run.data.events.items()) if log.epochs and rank in run.data.headers}
    if run.clock.compares or not logs:
        return logs, []
    host = run.data.headers[min(logs)].host
    of_host = {rank: log for rank, log in logs.items() if run.data.headers[rank].host == host}
    if len(of_host) == len(logs):
        return logs, []
    return of_host, [f"epoch times are those of the {counted(len(of_host), 'rank')} on one host: clocks do not compare"]


def _records_without(run: AlignedRun, marked: Iterable[int]) -> list[dict[str, Moments]]:
    """Steps and samples of each rank that made steps, but is not one of ``marked``."""
    rest = run.data.steps.filter(~pl.col("rank").is_in(list(marked))).select("rank", "step", "samples")
    return [as_arrays(own) for own in rest.partition_by("rank", include_key=False)]


def _samples_from(records: Mapping[str, Moments], first_step: int, steps: int) -> int | None:
    """The samples of ``steps`` steps from ``first_step`` on, by the ``records`` of one rank; None: some are missing."""
    first, end = np.searchsorted(records["step"], [first_step, first_step + steps]).tolist()
    return samples_of(records, slice(first, end), steps)


def _last_moments(run: AlignedRun, logs: Mapping[int, EventLog], spans: pl.DataFrame) -> list[int]:
    """When the last evaluation, checkpoint and metric of each rank ended."""
    metrics = [(rank, log.metrics[-1].t_ns) for rank, log in logs.items() if log.metrics]
    return [*spans["end_ns"].to_list(), *moments_ns(run, metrics)]


def _epoch(
    ranks: Sequence[RankEpoch],
    steps: int,
    window: tuple[int, int],
    pauses: Pauses,
    unmarked: Sequence[Mapping[str, Moments]],
) -> Epoch:
    """One epoch of the job between the two moments of ``window``, from that of each rank.

    ``unmarked``: the records of ranks without marks, such as those to which another rank sends all batches, or on hosts
    whose clocks do not compare. Their samples of the same steps belong to it.
    """
    begin_ns, end_ns = window
    batch_ns = min(max(begin_ns, *(one.first_batch_ns for one in ranks)), end_ns)
    last_ns = min(max(batch_ns, *(one.last_step_ns or end_ns for one in ranks)), end_ns)
    both = _merged(pauses.evaluation, pauses.checkpoint)
    evaluation_ns = covered_ns(pauses.evaluation, begin_ns, end_ns)
    first = max(ranks, key=lambda one: one.steps).first_step
    samples = [*(one.samples for one in ranks), *(_samples_from(records, first, steps) for records in unmarked)]
    return Epoch(
        number=ranks[0].key[0],
        first_step=first,
        steps=steps,
        samples=None if None in samples else sum(one for one in samples if one is not None),
        begin_ns=begin_ns,
        end_ns=end_ns,
        last_step_ns=last_ns,
        parts_ns={
            "evaluation": evaluation_ns,
            "checkpoint": covered_ns(both, begin_ns, end_ns) - evaluation_ns,
            "start": batch_ns - begin_ns - covered_ns(both, begin_ns, batch_ns),
            "training": last_ns - batch_ns - covered_ns(both, batch_ns, last_ns),
            "other": end_ns - last_ns - covered_ns(both, last_ns, end_ns),
        },
    )


def covered_ns(intervals: tuple[Moments, Moments], begin_ns: int, end_ns: int) -> int:
    """How much of the time from ``begin_ns`` to ``end_ns`` the disjoint ``intervals`` cover, in ns."""
    begins, ends = intervals
    return int(np.maximum(np.minimum(ends, end_ns) - np.maximum(begins, begin_ns), 0).sum())


def _merged(one: tuple[Moments, Moments], other: tuple[Moments, Moments]) -> tuple[Moments, Moments]:
    """The union of two sets of disjoint intervals."""
    begins, ends = (np.concatenate([one[side], other[side]]) for side in (0, 1))
    return union(pl.DataFrame({"begin_ns": begins, "end_ns": ends}))


def _incomplete(
    run: AlignedRun,
    logs: Mapping[int, EventLog],
    keys: Sequence[tuple[int, int]],
    steps_of: Mapping[tuple[int, int], int],
    *,
    has_end: bool,
) -> dict[tuple[int, int], str]:
    """The epochs that are not complete, each with the reason.

    Only the first epoch of a resumed run and the last of any can be: their steps are held against those that the
    training states for an epoch, or else against those of the other epochs, where these agree. Accumulation may go on
    from one epoch to the next, so that epochs of as many batches differ by a step. ``has_end``: the last step of the
    last epoch was recorded.
    """
    stated = next((metric.value for metric in metrics_named(logs, "steps_per_epoch")), None)
    others = {steps_of[key] for key in keys[1:-1]} or {steps_of[key] for key in keys[:-1]}
    usual = stated or (min(others) if len(others) == 1 else 0)
    short: dict[tuple[int, int], str] = {}
    if is_resumed(run) and steps_of[keys[0]] < usual:
        short[keys[0]] = f"the run resumed within it, {steps_of[keys[0]]:,} of {usual:,.0f} steps before its end"
    if any(log.end is None for log in logs.values()):
        short[keys[-1]] = "the run ended, or was read, within it"
    elif steps_of[keys[-1]] < usual - _accumulates(run) and keys[-1] not in short:
        short[keys[-1]] = f"it ended after {steps_of[keys[-1]]:,} of {usual:,.0f} steps"
    elif not has_end and keys[-1] not in short:
        short[keys[-1]] = "its last steps were not recorded"
    return short


def _accumulates(run: AlignedRun) -> bool:
    """Whether most steps have several backward passes."""
    passes = run.data.steps["backward_passes"].median()
    return isinstance(passes, float) and passes > 1


def is_resumed(run: AlignedRun) -> bool:
    """Whether the training began in another run, or in an earlier attempt at this one."""
    logs, first = run.data.events.values(), run.data.steps["step"].min()
    return any(log.restarted or (log.epochs and log.epochs[0].step == first != 0) for log in logs)


def _missing(
    run: AlignedRun, logs: Mapping[int, EventLog], keys: Sequence[tuple[int, int]], short: Mapping[tuple[int, int], str]
) -> str | None:
    """Why the records do not hold the whole training; None where they do."""
    if is_resumed(run):
        return "earlier epochs, or attempts, are not in these records"
    if keys[-1] in short:
        return "the last epoch is not complete"
    train = run.data.record.spec.get("train")
    planned = train.get("epochs") if isinstance(train, dict) and run.data.record.kind == "train" else None
    number = keys[-1][0] + 1
    if not isinstance(planned, int) or number >= planned:
        return None
    wanted = wanted_accuracy(run)
    if wanted is not None and any((one.value or 0) >= wanted for one in metrics_named(logs, "test_top1")):
        return None
    return f"the training ended after epoch {number:,} of {planned:,}"


def _notes(run: AlignedRun, complete: Sequence[Epoch], missing: str | None, before_ns: int) -> Iterator[str]:
    if before_ns:
        yield f"{show_time(before_ns / NS_PER_S)} of evaluations and checkpoints before the first epoch is in no epoch"
    firsts = [log.epochs[0].step for log in run.data.events.values() if log.epochs]
    earlier = 0 if is_resumed(run) else min(firsts)
    if earlier:
        yield f"{counted(earlier, 'step')} before the first epoch: in no epoch"
    if missing is not None:
        yield f"no time to solution: {missing}"
    if _may_be_cut(run, complete):
        yield "one epoch: a program that leaves its loader early has not seen all its samples in it"


def _may_be_cut(run: AlignedRun, complete: Sequence[Epoch]) -> bool:
    return len(complete) == 1 and run.data.record.kind == "run"


def _is_open(run: AlignedRun, complete: Sequence[Epoch]) -> bool:
    """Whether less is known after the last step of the last epoch than all others have there: the next one ends it."""
    if run.data.record.kind != "run" or len(complete) < LEAST_EPOCHS:
        return False
    *others, last = complete
    usual_ns = statistics.fmean(one.total_ns for one in others)
    return last.parts_ns["other"] < min(one.parts_ns["other"] for one in others) - MISSING * usual_ns


def _before(spans: pl.DataFrame, begin_ns: int) -> int:
    """The time in evaluations and checkpoints that ended before ``begin_ns``, in ns."""
    begins, ends = union(spans.filter(pl.col("end_ns") <= begin_ns))
    return int((ends - begins).sum())
