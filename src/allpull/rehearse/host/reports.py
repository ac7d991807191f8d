"""What hosts report to the keeper, one line of JSON each, over a pipe that they share. Standard library only.

``{"ready": 1}``: host 1 is ready for its ranks. ``{"clock": {…}}``: how wrong a host's wall clock is at one moment.
``{"killed": 3, "monotonic_ns": …}``: rank 3 was killed, as planned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_ATOMIC_BYTES = 4096  # PIPE_BUF on Linux: a shorter line is never interleaved with another host's


def send(descriptor: int, **report: Any) -> None:
    """Send ``report``; ignored if the keeper has ended."""
    line = json.dumps(report).encode() + b"\n"
    assert len(line) <= _ATOMIC_BYTES
    with suppress(OSError):
        os.write(descriptor, line)


class Reports:
    """The keeper's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._unfinished_line = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """The reports since the last call."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._descriptor, 1 << 16):
                self._unfinished_line += chunk
        *lines, self._unfinished_line = self._unfinished_line.split(b"\n")
        yield from map(json.loads, lines)
