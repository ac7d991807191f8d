"""Files of a run that other tools open: the timeline for Perfetto, and the traces of torch's profiler."""

from __future__ import annotations

from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open

MOST_TRACES = 24  # what a page links to; the folder has all of them


def linked_files(directory: Path) -> list[str]:
    """Their paths in the run directory, the timeline first; [] where there are none, or they cannot be looked at."""
    try:
        root = safe_open.checked_directory(directory)
        derived = safe_open.file_names(root, layout.DERIVED, ".json.gz")
        traces = safe_open.file_names(root, layout.TRACES, ".json.gz")
    except RunDirError:
        return []
    timeline = [layout.TIMELINE] if layout.TIMELINE.rpartition("/")[2] in derived else []
    return [*timeline, *(f"{layout.TRACES}/{name}" for name in sorted(traces)[:MOST_TRACES])]
