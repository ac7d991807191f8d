"""One process of an observed job: whether it is a rank, its recorder if so, and its entry in ``job/processes``.

A process becomes a rank when it joins a process group or trains; launchers, loader workers and helpers never do. The
first process to claim a rank's number is that rank.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from ...rundir import layout, redact
from ...rundir.job_file import JobFile
from ...rundir.write import private_folder, whole_json
from ..identity import Identity, host_name, started_as
from ..recording.attempts import begin
from ..recording.recorder import Recorder
from ..versions import vector_kernels

SIDECAR_VARIABLE = "ALLPULL_SIDECAR"
BOUNDARY = "optimizer.step"
MARKS = "marks.step"


class Session:
    """This process; ``recorder`` is None until it is a rank, and if it cannot become one."""

    def __init__(self, job_file: str, boundary: str = BOUNDARY) -> None:
        self.job = JobFile.read(job_file)
        self.job_file = job_file
        self.boundary = boundary
        self.directory = self.job.directory
        self.recorder: Optional[Recorder] = None
        self.identity: Optional[Identity] = None
        self.sources: List[str] = []
        self.at_begin: List[Callable[[], None]] = []
        self.at_close: List[Callable[[], None]] = []
        self._missing: List[Tuple[str, str]] = []
        self._reason: Optional[str] = None
        self._refused_rank: Optional[int] = None
        self._pid = os.getpid()
        self._described = False
        self._beginning = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> Optional[Recorder]:
        """Become a rank: claim its number and open its files; None if another process has claimed it."""
        with self._beginning:  # two threads may begin to train at once
            return self._begun()

    def _begun(self) -> Optional[Recorder]:
        if self.recorder is not None or self._reason is not None:
            return self.recorder
        identity = identify()
        before = begin(self.directory, identity.rank)
        path = os.path.join(self.directory, layout.steps_file(identity.rank))
        for folder in ("steps", "events"):
            private_folder(os.path.join(self.directory, folder))
        if os.path.exists(path):
            self._reason = f"rank {identity.rank} is already another process"
            self._refused_rank = identity.rank
            os.write(2, f"allpull: process {os.getpid()} is not recorded: {self._reason}\n".encode())
            self._describe()
            return None
        self.identity = identity
        self.recorder = Recorder(
            self.directory,
            identity,
            budget=self.job.budget,
            warmup_steps=self.job.warmup_steps,
            boundary=self.boundary if "torch" in sys.modules else MARKS,  # without torch only marks end steps
            sources=tuple(self.sources),
        )
        if before is not None:
            self.recorder.journal.restarted(**before)
        for part, reason in self._missing:
            self.recorder.journal.switched_off(reason, part)
        self._describe()
        self._close_at_exit()
        for call in self.at_begin:
            call()
        if identity.local_rank == 0 and os.environ.get(SIDECAR_VARIABLE) == "hook":
            self._start_sidecar(identity)
        return self.recorder

    def part_failed(self, part: str, error: Exception) -> None:
        """One part of observation failed; the program continues."""
        if self.recorder is None:
            self.part_missing(part, error)
        else:
            self.recorder.journal.switched_off(_text(error), part)

    def part_ends(self, part: str, reason: str) -> None:
        """One part of observation ends for an expected reason: recorded, without a warning."""
        if self.recorder is not None:
            now = time.monotonic_ns()
            event = {"kind": "switched_off", "reason": reason, "part": part, "t_ns": now}
            self.recorder.journal.event(event, now)

    def part_missing(self, part: str, error: Exception) -> None:
        """One part of observation is not available here; recorded if this process becomes a rank."""
        self._missing.append((part, _text(error)))

    def raised(self, error: BaseException) -> None:
        """An exception ends this rank."""
        if self.recorder is not None and os.getpid() == self._pid:
            self.recorder.journal.raised(error)

    def close(self, *, ended_well: bool = True) -> None:
        """Write what is buffered; once, and only in the process that began."""
        if os.getpid() != self._pid:
            return
        if self.recorder is None:
            if "torch" in sys.modules and not self._described:
                self._reason = self._reason or "it imported torch and did not train"
                self._describe()
            return
        for call in self.at_close:
            call()
        self.recorder.close(ended_well=ended_well)
        self.recorder = None
        self._reason = "it has ended"

    def _close_at_exit(self) -> None:
        from multiprocessing import util  # noqa: PLC0415  only a rank needs it

        util.Finalize(None, self.close, exitpriority=100)  # children of multiprocessing run no exit functions
        before = sys.excepthook

        def record(kind: Any, error: Any, trace: Any) -> None:
            self.raised(error)
            if self.recorder is not None and os.getpid() == self._pid:
                self.recorder.close(ended_well=False)
                self.recorder = None
            before(kind, error, trace)

        sys.excepthook = record

    def _describe(self) -> None:
        """Write what this process is, for the diagnosis of missing ranks."""
        self._described = True
        identity, torch = self.identity, sys.modules.get("torch")
        arguments, _ = redact.arguments(list(getattr(sys, "orig_argv", sys.argv))[:50])
        record = {
            "pid": os.getpid(),
            "host": host_name(),
            "rank": None if identity is None else identity.rank,
            "local_rank": None if identity is None else identity.local_rank,
            "ranks": None if identity is None else identity.ranks,
            "argv": [argument[:1000] for argument in arguments],
            "python": sys.version.split()[0],
            "torch": getattr(torch, "__version__", None) and str(torch.__version__),  # type: ignore[union-attr]
            "torch_cpu": vector_kernels(),
            "reason": self._reason,
            "refused_rank": self._refused_rank,
        }
        try:
            path = os.path.join(self.directory, layout.process_file(host_name(), os.getpid()))
            private_folder(os.path.dirname(path))
            whole_json(path, record)
        except (OSError, ValueError):
            pass  # only a diagnosis is lost

    def _forked(self) -> None:
        if self.recorder is not None:
            self.recorder.disown()
            self.recorder = None
            self._reason = "it was forked from a rank"
        self._pid = os.getpid()
        self._beginning = threading.RLock()

    def _start_sidecar(self, identity: Identity) -> None:
        """Sample this host's counters for as long as this process lives, unless another process does so already."""
        from .. import clock_pings  # noqa: PLC0415  needed only where no agent started it
        from ..sidecar.start import start_detached  # noqa: PLC0415  as above

        if os.path.exists(os.path.join(self.directory, layout.counters_file(identity.host))):
            return
        one_host = identity.ranks == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(identity.ranks)
        clock = clock_pings.NONE if one_host else clock_pings.AUTO
        try:
            start_detached(self.job, identity.host, watch=os.getpid(), clock=clock)
        except OSError as error:
            self.part_failed("counters", error)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def identify() -> Identity:
    """The identity of this process: from its process group, else from the variables of its launcher, else alone."""
    started = started_as(os.environ)
    rank, ranks, local_rank = started or (0, 1, 0)
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        if started is None:
            local_rank = distributed.get_rank()  # mp.spawn on one host sets no variables
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    return Identity(rank=rank, local_rank=local_rank, ranks=ranks, host=host_name())
