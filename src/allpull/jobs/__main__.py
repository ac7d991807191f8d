"""One job in a process of its own, as `allpull.train`, `allpull.run` and studies start it; it ends with its exit code.

The request is one JSON object on standard input. Answers are JSON lines on the file descriptor that it names: first
``directory`` or ``error``, then any number of ``note``. Standard output and error belong to the job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allpull.errors import AllpullError, to_plain
from allpull.jobs import command, rehearsal, training
from allpull.jobs.arguments import as_argument
from allpull.launch.execute import execute
from allpull.launch.job import Job
from allpull.launch.launcher import Launcher, choose


def main() -> int:
    """Run the requested job; the exit code."""
    request = json.loads(sys.stdin.readline())
    channel = os.fdopen(request["answers"], "w", encoding="utf-8")
    for descriptor in (channel.fileno(), *request["held"]):
        os.set_inheritable(descriptor, False)

    def answer(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")
        channel.flush()

    def on_directory(directory: Path) -> None:
        answer(directory=str(directory.resolve()))

    def notify(text: str) -> None:
        answer(note=text)

    out, origin = Path(request["out"]), request["origin"]
    options = request["options"]
    try:
        if request["kind"] == "run":
            observed = command.resolve(command.request_of(options, spelling=as_argument), notify=notify)
            return command.observe(observed, out, origin, notify=notify, on_directory=on_directory)
        job, launcher = (
            _rehearsal(options, out, origin)
            if request["kind"] == "rehearse"
            else _training(options, out, origin, notify)
        )
        record = execute(job, launcher, lambda: None, notify, lambda: on_directory(job.directory))
    except AllpullError as error:
        answer(error=to_plain(error))
        return error.exit_code
    return record.exit.code if record.exit else 0


def _training(
    options: dict[str, Any], out: Path, origin: list[str], notify: Callable[[str], None]
) -> tuple[Job, Launcher]:
    spec = training.resolve(training.request_of(options, spelling=as_argument), notify=notify)
    return training.training_job(spec, out, origin), choose(spec.launch.launcher)


def _rehearsal(options: dict[str, Any], out: Path, origin: list[str]) -> tuple[Job, Launcher]:
    unshaped = options.get("unshaped", False)
    planned = rehearsal.resolve(Path(options["cluster"]), steps=options["steps"], unshaped=unshaped)
    return rehearsal.rehearsal_job(planned, out, origin), planned.launcher


if __name__ == "__main__":
    sys.exit(main())
