"""What the processes of a job have in common: how they end, and with which exit code."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1
WARNED = 128 + signal.SIGUSR1  # exit code of a training that stopped on a warning
UNFLUSHED = 120  # exit code of Python where its output cannot be written
SERVE_VARIABLE = "ALLPULL_SERVE_STORE"  # set for rank 0 where no agent serves the store of the process group


def end_with_parent(number: int) -> None:
    """Have Linux send us signal ``number`` when our parent dies; elsewhere do nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def leave(code: int, *, needs_output: bool = True) -> NoReturn:
    """End this process after its exit functions, without Python's own finalisation.

    ``needs_output``: it has failed where its output cannot be written, as Python has it.

    Gloo's threads outlive their process group; one that drops a tensor during finalisation aborts the process, and a
    successful training would end with code 134 (pytorch issues 179291, 190489).
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a terminal that has closed, a full disk
            code = code or (UNFLUSHED if needs_output else 0)
    os._exit(code)
