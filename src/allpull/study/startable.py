"""Whether the commands of a study can be started: what is wrong with them, before any of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allpull.errors import BadInput, ConfigError
from allpull.jobs import command
from allpull.launch.command.command_line import as_rank
from allpull.study.points import Point

ELSEWHERE = ("ssh", "kubernetes")  # launchers whose ranks find their script on another machine


def check_commands(name: str, points: Sequence[Point]) -> None:
    """Check that the commands of ``points`` of the study ``name`` can be ranks, and their options those of a command.

    Raises:
        ConfigError: with a line for every fault.
    """
    faults: dict[str, None] = {}
    for point in points:
        if point.job.kind == "run":
            try:
                command.specification(command.request_of(point.job.options))
                as_rank(point.job.options["command"], check_files=False)
            except BadInput as error:
                faults |= dict.fromkeys(error.faults if isinstance(error, ConfigError) else [error.message])
    if faults:
        raise ConfigError(f"study '{name}'", list(faults), hint="correct each line; nothing was started")


def missing_scripts(points: Sequence[Point]) -> Iterator[str]:
    """A line for each script that is not here, where ranks of ``points`` would look for it."""
    lines: dict[str, None] = {}
    for point in points:
        if point.job.kind == "run" and not str(point.job.options["launcher"]).startswith(ELSEWHERE):
            try:
                as_rank(point.job.options["command"], check_files=True)
            except BadInput as error:
                lines[error.message] = None
    yield from lines
