"""One rank of the reference trainer: ``allpull.observe.rank`` runs this module in each."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from allpull import marks
from allpull.data.loader.open_feed import PACK
from allpull.data.loader.pool import default_threads
from allpull.errors import AllpullError
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import RunSpec, from_plain
from allpull.train.checkpoint.save_restore import checkpoint_files
from allpull.train.loop import train
from allpull.train.numerics.precision import bf16_emulation
from allpull.train.parallel.ranks import join, leave
from allpull.train.preemption import EXIT_CODE, listen, notify_agent, treat_as_warning


def main(job_file: str) -> None:
    """Train as the job file says; the exit code is ``preemption.EXIT_CODE`` if a warning ended the training early."""
    warned = listen(os.environ)
    job = JobFile.read(job_file)
    spec = with_threads(with_resume(from_plain(RunSpec, job.spec), Path(job.directory)))
    if spec.train.save_on_term:
        treat_as_warning(signal.SIGTERM, warned)
    try:
        ranks = join(spec.launch.threads, spec.parallel)
        warning = bf16_emulation(spec.train.precision, ranks.device)
        if warning and ranks.rank == 0:
            marks.remark(warning)
        history = train(spec, ranks, Path(job.directory), warned)
    except AllpullError as error:
        raise SystemExit(error.exit_code) from error
    if ranks.rank == 0 and history.score is not None and history.ended:
        print(history.score.summary())  # noqa: T201
    if not history.ended and not history.warned:
        marks.remark(f"train.stop_after: stopped after {spec.train.stop_after:,} steps in all, as requested")
    if history.warned:
        notify_agent(os.environ)
        ranks.barrier()  # before any rank leaves
    leave()
    if history.warned:
        raise SystemExit(EXIT_CODE)


def with_resume(spec: RunSpec, directory: Path) -> RunSpec:
    """The specification, set to resume from this run directory if ALLPULL_RESUME is set and it has a checkpoint.

    A job script sets it when a queue requeued the job. Steps after the newest checkpoint are repeated; there are none
    if the job was warned in time.
    """
    if not os.environ.get("ALLPULL_RESUME") or not checkpoint_files(directory / layout.CHECKPOINTS):
        return spec
    return replace(spec, train=replace(spec.train, resume=str(directory)))


def with_threads(spec: RunSpec) -> RunSpec:
    """The specification with a default number of decoding threads for a rank that is bound to its own CPUs."""
    if spec.launch.bind == "none" or spec.data.name != PACK or spec.data.threads:
        return spec  # the feed divides the CPUs of the host among ranks
    return replace(spec, data=replace(spec.data, threads=default_threads(bound=True)))


if __name__ == "__main__":
    main(sys.argv[1])
