"""Adjust a user's program to a wrong wall clock: Python runs this first, then the user's own sitecustomize.

It does what ``rehearse.host.fake_clock.adapt_process`` does in our own processes: it corrects sleeping, and gives
programs that the program executes the right clock. It is copied into the run directory and uses only the standard
library.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import select
import sys
import time
from pathlib import Path
from typing import SupportsFloat


def adapt_process() -> None:
    """Adjust this process to its wrong clock."""

    def sleep(seconds: SupportsFloat, /) -> None:
        select.select((), (), (), float(seconds))

    time.sleep = sleep  # type: ignore[assignment]  # it also accepts objects with only __index__
    other_libraries = [item for item in os.environ.pop("LD_PRELOAD", "").split(":") if "libfaketime" not in item]
    if any(other_libraries):
        os.environ["LD_PRELOAD"] = ":".join(other_libraries)


def run_other_sitecustomize() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize" and "FAKETIME" in os.environ:
    adapt_process()
    run_other_sitecustomize()
