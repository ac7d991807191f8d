"""What every process of a job agrees on: how it ends, and with which code."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1
WARNED = 128 + signal.SIGUSR1  # the exit code of a training that stopped at a warning: it did what it was asked
SERVE_VARIABLE = "ALLPULL_SERVE_STORE"  # set for rank 0 where no agent serves the store in which ranks meet


def end_with_parent(number: int) -> None:
    """Ask Linux to send us signal ``number`` when our parent dies; elsewhere, nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def leave(code: int) -> NoReturn:
    """End this process without Python's own finalisation, after the exit functions and the output.

    Gloo's threads outlive their process group; one that drops a tensor while the interpreter is being taken down
    aborts the process, and a training that went well would end with code 134 (pytorch issues 179291, 190489).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
