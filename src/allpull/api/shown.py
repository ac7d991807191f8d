"""What ``allpull show`` presents of runs; of one large run the second time without reading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.api.places import run_directories
from allpull.rundir.derived import cache_report, cached_report, result_key
from allpull.schema.reported import ScalingReport


def shown(places: Sequence[Path], accuracy: float | None = None, *, skip_damaged: bool = False) -> ScalingReport:
    """``reporting.scaling_report`` of the runs at ``places``, which are opened as by ``runs.readable_runs``.

    Raises:
        RunDirError: there is no run at a place, or none can be read.
        BadInput: no place was given.
    """
    directories = run_directories(places)
    key = None
    if len(directories) == 1 and not skip_damaged:
        key = result_key(directories[0], f"{directories[0]} {accuracy}")
    known = None if key is None else cached_report(key)
    if known is not None:
        return known
    from allpull.api.reporting import scaling_report  # noqa: PLC0415  what reads runs takes long to import
    from allpull.api.runs import readable_runs  # noqa: PLC0415  as above

    runs, damaged = readable_runs(places, skip_damaged=skip_damaged)
    result = scaling_report([run.aligned for run in runs], accuracy).model_copy(update={"damaged": damaged})
    if key is not None:
        cache_report(key, result)
    return result
