"""Start and stop the sidecar of a host: the process that samples counters and compares clocks while the ranks run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...rundir import layout
from ...rundir.job_file import JOB_VARIABLE, JobFile
from .. import clock_pings

IS_CARRIED = __package__.startswith("_")  # this is the copy in a run directory, which the start-up hook uses
RUN_FROM = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
ABOVE_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
STOP_S = 5.0  # for the last sample and the last pings


def start(
    job: JobFile,
    host: str,
    *,
    watch: int,
    clock: clock_pings.ClockRole = clock_pings.NONE,
    environ: Optional[Mapping[str, str]] = None,
    through: Sequence[str] = (),
    **streams: Any,
) -> "Optional[subprocess.Popen[bytes]]":
    """Start the sidecar of ``host``, which lives as long as process ``watch``; None where ``job`` wants no counters.

    ``clock`` is its part in comparing clocks, ``environ`` its environment if not ours, ``through`` a module that runs
    it; ``streams`` goes to ``Popen``.

    Raises:
        OSError: it cannot be started.
    """
    if not job.counters:
        return None
    options = ["--run", job.directory, "--host", host, "--watch", str(watch), *clock.options]
    options += ["--interval-s", str(job.counter_interval_s), "--budget", str(job.budget)]
    environment = {**(os.environ if environ is None else environ), clock_pings.NONCE_VARIABLE: job.nonce}
    environment.pop(JOB_VARIABLE, None)  # the sidecar is not a process to observe
    inherited = () if clock.descriptor is None else (clock.descriptor,)
    command = [sys.executable, *_run_module(), *through, __package__, *options]
    # of the carried copy, a module of the program's own folder must not be taken for one of Python's
    cwd = job.directory if IS_CARRIED else None
    try:
        return subprocess.Popen(command, env=environment, cwd=cwd, pass_fds=inherited, **streams)
    finally:
        for descriptor in inherited:
            os.close(descriptor)


def start_detached(
    job: JobFile, host: str, *, watch: int, clock: clock_pings.ClockRole = clock_pings.NONE
) -> "Optional[subprocess.Popen[bytes]]":
    """As ``start``, for a program that allpull did not launch: with its own log, out of reach of the program's signals.

    mpirun, among others, waits for every process that holds the program's output.
    """
    if not job.counters:
        return None
    with open(os.path.join(job.directory, layout.sidecar_log(host)), "ab") as log:
        streams: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return start(job, host, watch=watch, clock=clock, start_new_session=True, **streams)


def stop(sidecar: "Optional[subprocess.Popen[bytes]]") -> None:
    """Have the sidecar take its last sample and end."""
    if sidecar is not None:
        sidecar.terminate()
        await_end(sidecar)


def await_end(sidecar: "Optional[subprocess.Popen[bytes]]") -> None:
    """Wait for the sidecar of a process that has ended, which it notices itself; kill it after ``STOP_S``."""
    if sidecar is None:
        return
    try:
        sidecar.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        sidecar.kill()
        sidecar.wait()


def _run_module() -> List[str]:
    """The options by which Python runs a module of this package; the carried copy is on no path but its own."""
    return ["-c", RUN_FROM, ABOVE_PACKAGE] if IS_CARRIED else ["-m"]
