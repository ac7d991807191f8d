"""Copy what is appended to a launcher's logs to our own stdout and stderr, as it arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from allpull.patient_stream import PatientStream

STDOUT, STDERR = 1, 2
CHUNK = 1 << 16


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
        self._streams = {log: PatientStream(log.stream) for log in logs}

    def copy(self) -> None:
        """Copy what is new, as far as its reader takes it at once."""
        for log in list(self._offsets):
            with self._stream(log) as stream:
                stream.write(b"")
                while not stream.is_behind and (data := self._next(log)):
                    stream.write(data)

    def finish(self) -> None:
        """Copy all that is left, however long its reader takes."""
        for log in list(self._offsets):
            with self._stream(log) as stream:
                stream.finish()
                while data := self._next(log):
                    stream.write(data)
                    stream.finish()

    @contextmanager
    def _stream(self, log: Log) -> Iterator[PatientStream]:
        try:
            yield self._streams[log]
        except OSError:
            del self._offsets[log]

    def _next(self, log: Log) -> bytes:
        if not log.path.exists():
            return b""
        with log.path.open("rb") as file:
            file.seek(self._offsets[log])
            data = file.read(CHUNK)
        self._offsets[log] += len(data)
        return data.replace(b"\r\n", b"\n") if log.is_terminal else data
