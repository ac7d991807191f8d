"""One process of an observed job: whether it is a rank, the recorder if it is, and what is said of it in the end.

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
WORDS = "marks.step"


class Session:
    """This process; ``recorder`` is None until it is a rank, and where it cannot be one."""

    def __init__(self, job_file: str, boundary: str = BOUNDARY) -> None:
        self.job = JobFile.read(job_file)
        self.job_file = job_file
        self.boundary = boundary
        self.directory = self.job.directory
        self.recorder: Optional[Recorder] = None
        self.who: Optional[Identity] = None
        self.sources: List[str] = []
        self.at_begin: List[Callable[[], None]] = []
        self.at_close: List[Callable[[], None]] = []
        self._missing: List[Tuple[str, str]] = []
        self._reason: Optional[str] = None
        self._refused_rank: Optional[int] = None
        self._pid = os.getpid()
        self._said = False
        self._beginning = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> Optional[Recorder]:
        """Become a rank: claim its number and open its files; None where another process has them."""
        with self._beginning:  # threads may come to train at the same time
            return self._begun()

    def _begun(self) -> Optional[Recorder]:
        if self.recorder is not None or self._reason is not None:
            return self.recorder
        who = identify()
        before = begin(self.directory, who.rank)
        path = os.path.join(self.directory, layout.steps_file(who.rank))
        for folder in ("steps", "events"):
            private_folder(os.path.join(self.directory, folder))
        if os.path.exists(path):
            self._reason = f"rank {who.rank} is another process, which was there before"
            self._refused_rank = who.rank
            os.write(2, f"allpull: process {os.getpid()} is not recorded: {self._reason}\n".encode())
            self._say()
            return None
        self.who = who
        self.recorder = Recorder(
            self.directory,
            who,
            budget=self.job.budget,
            warmup_steps=self.job.warmup_steps,
            boundary=self.boundary if "torch" in sys.modules else WORDS,  # without torch nothing else could tell
            sources=tuple(self.sources),
        )
        if before is not None:
            self.recorder.restarted(**before)
        for part, reason in self._missing:
            self.recorder.journal.switched_off(reason, part)
        self._say()
        self._close_at_exit()
        for call in self.at_begin:
            call()
        if who.local_rank == 0 and os.environ.get(SIDECAR_VARIABLE) == "hook":
            self._start_sidecar(who)
        return self.recorder

    def part_failed(self, part: str, error: Exception) -> None:
        """One part of observation ended by an error of its own; the program goes on."""
        if self.recorder is None:
            self.part_missing(part, error)
        else:
            self.recorder.journal.switched_off(_in_words(error), part)

    def part_ends(self, part: str, reason: str) -> None:
        """One part of observation ends for a good reason: it is recorded, and nobody is warned."""
        if self.recorder is not None:
            now = time.monotonic_ns()
            event = {"kind": "switched_off", "reason": reason, "part": part, "t_ns": now}
            self.recorder.journal.event(event, now)

    def part_missing(self, part: str, error: Exception) -> None:
        """One part of observation cannot be had here, which the record says if this process becomes a rank."""
        self._missing.append((part, _in_words(error)))

    def raised(self, error: BaseException) -> None:
        """An exception ends this rank."""
        if self.recorder is not None and os.getpid() == self._pid:
            self.recorder.raised(error)

    def close(self, *, ended_well: bool = True) -> None:
        """Write what is left; once, and in the process that began."""
        if os.getpid() != self._pid:
            return
        if self.recorder is None:
            if "torch" in sys.modules and not self._said:
                self._reason = self._reason or "it imported torch and did not train"
                self._say()
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

        def told(kind: Any, error: Any, trace: Any) -> None:
            self.raised(error)
            if self.recorder is not None and os.getpid() == self._pid:
                self.recorder.close(ended_well=False)
                self.recorder = None
            before(kind, error, trace)

        sys.excepthook = told

    def _say(self) -> None:
        """Put down what this process is, for whoever wonders at the end."""
        self._said = True
        who, torch = self.who, sys.modules.get("torch")
        arguments, _ = redact.arguments(list(getattr(sys, "orig_argv", sys.argv))[:50])
        told = {
            "pid": os.getpid(),
            "host": host_name(),
            "rank": None if who is None else who.rank,
            "local_rank": None if who is None else who.local_rank,
            "ranks": None if who is None else who.ranks,
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
            whole_json(path, told)
        except (OSError, ValueError):
            pass  # it is for diagnosis alone

    def _forked(self) -> None:
        if self.recorder is not None:
            self.recorder.disown()
            self.recorder = None
            self._reason = "it was forked from a rank"
        self._pid = os.getpid()
        self._beginning = threading.RLock()

    def _start_sidecar(self, who: Identity) -> None:
        from .start_sidecar import start_sidecar  # noqa: PLC0415  where no agent did

        start_sidecar(self, who)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def identify() -> Identity:
    """Who this process is: by its process group where it has one, else by the variables of its starter, else alone."""
    started = started_as(os.environ)
    rank, ranks, local_rank = started or (0, 1, 0)
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        if started is None:
            local_rank = distributed.get_rank()  # mp.spawn on one host: nothing else tells
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    return Identity(rank=rank, local_rank=local_rank, ranks=ranks, host=host_name())
