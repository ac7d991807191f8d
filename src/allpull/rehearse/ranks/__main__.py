"""One rank of a rehearsal: ``python -m allpull.rehearse.ranks JOB.json``, as ``allpull.observe.rank`` runs it.

Of the job file it reads the options ``cluster`` (see ``schedule``) and ``steps``; records are the observer's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from allpull.errors import AllpullError
from allpull.rehearse.ranks.loop import train


def main(job_file: str) -> None:
    """Rehearse as the job file says."""
    options = json.loads(Path(job_file).read_text(encoding="utf-8"))["options"]
    try:
        train(options["cluster"], int(options["steps"]))
    except AllpullError as error:
        sys.stderr.write(f"{error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main(sys.argv[1])
