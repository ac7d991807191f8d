"""What hosts report to the keeper, a line of JSON each, over a pipe that they share. Standard library only.

``{"stands": 1}`` says that host 1 is ready for its ranks, ``{"clock": {…}}`` how wrong its wall clock is at one time,
and ``{"killed": 3, "monotonic_ns": …}`` that rank 3 was killed, as planned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_ATOMIC_BYTES = 4096  # PIPE_BUF on Linux: a shorter line is never torn by another host's


def send(descriptor: int, **news: Any) -> None:
    """Report ``news``; ignored if the keeper has gone."""
    line = json.dumps(news).encode() + b"\n"
    assert len(line) <= _ATOMIC_BYTES
    with suppress(OSError):
        os.write(descriptor, line)


class Reports:
    """The keeper's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._begun = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """What was reported since the last call."""
        with suppress(BlockingIOError):
            while heard := os.read(self._descriptor, 1 << 16):
                self._begun += heard
        *lines, self._begun = self._begun.split(b"\n")
        yield from map(json.loads, lines)
