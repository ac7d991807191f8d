"""Keep what NCCL wrote about its transports, where the user sends its log to files (``NCCL_DEBUG_FILE``).

The log is read once, when the rank ends: only lines of this process that name a network, an interface or the way of a
channel are recorded. Nothing is switched on.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from typing import Dict, List, Mapping, Optional

from ....rundir import redact
from ..safety import safely
from ..session import Session

FILE_VARIABLE = "NCCL_DEBUG_FILE"
MOST_BYTES = 4 << 20  # of the log: transports are named when NCCL connects, near its begin
MOST_LINES = 128  # of different content
MOST_CHARACTERS = 400  # of a line
ABOUT = (b" via ", b"Using network ", b"NET/Socket : Using ", b"NET/IB : Using ", b" set by environment to ")
CHANNEL = re.compile(rb"(Channel|Ring) \d+")  # dozens of channels take the same way


class NcclLog:
    """The log of NCCL in this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.failed: "set[str]" = set()

    @safely("NCCL log")
    def finish(self) -> None:
        """The program ends: record what its log says of transports."""
        recorder, path = self.session.recorder, log_path(os.environ)
        if recorder is None or path is None:
            return
        lines = transport_lines(path, os.getpid())
        if lines:
            now = time.monotonic_ns()
            recorder.journal.event({"kind": "nccl_log", "lines": lines, "t_ns": now}, now)


def log_path(environ: Mapping[str, str]) -> Optional[str]:
    """The file that NCCL writes to: ``%h`` stands for the host, ``%p`` for the process; None: it writes to none.

    >>> log_path({"NCCL_DEBUG_FILE": "/tmp/nccl.%p"}) == f"/tmp/nccl.{os.getpid()}"
    True
    """
    pattern = environ.get(FILE_VARIABLE)
    if not pattern:
        return None
    host = socket.gethostname().partition(".")[0]
    names = {"%h": host, "%p": str(os.getpid()), "%%": "%"}
    return re.sub(r"%[hp%]", lambda match: names[match.group(0)], pattern)


def transport_lines(path: str, pid: int) -> List[str]:
    """The lines of process ``pid`` about transports in the log at ``path``, each way once; none of other files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)  # else /dev/stderr, say
            text = os.read(descriptor, MOST_BYTES) if is_file else b""
        finally:
            os.close(descriptor)
    except OSError:
        return []
    mine = b":%d:" % pid
    kept: Dict[bytes, bytes] = {}
    for line in text.splitlines():
        if b" NCCL INFO " in line and mine in line and any(about in line for about in ABOUT):
            kept.setdefault(CHANNEL.sub(b"", line.partition(b" NCCL INFO ")[2]), line)
            if len(kept) >= MOST_LINES:
                break
    return [redact.text(line[:MOST_CHARACTERS].decode("utf-8", "replace"))[0] for line in kept.values()]
