"""Start the sidecar of a host: one process per host that samples counters and compares clocks beside the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Dict, List, Sequence

from .. import clock_pings

RUN_FROM = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
ABOVE_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def start(
    job: Dict[str, Any],
    host: str,
    watch: int,
    part: clock_pings.Part = clock_pings.NONE,
    through: Sequence[str] = (),
    **to: Any,
) -> "subprocess.Popen[bytes]":
    """Start the sidecar of ``host`` for ``job``, the content of its job file; it lives as long as process ``watch``.

    ``through`` is a module that runs it, and ``to`` goes to ``Popen``.
    """
    arguments = ["--run", str(job["directory"]), "--host", host, "--watch", str(watch), *part.options]
    arguments += ["--interval-s", str(job["counter_interval_s"]), "--budget", str(job["budget"])]
    environ = {**(to.pop("env", None) or os.environ), clock_pings.NONCE_VARIABLE: str(job.get("nonce", ""))}
    inherited = () if part.descriptor is None else (part.descriptor,)
    command = [sys.executable, *_begin(), *through, __package__, *arguments]
    try:
        return subprocess.Popen(command, env=environ, pass_fds=inherited, **to)
    finally:
        for descriptor in inherited:
            os.close(descriptor)


def _begin() -> List[str]:
    """How Python runs a module of this package: the hook's folder is on nobody's path for longer than its start."""
    if not __package__.startswith("_"):
        return ["-m"]
    return ["-c", RUN_FROM, ABOVE_PACKAGE]
