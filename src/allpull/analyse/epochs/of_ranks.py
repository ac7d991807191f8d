"""The epochs of each rank: from which step to which, and when each began, had its first batch, and ended its last step.

On a rank an epoch begins at its mark. In a program that is observed unedited the mark is made in the first backward
pass; its epoch begins where the program asked its loader for it. Where that is not known, it begins where the step with
that mark did, or where the last evaluation or checkpoint before it ended. It has its first batch after what that step
takes longer than others outside of known phases, at the latest one forward pass before the mark: what a program
prepares for an epoch is no training.

Marks are always recorded, steps are not: a budget thins them, and a program may be observed for a part of its steps.
What only the steps tell, the samples of an epoch and the end of its last step, is then not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.preparation import KNOWN, between_ns, outside_ns, prepared_ns
from allpull.analyse.steps.pauses import Moments
from allpull.rundir.read.events import EventLog
from allpull.schema.events import EpochMark


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEpoch:
    """One epoch of one rank; ``key`` is its number, and how often the rank began that number before.

    ``last_step_ns``: the end of its last step; None: not recorded.
    """

    key: tuple[int, int]
    first_step: int
    steps: int
    samples: int | None
    begin_ns: int
    first_batch_ns: int
    last_step_ns: int | None


def of_ranks(run: AlignedRun, logs: Mapping[int, EventLog], spans: pl.DataFrame) -> dict[int, list[RankEpoch]]:
    """The epochs of each rank that made a step in one."""
    columns = ("rank", "step", "begin_ns", "end_ns", "backward_passes", "samples", *KNOWN)
    moments = ("begin_ns", "end_ns")
    records = run.clock.shared(run.data.steps.select(columns), moments) if run.on_device else run.steps.select(columns)
    marks = moments_ns(run, [(rank, mark.t_ns) for rank, log in logs.items() for mark in log.epochs])
    steps = as_arrays(records.drop("rank"))
    of_steps, of_spans = (_slices(one["rank"], logs) for one in (records, spans))
    begins_and_ends = spans.select("begin_ns", "end_ns").rows()
    by_rank: dict[int, list[RankEpoch]] = {}
    for rank, log in logs.items():
        own_marks = [(mark, marks.pop(0)) for mark in log.epochs]
        own = _of_rank(
            own_marks,
            {name: values[of_steps[rank]] for name, values in steps.items()},
            begins_and_ends[of_spans[rank]],
            made=0 if log.end is None else log.end.steps,
            is_marked_late=run.data.record.kind == "run",
        )
        if own:
            by_rank[rank] = own
    return by_rank


def as_arrays(records: pl.DataFrame) -> dict[str, Moments]:
    """The columns of ``records``, 0 where nothing was recorded, and which of them lack their samples."""
    arrays = {name: records[name].fill_null(0).to_numpy() for name in records.columns}
    return {**arrays, "lacks_samples": records["samples"].is_null().cast(pl.Int64).to_numpy()}


def _slices(ranks: pl.Series, wanted: Iterable[int]) -> dict[int, slice]:
    """Where each of the ``wanted`` ranks is in the ascending ``ranks``."""
    numbers = list(wanted)
    first, end = np.searchsorted(ranks.to_numpy(), [numbers, [number + 1 for number in numbers]]).tolist()
    return {number: slice(*edges) for number, *edges in zip(numbers, first, end, strict=True)}


def _of_rank(
    marks: Sequence[tuple[EpochMark, int]],
    records: Mapping[str, Moments],
    spans: Sequence[tuple[int, int]],
    *,
    made: int,
    is_marked_late: bool,
) -> list[RankEpoch]:
    """The epochs of one rank, from its marks with their moments, its steps, and its evaluations and checkpoints.

    ``made``: how many steps it made, recorded or not; 0: not known.
    """
    numbers, begins, ends, inputs = (records[name] for name in ("step", "begin_ns", "end_ns", "input_ns"))
    if not numbers.size:
        return []
    after_last = int(numbers[-1]) + 1
    if made:  # from 0 on, or in a resumed training from where it went on
        after_last = max(after_last, made if made >= after_last else min(int(numbers[0]), marks[0][0].step) + made)
    limits = [*(mark.step for mark, _ in marks[1:]), after_last]
    prepared = prepared_ns(records, [mark.step for mark, _ in marks])
    before: Counter[int] = Counter()
    epochs: list[RankEpoch] = []
    for (mark, mark_ns), limit in zip(marks, limits, strict=True):
        if limit <= mark.step:
            continue  # begun again, or the run ended
        row, next_row = np.searchsorted(numbers, [mark.step, limit]).tolist()
        has_first = row < next_row and numbers[row] == mark.step
        begin_ns, batch_ns = mark_ns, 0
        if is_marked_late:
            ended_ns = int(begins[row]) if has_first else next((one.last_step_ns for one in epochs[-1:]), None)
            begin_ns = max([ended_ns, *(end for _, end in spans if end <= mark_ns)]) if ended_ns else mark_ns
            asked_ns = begin_ns if mark.asked_ns is None else mark_ns - (mark.t_ns - mark.asked_ns)
            begin_ns = max(begin_ns, min(asked_ns, mark_ns))
        if is_marked_late and has_first:
            learned_ns = mark_ns - int(records["forward_ns"][row]) // max(int(records["backward_passes"][row]), 1)
            before_ns = between_ns(int(begins[row]), begin_ns, spans)
            batch_ns = min(learned_ns, begin_ns + int(inputs[row] + max(0, prepared[row] - before_ns)))
        last_ns = None
        if next_row < numbers.size and numbers[next_row] == limit:
            last_ns = int(begins[next_row])
        elif row < next_row and numbers[next_row - 1] == limit - 1:
            last_ns = int(ends[next_row - 1])
        epochs.append(
            RankEpoch(
                key=(mark.epoch, before[mark.epoch]),
                first_step=mark.step,
                steps=limit - mark.step,
                samples=samples_of(records, slice(row, next_row), limit - mark.step),
                begin_ns=begin_ns,
                first_batch_ns=max(batch_ns, outside_ns(begin_ns, int(inputs[row]) if has_first else 0, spans)),
                last_step_ns=last_ns,
            )
        )
        before[mark.epoch] += 1
    return epochs


def samples_of(records: Mapping[str, Moments], rows: slice, steps: int) -> int | None:
    """The samples of ``steps`` steps, ``rows`` of ``records``; None where some were not recorded."""
    if rows.stop - rows.start < steps or records["lacks_samples"][rows].any():
        return None
    return int(records["samples"][rows].sum())


def moments_ns(run: AlignedRun, moments: Sequence[tuple[int, int]]) -> list[int]:
    """Moments of ranks, (rank, ns) each, on the shared clock."""
    frame = pl.DataFrame(moments, schema={"rank": pl.Int64(), "t_ns": pl.Int64()}, orient="row")
    times: list[int] = run.clock.shared(frame, ("t_ns",))["t_ns"].to_list()
    return times
