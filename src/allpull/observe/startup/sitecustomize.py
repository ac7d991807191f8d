"""Python runs this before a program, because its folder is first on PYTHONPATH; the user's own sitecustomize runs next.

It waits for the import of torch or ``allpull.marks``; processes that import neither are unaffected.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _watch(job_file: str) -> None:
    """Observe this program as ``job_file`` specifies; an error here must not stop the program."""
    try:
        from _allpull.observe.hooks.imports import wait  # noqa: PLC0415  the folder leaves the path afterwards

        wait(job_file)
    except Exception as error:  # noqa: BLE001
        if os.path.exists(__file__):  # else the job has ended, with its hook, and this process outlives it
            sys.stderr.write(f"allpull: not observed: {error!r}\n")


def _run_theirs() -> None:
    """Run the sitecustomize that Python would have imported instead of this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ALLPULL_JOB"):
    _watch(os.environ["ALLPULL_JOB"])
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
_run_theirs()
