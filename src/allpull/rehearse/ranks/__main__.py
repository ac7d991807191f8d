"""One rank of a rehearsal: ``python -m allpull.rehearse.ranks JOB.json``, as ``allpull.observe.rank`` runs it.

It reads the options ``cluster`` (see ``schedule``) and ``steps`` of the job file; the observer writes the records.
"""

from __future__ import annotations

import sys

from allpull.errors import AllpullError
from allpull.rehearse.ranks.loop import train
from allpull.rundir.job_file import JobFile


def main(job_file: str) -> None:
    """Rehearse as the job file specifies."""
    options = JobFile.read(job_file).options
    try:
        train(options["cluster"], int(options["steps"]))
    except AllpullError as error:
        sys.stderr.write(f"{error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main(sys.argv[1])
