"""One rank of the reference trainer: ``allpull.observe.rank`` runs this module in each."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from allpull import marks
from allpull.data.loader.open_feed import PACK
from allpull.data.loader.pool import usual_threads
from allpull.errors import AllpullError
from allpull.rundir import layout
from allpull.schema.spec import RunSpec, from_plain
from allpull.train.checkpoint.save_restore import PATTERN
from allpull.train.loop import train
from allpull.train.numerics.precision import emulated
from allpull.train.parallel.ranks import join, part
from allpull.train.preemption import EXIT_CODE, heed, listen, tell_agent


def main(job_file: str) -> None:
    """Train as the job file says; the exit code is ``stop.EXIT_CODE`` where a warning ended the training early."""
    warned = listen(os.environ)
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    spec = with_threads(going_on(from_plain(RunSpec, job["spec"]), Path(job["directory"])))
    if spec.train.save_on_term:
        heed(signal.SIGTERM, warned)
    try:
        ranks = join(spec.launch.threads, spec.parallel)
        slow = emulated(spec.train.precision, ranks.device)
        if slow and ranks.rank == 0:
            marks.remark(slow)
        history = train(spec, ranks, Path(job["directory"]), warned)
    except AllpullError as error:
        raise SystemExit(error.exit_code) from error
    if ranks.rank == 0 and history.score is not None and history.ended:
        print(history.score.words())  # noqa: T201
    if not history.ended and not history.warned:
        marks.remark(f"train.stop_after: stopped after {spec.train.stop_after:,} steps in all, as was asked")
    if history.warned:
        tell_agent(os.environ)
        ranks.meet()  # before anyone leaves
    part()
    if history.warned:
        raise SystemExit(EXIT_CODE)


def going_on(spec: RunSpec, directory: Path) -> RunSpec:
    """The specification, to go on from our own run directory where ALLPULL_RESUME asks and it has a checkpoint.

    A job script sets it where a queue gave the job back: all after the newest checkpoint is done again, which is
    nothing where the job was warned in time.
    """
    if not os.environ.get("ALLPULL_RESUME") or not any((directory / layout.CHECKPOINTS).glob(PATTERN)):
        return spec
    return replace(spec, train=replace(spec.train, resume=str(directory)))


def with_threads(spec: RunSpec) -> RunSpec:
    """The specification with the threads of a rank that has processors of its own, where nobody says how many."""
    if spec.launch.bind == "none" or spec.data.name != PACK or spec.data.threads:
        return spec  # the feed shares the processors of the host out
    return replace(spec, data=replace(spec.data, threads=usual_threads(bound=True)))


if __name__ == "__main__":
    main(sys.argv[1])
