"""The operators that take most of a profiler window, for a report."""

from __future__ import annotations

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.rundir.read.run import RunData
from allpull.schema.results import Operator, OperatorSummary
from allpull.traces.operators import self_times

MAX_BYTES = 64 << 20  # unpacked: a second or two
MOST = 15  # of each kind


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
