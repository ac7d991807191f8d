"""Give the processes of one host a wrong wall clock, with libfaketime; their monotonic clock stays right.

``python -m allpull.rehearse.host.fake_clock MODULE ARGS…`` runs a module under one. The offset holds from the start of
a host's first program. The drift counts from that moment too, also in the programs that it forks and executes:
libfaketime passes the moment on to them (FAKETIME_SHARED).

libfaketime 0.9.10 breaks absolute sleeps on the monotonic clock when it is to leave that clock unchanged, and Python's
``time.sleep`` is one; ``patch_sleep`` therefore makes it wait in ``select`` instead. Programs that a rank executes in
turn get the right clock, because their sleeping is not patched. A user's command is patched by a ``sitecustomize`` in
the folder ``layout.CLUSTER_CLOCK`` of the run directory.
"""

from __future__ import annotations

import os
import runpy
import select
import shutil
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import SupportsFloat

from allpull.rundir import layout
from allpull.rundir.write import private_folder

LIBRARY = "libfaketimeMT.so.1"
RIGHT_NS = "ALLPULL_RIGHT_CLOCK_NS"
"""The variable with what to add to the monotonic clock to get the right wall clock, in ns."""
PLACES = ("/usr/lib/*/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
_PRELOAD = "LD_PRELOAD"
_READINGS = 9


def library() -> Path | None:
    """Where libfaketime is installed; None: in none of ``PLACES``."""
    for place in PLACES:
        for path in sorted(Path("/").glob(f"{place.lstrip('/')}/{LIBRARY}")):
            return path
    return None


def environment(library: Path, offset_s: float, drift_ppm: float, right_ns: int) -> dict[str, str]:
    """Variables that give an executed program a wall clock ``offset_s`` ahead that gains ``drift_ppm``.

    ``right_ns`` is by how much the right wall clock exceeds the monotonic one.

    >>> environment(Path("/lib/f.so"), 5.0, 100.0, 0)["FAKETIME"]
    '+5.000000 x1.000100000'
    """
    other_libraries = os.environ.get(_PRELOAD)
    return {
        _PRELOAD: f"{library}:{other_libraries}" if other_libraries else str(library),
        "FAKETIME": f"{offset_s:+.6f} x{1 + drift_ppm / 1e6:.9f}",
        RIGHT_NS: str(right_ns),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # its name before 0.9.8
        "NO_FAKE_STAT": "1",  # files keep the times that all hosts see
    }


def adapt_process(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Patch sleeping in this process, which has a wrong clock; what it executes gets the right one from now on.

    Returns the variables with which a program that it executes has the wrong one too.
    """
    patch_sleep()
    faked = dict(environ)
    other_libraries = [item for item in environ.pop(_PRELOAD, "").split(":") if item and Path(item).name != LIBRARY]
    if other_libraries:
        environ[_PRELOAD] = ":".join(other_libraries)
    return faked


def reading() -> tuple[int, int]:
    """The monotonic clock now, and by how much the wall clock exceeds it, in ns; the quickest of several readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_READINGS)]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    now = (before + after) // 2
    return now, wall - now


def ahead(environ: Mapping[str, str]) -> tuple[int, int]:
    """The monotonic clock now, and how far this process's wall clock is ahead of the right one, in ns.

    ``environ`` holds the variables by which it got that clock.
    """
    now, wall = reading()
    return now, wall - int(environ[RIGHT_NS])


def install_sitecustomize(directory: Path) -> None:
    """Put into run ``directory`` the module that patches sleeping in programs with ``program_variables``."""
    startup = Path(__file__).parent.parent / "ranks" / "sitecustomize.py"
    private_folder(str(directory / layout.CLUSTER_CLOCK))
    shutil.copyfile(startup, directory / layout.CLUSTER_CLOCK / startup.name)


def program_variables(faked: Mapping[str, str], directory: str) -> dict[str, str]:
    """Variables that give a user's program the clock of ``faked``, a result of ``adapt_process``; {} if it is right."""
    if "FAKETIME" not in faked:
        return {}
    path = [f"{directory}/{layout.CLUSTER_CLOCK}", *filter(None, [faked.get("PYTHONPATH")])]
    return {_PRELOAD: faked[_PRELOAD], "PYTHONPATH": ":".join(path)}


def patch_sleep() -> None:
    """Make ``time.sleep`` wait in ``select``."""
    time.sleep = _sleep  # type: ignore[assignment]  # it also accepts objects with only __index__


def _sleep(seconds: SupportsFloat, /) -> None:
    select.select((), (), (), float(seconds))


if __name__ == "__main__":
    adapt_process(os.environ)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
