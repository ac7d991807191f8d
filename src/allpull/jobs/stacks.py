"""Get the stack of a process of this machine from py-spy, in a few seconds at most; none if py-spy fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

from allpull.schema.results import Trouble, WatchResult

ANSWER_S = 5.0
DEEPEST = 12  # frames, the innermost
MOST = 3  # ranks per snapshot
AGAIN_S = 10.0  # py-spy stops a rank for a moment each time

_FRAME = re.compile(r"^\s{4,}(\S.*\(.*\))\s*$")
_known: dict[int, tuple[float, list[str]]] = {}


def with_stacks(result: WatchResult) -> WatchResult:
    """``result`` with the stacks of ranks that hang on this machine, if py-spy is installed and has permission."""
    local = {rank.pid for rank in result.ranks if rank.alive}
    hung = [trouble for trouble in result.troubles if trouble.kind == "hung" and trouble.pid in local][:MOST]
    if not hung or shutil.which("py-spy") is None:
        return result
    troubles = [_with_stack(trouble) if trouble in hung else trouble for trouble in result.troubles]
    return result.model_copy(update={"troubles": troubles})


def _with_stack(trouble: Trouble) -> Trouble:
    taken_at_s, frames = _known.get(trouble.pid, (0.0, []))
    if not taken_at_s or time.monotonic() - taken_at_s > AGAIN_S:
        frames = stack(trouble.pid)
        _known[trouble.pid] = (time.monotonic(), frames)
    return trouble.model_copy(update={"stack": frames})


def stack(pid: int) -> list[str]:
    """Frames of the main thread of process ``pid``, outermost first; empty if they are not available."""
    try:
        done = subprocess.run(
            ["py-spy", "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return frames_of(done.stdout)


def frames_of(dump: str) -> list[str]:
    """The frames of the main thread in the output of ``py-spy dump``, outermost first.

    >>> frames_of('Thread 7 (idle): "MainThread"\\n    inner (a.py:2)\\n    outer (a.py:9)\\nThread 8 (idle)\\n')
    ['outer (a.py:9)', 'inner (a.py:2)']
    """
    frames: list[str] = []
    inside = False
    for line in dump.splitlines():
        if line.startswith("Thread "):
            inside = "MainThread" in line
        elif inside and (match := _FRAME.match(line)):
            frames.append(match.group(1)[:300])
    return frames[:DEEPEST][::-1]
