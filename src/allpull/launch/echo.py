"""Let the user see what a launcher keeps in logs: copy what is appended to them to our own streams, as it comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STDOUT, STDERR = 1, 2
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log, and the stream that it belongs on. ``is_terminal``: it was written through one, which adds returns."""

    path: Path
    stream: int
    is_terminal: bool = False


class Echo:
    """Copies ``logs`` from where they are now; one whose stream is closed is left alone from then on."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self._offsets = dict.fromkeys(logs, 0)

    def copy(self) -> None:
        """Copy what is new."""
        for log in list(self._offsets):
            try:
                self._copy(log)
            except OSError:
                del self._offsets[log]

    def _copy(self, log: Log) -> None:
        if not log.path.exists():
            return
        with log.path.open("rb") as file:
            file.seek(self._offsets[log])
            while data := file.read(CHUNK):
                self._offsets[log] += len(data)
                data = data.replace(b"\r\n", b"\n") if log.is_terminal else data
                while data:
                    data = data[os.write(log.stream, data) :]
