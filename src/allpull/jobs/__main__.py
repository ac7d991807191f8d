"""One job in a process of its own, as `allpull.train` and `allpull.run` start it; it ends with the job's exit code.

The request is one JSON object on standard input. Answers are JSON lines on the file descriptor that it names: first
``directory`` or ``error``, then any number of ``note``. Standard output and error belong to the job.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from allpull.errors import AllpullError, to_plain
from allpull.jobs import command, training
from allpull.jobs.arguments import as_argument
from allpull.launch.execute import execute
from allpull.launch.launcher import choose


def main() -> int:
    """Run the requested job; the exit code."""
    request = json.loads(sys.stdin.readline())
    channel = os.fdopen(request["answers"], "w", encoding="utf-8")
    os.set_inheritable(channel.fileno(), False)

    def answer(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")
        channel.flush()

    def on_directory(directory: Path) -> None:
        answer(directory=str(directory.resolve()))

    def notify(text: str) -> None:
        answer(note=text)

    out, origin = Path(request["out"]), request["origin"]
    options: dict[str, Any] = {**request["options"], "sets": tuple(request["options"]["sets"]), "spelling": as_argument}
    try:
        if request["kind"] == "run":
            options["command"] = tuple(options["command"])
            observed = command.resolve(command.CommandRequest(**options), notify=notify)
            return command.observe(observed, out, origin, notify=notify, on_directory=on_directory)
        resume = options.pop("resume")
        spec = training.resolve(
            training.TrainingRequest(**options, resume=Path(resume) if resume else None), notify=notify
        )
        job = training.training_job(spec, out, origin)
        record = execute(job, choose(spec.launch.launcher), lambda: None, notify, lambda: on_directory(job.directory))
    except AllpullError as error:
        answer(error=to_plain(error))
        return error.exit_code
    return record.exit.code if record.exit else 0


if __name__ == "__main__":
    sys.exit(main())
