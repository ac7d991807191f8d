"""One rank of the reference trainer: ``allpull.observe.rank`` runs this module in each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from allpull.errors import AllpullError
from allpull.schema.spec import RunSpec, from_plain
from allpull.train.loop import train
from allpull.train.ranks import join, part


def main(job_file: str) -> None:
    """Train as the job file says."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    spec = from_plain(RunSpec, job["spec"])
    ranks = join(spec.launch.threads)
    try:
        history = train(spec, ranks, Path(job["directory"]))
    except AllpullError as error:
        raise SystemExit(error.exit_code) from error
    if ranks.rank == 0 and history.score is not None:
        score = history.score
        print(f"test top-1 {score.top1:.4f}, top-5 {score.top5:.4f}, loss {score.loss:.4f} ({score.samples} samples)")  # noqa: T201
    part()


if __name__ == "__main__":
    main(sys.argv[1])
