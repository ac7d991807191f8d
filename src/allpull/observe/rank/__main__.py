"""Run one observed rank of a module of allpull.

``python -m allpull.observe.rank JOB.json MODULE`` is started for each rank by the elastic agent.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from typing import Any, NoReturn

from allpull import marks
from allpull.observe.affinity import bind
from allpull.observe.hooks.imports import watched
from allpull.observe.hooks.install import start
from allpull.observe.hooks.session import MARKS, Session
from allpull.observe.identity import identity
from allpull.observe.process import SERVE_VARIABLE, WARNED, end_with_parent, leave
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile


def main(job_file: str, module: str) -> None:
    """Run ``module`` as a program, observed, with its output in this rank's log.

    Exceptions of the program pass through after they are recorded, so that its exit code stays its own.
    """
    end_with_parent(signal.SIGTERM)
    job = JobFile.read(job_file)
    rank_identity = identity()
    bind(job.bind, rank_identity.local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    into_log(os.path.join(job.directory, layout.log_file(rank_identity.rank)))
    session = watch_program(job_file)
    ended_well = False
    store = None
    try:
        if os.environ.pop(SERVE_VARIABLE, None):
            store = serve_store()
        sys.argv = [module, job_file]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        ended_well = True
    except SystemExit as stop:
        ended_well = stop.code in (None, 0, WARNED)
        if stop.__cause__ is not None:
            session.raised(stop.__cause__)
        raise
    except BaseException as error:
        session.raised(error)
        raise
    finally:
        marks.listen(None)
        session.close(ended_well=ended_well)
        del store  # other ranks may have needed it until now


def watch_program(job_file: str) -> Session:
    """Observe this process like any program; our modules mark their own steps and epochs."""
    after_import = watched()
    program = start(job_file, after_import, boundary=MARKS)
    program.inference.steps_by_marks = program.inference.epochs_by_marks = True
    program.marks_imported(marks)
    after_import.when("torch", lambda _: program.torch_imported())
    program.session.begin()
    return program.session


def serve_store() -> Any:
    """The store of the process group of a job without an agent.

    Raises:
        OSError: the port is in use.
    """
    from allpull.observe.store import serve  # noqa: PLC0415  torch, which only a program that meets others needs

    return serve(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def into_log(path: str) -> None:
    """Send both output streams of this process, native code included, to the end of ``path``.

    Where that cannot be opened, on a full disk, they stay where they are: in the log of the agent.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        sys.stderr.write(f"allpull: no {os.path.basename(path)}, the program continues: {error.strerror}\n")
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def run(job_file: str, module: str) -> NoReturn:
    """Run ``main`` and exit with the code that Python itself would give."""
    try:
        main(job_file, module)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            leave(stop.code or 0)
        sys.stderr.write(f"{stop.code}\n")
        leave(1)
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        leave(1)
    leave(0)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
