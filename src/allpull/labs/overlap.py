"""The lab of overlap: one real DDP run per bucket size, what backward hides of each, and what a replay foretold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allpull.api.runs import Run
from allpull.errors import AllpullError, BadInput
from allpull.explain.detail import ordinary_steps, timeline
from allpull.labs.ranks import check_ranks, rehearse_ranks, why_no_hosts
from allpull.replay.engine import event_times, replay
from allpull.replay.recording.build import record_window
from allpull.replay.whatif.network import with_buckets
from allpull.replay.window import REDUCE, Window
from allpull.schema.base import tag
from allpull.schema.labs import LaneBucket, LanePart, OverlapResult, OverlapRun

SIZES_MIB = (1.0, 4.0, 10.0, 25.0, 100.0)
DEFAULT_MIB = 25.0  # DDP's bucket_cap_mb
SMALLEST_MIB, LARGEST_MIB, MOST_SIZES = 0.1, 1000.0, 12
STEPS = 40
MIB = 1 << 20
SHRINK = 100  # bytes and rates of a rehearsed cluster are divided by it; within a machine nothing is

CLUSTER = """[cluster]
name = "{name}"
hosts = {ranks}
link = "10 Gbit/s"
shrink = {shrink}

[accelerator]
model = "resnet18"
batch = 64
forward_ms = 40
backward_ms = 80
input_ms = 2
optimizer_ms = 4
bucket_mib = {bucket_mib}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapLab:
    """Train ``ranks`` once with each of ``sizes_mib``, DDP's ``bucket_cap_mb``."""

    ranks: int = 2
    sizes_mib: Sequence[float] = SIZES_MIB
    steps: int = STEPS

    def check(self) -> None:
        """Whether this can be done here.

        Raises:
            BadInput: it cannot; says why.
        """
        check_ranks(self.ranks, 2)
        if not 2 <= len(set(self.sizes_mib)) <= MOST_SIZES:
            raise BadInput(f"--buckets: 2 to {MOST_SIZES} different sizes can be compared", hint="such as 1,4,25")
        wrong = [size for size in self.sizes_mib if not SMALLEST_MIB <= size <= LARGEST_MIB]
        if wrong:
            raise BadInput(f"--buckets: {wrong[0]:g} MiB; {SMALLEST_MIB:g} to {LARGEST_MIB:g} MiB can be tried")

    @property
    def ordered(self) -> list[float]:
        """The sizes, each once, ascending."""
        return sorted(set(self.sizes_mib))

    @property
    def base_mib(self) -> float:
        """The size whose run is replayed with the others: that nearest to DDP's default."""
        return min(self.ordered, key=lambda size: abs(size - DEFAULT_MIB))


def run_overlap(lab: OverlapLab, out: Path = Path("runs")) -> OverlapResult:
    """Do ``lab``; the run directories are made in ``out``.

    Raises:
        BadInput: it cannot be done here.
        AllpullError: a rank failed, or a run has no times of its buckets.
    """
    lab.check()
    reason = why_no_hosts()
    shrink = 1 if reason else SHRINK
    runs, windows = [], []
    for size in lab.ordered:
        name = f"lab-overlap-{size:g}"
        cluster = CLUSTER.format(name=name, ranks=lab.ranks, shrink=shrink, bucket_mib=size)
        runs.append(rehearse_ranks(cluster, lab.steps, name, out, shaped=reason is None))
        windows.append(_window(runs[-1]))
    base = windows[lab.ordered.index(lab.base_mib)]
    each = zip(lab.ordered, runs, windows, strict=True)
    return OverlapResult(
        schema=tag("lab"),
        ranks=lab.ranks,
        steps=lab.steps,
        link="10 Gbit/s" if reason is None else None,
        unshaped=None if reason is None else f"There are no virtual hosts here: {reason}.",
        shrink=shrink,
        base_mib=lab.base_mib,
        runs=[_recorded(size, run, window, _replayed_s(base, size, shrink)) for size, run, window in each],
    )


def _window(run: Run) -> Window:
    """The window of ``run``, in which the buckets of every step are known.

    Raises:
        AllpullError: they are not.
    """
    window = record_window(run.aligned)
    lane = window.reductions if isinstance(window, Window) else None
    if not isinstance(window, Window) or lane is None or window.level != "bucket" or lane.size_bytes is None:
        raise AllpullError(f"run {run.id} does not show its buckets", hint=f"allpull explain {run.directory} says why")
    return window


def _replayed_s(base: Window, size_mib: float, shrink: float) -> float:
    """Mean step of ``base`` with its gradients in buckets of another size, which costs nothing per bucket."""
    cap_bytes = max(1, round(size_mib * MIB / shrink))
    return replay(with_buckets(base, cap_bytes)).total_s / base.steps.size


def _recorded(size_mib: float, run: Run, window: Window, replayed_s: float) -> OverlapRun:
    lane, times = window.reductions, event_times(window)
    assert lane is not None  # ``_window`` checks
    reduces = window.kind == REDUCE
    arrived_s, done_s = times.stand_s[reduces].max(axis=1), times.leave_s[reduces].min(axis=1)
    exchange_s = float(lane.seconds.sum(axis=1).mean())
    exposed_s = min(float(np.maximum(done_s - arrived_s, 0.0).mean()), exchange_s)
    parts, buckets = _lanes(window)
    return OverlapRun(
        bucket_mib=size_mib,
        run=run.id,
        step_s=window.measured_s / window.steps.size,
        replayed_s=replayed_s,
        exchange_s=exchange_s,
        exposed_s=exposed_s,
        hidden_s=exchange_s - exposed_s,
        compute=parts,
        buckets=buckets,
    )


def _lanes(window: Window) -> tuple[list[LanePart], list[LaneBucket]]:
    """An ordinary step: the phases of the rank whose last gradient came last, and the buckets; in s after its begin."""
    lane, times = window.reductions, event_times(window)
    assert lane is not None  # ``_window`` checks
    assert lane.size_bytes is not None  # as above
    chosen = ordinary_steps(window)
    row = int(chosen[len(chosen) // 2])
    event = int(np.flatnonzero((window.step_of == row) & (window.kind == REDUCE))[-1])
    stand_s, rank = times.stand_s[event], int(times.stand_s[event].argmax())
    drawn = [part for part in timeline(window) if part.step == int(window.steps[row])]
    own, on_network = [one for one in drawn if one.rank == rank], [one for one in drawn if one.rank is None]
    zero_s = min(part.begin_s for part in own)
    ready_s = (stand_s - lane.lead_s[int(times.reduction[event])]).max(axis=1) - stand_s[rank]
    arrival_s = max(part.end_s for part in own if part.part == "backward") - zero_s
    sizes = lane.size_bytes.tolist()
    return (
        [LanePart(part=one.part, begin_s=one.begin_s - zero_s, end_s=one.end_s - zero_s) for one in own],
        [
            LaneBucket(
                size_bytes=size, ready_s=arrival_s + ready, begin_s=one.begin_s - zero_s, end_s=one.end_s - zero_s
            )
            for size, ready, one in zip(sizes, ready_s.tolist(), on_network, strict=True)
        ],
    )
