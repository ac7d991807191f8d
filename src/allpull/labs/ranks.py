"""Run a lab's program on real ranks, observed, and leave no process behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.api.jobs import JobFailed
from allpull.api.runs import Run, open_run
from allpull.jobs.start import JobRequest, StartedJob, start
from allpull.rundir.safe_open import shown_path

LOOK_S = 0.2


def run_ranks(
    command: Sequence[str], ranks: int, name: str, out: Path, *, launcher: str = "local", sets: Sequence[str] = ()
) -> Run:
    """Run ``command`` as ``ranks`` on this machine, as ``allpull run -n`` does; its run directory is made in ``out``.

    Raises:
        JobFailed: a rank failed; the run directory has its output.
        AllpullError: the ranks cannot be started.
    """
    options = {
        "command": list(command),
        "ranks": ranks,
        "launcher": launcher,
        "name": name,
        "sets": list(sets),
    }
    origin = ["allpull", "run", "-n", str(ranks), "--", *command]
    out.mkdir(parents=True, exist_ok=True)
    output = out / f"{name}.txt"
    output.write_bytes(b"")
    started = start(JobRequest(kind="run", options=options, out=out, origin=origin, tied=True, log=output))
    _wait(started)
    if started.exit_code:
        where = shown_path(started.directory)
        raise JobFailed(
            f"the ranks of this lab failed: exit code {started.exit_code}",
            started.directory,
            hint=f"their records and logs are in {where}",
        )
    return open_run(started.directory)


def _wait(started: StartedJob) -> None:
    try:
        while started.exit_code is None:
            started.wait(LOOK_S)
    except BaseException:  # Ctrl-C, or a failure of ours: no rank is left
        started.cancel()
        raise
