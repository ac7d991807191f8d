"""Write to a stream that nobody may be reading: a job does not wait for whoever looks at it."""

from __future__ import annotations

import os
import select


class PatientStream:
    """An output stream of this process that keeps what its reader does not take at once.

    A pipe whose reader pauses and a terminal after Ctrl-S are full, and a plain write waits until they are not.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    @property
    def is_behind(self) -> bool:
        """Whether something is kept."""
        return bool(self._held)

    def write(self, data: bytes) -> None:
        """Write what was kept and ``data``, as far as the stream takes it at once, and keep the rest.

        Raises:
            OSError: nobody will read it, or the disk is full; nothing is kept.
        """
        self._held += data
        self._pass_on(0)

    def finish(self) -> None:
        """Write what was kept, however long its reader takes.

        Raises:
            OSError: as ``write``.
        """
        self._pass_on(None)

    def _pass_on(self, wait_ms: int | None) -> None:
        while self._held and self._poll.poll(wait_ms):
            data, self._held = self._held, b""
            try:
                written = os.write(self._descriptor, data[: select.PIPE_BUF])  # a pipe that is ready takes as much
            except BlockingIOError:  # whoever shares it made it non-blocking, and was faster
                written = 0
            self._held = data[written:]
