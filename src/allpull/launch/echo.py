"""Copy what is appended to a launcher's logs to our own stdout and stderr, as it arrives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STDOUT, STDERR = 1, 2
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log, and the stream it is copied to. ``is_terminal``: written through a terminal, with its returns."""

    path: Path
    stream: int
    is_terminal: bool = False


class Echo:
    """Copies what is appended to ``logs``; a log whose stream is closed is no longer copied."""

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
