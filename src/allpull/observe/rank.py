"""Where an observed rank begins: listen, run the program, say how it ended.

``python -m allpull.observe.rank JOB.json MODULE`` is what the elastic agent starts for each rank. The job file
says where the records go and how much of them to keep.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any, Dict

from allpull import marks
from allpull.observe.arrival import watch_ddp
from allpull.observe.recorder import Identity, Recorder
from allpull.rundir import layout

PR_SET_PDEATHSIG = 1
HOST_VARIABLE = "ALLPULL_HOST"  # the name of this host in the records, where its agent was given one


def main(job_file: str, module: str) -> None:
    """Run ``module`` as a program, observed, with its output in this rank's log.

    Exceptions of the program pass through after they were recorded, so that its exit code stays its own.
    """
    end_with_parent(signal.SIGTERM)
    with open(job_file, encoding="utf-8") as file:
        job: Dict[str, Any] = json.load(file)
    who = identity()
    into_log(os.path.join(job["directory"], layout.log_file(who.rank)))
    recorder = Recorder(
        job["directory"],
        who,
        budget=job["budget"],
        warmup_steps=job["warmup_steps"],
        sources=("marks", "post-accumulate-hook"),
    )
    os.register_at_fork(after_in_child=recorder.disown)

    def attach(arrival: Any) -> None:
        recorder.arrival = arrival

    watch_ddp(attach)
    marks.listen(recorder)
    ended_well = False
    try:
        sys.argv = [module, job_file]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        ended_well = True
    except SystemExit as stop:
        ended_well = stop.code in (None, 0)
        if stop.__cause__ is not None:
            recorder.raised(stop.__cause__)
        raise
    except BaseException as error:
        recorder.raised(error)
        raise
    finally:
        marks.listen(None)
        recorder.close(ended_well=ended_well)


def identity() -> Identity:
    """Who this rank is, from torchrun's variables; alone where there are none."""
    return Identity(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
        host=os.environ.get(HOST_VARIABLE) or socket.gethostname(),
    )


def into_log(path: str) -> None:
    """Send both output streams of this process, native code included, to the end of ``path``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_with_parent(number: int) -> None:
    """Ask Linux to send us signal ``number`` when our parent dies; elsewhere, nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
