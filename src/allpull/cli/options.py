"""Options that several verbs share, and the messages about a job: its origin, its script, its end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli import completion
from allpull.cli.say import answer, note
from allpull.errors import BadInput

if TYPE_CHECKING:
    from allpull.schema.run import RunRecord

_PAIR = re.compile(r"(every|steps|first)=([0-9]{1,12})")
_RANGE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")

Runs = Annotated[
    list[Path],
    typer.Argument(help="Run directories, or folders of them.", metavar="RUN…", autocompletion=completion.runs),
]
SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Skip damaged lines, and count them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Accuracy = Annotated[
    float | None,
    typer.Option(
        "--accuracy",
        metavar="SHARE",
        min=0,
        max=1,
        help="Also the time to this test accuracy, such as 0.76. [default: train.stop_at_top1, if that is set]",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the run directory.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one option of the recipe, such as train.epochs=3.",
        autocompletion=completion.keys,
    ),
]
CommandSets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one option, such as observe.counters=false; with -n also launch.threads=4.",
        autocompletion=completion.command_keys,
    ),
]
EnvSets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one option, such as observe.counters=false.",
        autocompletion=completion.script_keys,
    ),
]
ProbeSets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one option, such as launch.hosts=2.")
]
Prepare = Annotated[
    bool, typer.Option("--prepare", help="Make the run directory and a batch script in it for sbatch; start nothing.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the script that would run; start and write nothing.")]
Trace = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="every=N[,steps=N][,first=N]",
        help="Record a window of torch's profiler every N steps, steps=N long, the first at step first=N.",
    ),
]
RecordedSteps = Annotated[
    str | None, typer.Option("--steps", metavar="FIRST:LAST", help="Record only steps FIRST to LAST - 1.")
]


def step_range(text: str | None, verb: str) -> tuple[int, int | None]:
    """The first step of ``--steps``, and the one after its last (None: no end); ``verb`` says what happens to them.

    >>> step_range("100:200", "draws"), step_range("100:", "draws"), step_range(":50", "draws")
    ((100, 200), (100, None), (0, 50))

    Raises:
        BadInput: it is written otherwise, or there is no step in it.
    """
    if text is None:
        return 0, None
    match = _RANGE.fullmatch(text.strip())
    first, end = (int(match.group(1) or 0), int(match.group(2)) if match.group(2) else None) if match else (0, 0)
    if match is None or (end is not None and end <= first):
        raise BadInput(
            f"--steps {text[:80]!r} cannot be read", hint=f"write it as --steps 100:200, which {verb} steps 100 to 199"
        )
    return first, end


def trace_options(text: str | None) -> list[str]:
    """The overrides equivalent to ``--trace``.

    >>> trace_options("every=500,steps=3")
    ['watch.trace_every=500', 'watch.trace_steps=3']

    Raises:
        BadInput: it is written otherwise.
    """
    if text is None:
        return []
    pairs = [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
    names = [pair.group(1) for pair in pairs if pair]
    is_never = any(pair.group(1) == "every" and not int(pair.group(2)) for pair in pairs if pair)
    if None in pairs or "every" not in names or len(set(names)) < len(names) or is_never:
        raise BadInput(f"--trace {text[:80]!r} cannot be read", hint="write it as --trace every=500,steps=3,first=5")
    return [f"watch.trace_{pair.group(1)}={int(pair.group(2))}" for pair in pairs if pair]


def step_options(text: str | None) -> list[str]:
    """The overrides equivalent to ``--steps`` of a command; an omitted end is that of the program.

    >>> step_options("100:200"), step_options("100:")
    (['watch.first_step=100', 'watch.last_step=200'], ['watch.first_step=100'])

    Raises:
        BadInput: it is written otherwise, or there is no step in it.
    """
    if text is None:
        return []
    if text.strip() == ":":
        raise BadInput("--steps ':' names no step", hint="write it as --steps 100:200, which records steps 100 to 199")
    step_range(text, "records")
    ends = text.strip().split(":")
    return [f"watch.{name}={int(end)}" for name, end in zip(("first_step", "last_step"), ends, strict=True) if end]


def newest_run(place: Path) -> Path:
    """The run at ``place``, or the newest of a folder, which is then named on stderr.

    Raises:
        RunDirError: there is none, or the name fits several.
    """
    from allpull.rundir.read.places import find_runs, newest  # noqa: PLC0415  not needed for --help

    runs = find_runs(place)
    chosen = newest(runs)
    if len(runs) > 1:
        note(f"{chosen.name}, the newest of {len(runs):,} runs")
    return chosen


def own_command() -> list[str]:
    """Our own command line, as text that can be recorded."""
    return [word.encode("utf-8", "backslashreplace").decode() for word in sys.argv]


def check_exclusive(*, dry_run: bool, prepare: bool) -> None:
    """Check that not both are requested.

    Raises:
        BadInput: they are.
    """
    if dry_run and prepare:
        raise BadInput("--dry-run writes nothing, and --prepare a run directory", hint="leave one of the two out")


def print_plan(script: str) -> None:
    """Print a script that would run, line by line, without what could act on a terminal."""
    from allpull.report.printable import printable  # noqa: PLC0415  not needed for --help

    answer("\n".join(printable(line) for line in script.splitlines()))


def print_prepared(script: Path) -> None:
    """Say how ``script`` is submitted; the path alone on stdout."""
    note(f"submit it from this folder: sbatch {shlex.quote(str(script))}")
    answer(str(script))


def closing_lines(directory: Path) -> Iterator[str]:
    """The numbers of a run that has just ended well, and the next command."""
    from allpull.api.closing import summary  # noqa: PLC0415  polars is not needed before the end of a job

    yield from summary(directory)


def exit_like(record: RunRecord) -> None:
    """Say how a job failed, and leave with its exit code; nothing where it did not fail."""
    if record.exit is None or record.exit.code == 0:
        return
    if record.status == "cancelled":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C while Python ends would change our exit code
        note("cancelled: every process of the job was ended")
    else:
        note(f"allpull: {record.exit.describe()}")
        for line in record.exit.log_tail:
            note(f"  | {line}")
    raise typer.Exit(record.exit.code)


def has_desktop() -> bool:
    """Whether a browser can be opened here."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
