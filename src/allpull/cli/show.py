"""``allpull show``: what one run did, or the scaling table of several; one run also as a timeline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.say import answer, note
from allpull.errors import BadInput

if TYPE_CHECKING:
    from allpull.analyse.aligned import AlignedRun

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some.", metavar="RUN…")]
SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Leave damaged lines out, and say how many.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Perfetto = Annotated[
    Path | None, typer.Option("--perfetto", metavar="FILE", help="Write all ranks on one timeline for ui.perfetto.dev.")
]
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="FIRST:LAST", help="With --perfetto: draw steps FIRST to LAST - 1 only."),
]

_RANGE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")


def show(
    runs: Runs,
    as_json: AsJson = False,
    perfetto: Perfetto = None,
    steps: Steps = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Show throughput, phases and accuracy; several runs give a scaling table."""
    from allpull.cli.results import print_report, read_runs, reported  # noqa: PLC0415  polars is not needed for --help

    if perfetto is None and steps is not None:
        raise BadInput("--steps chooses what --perfetto draws", hint="allpull show RUN --perfetto FILE --steps 100:200")
    first, end = step_range(steps)
    read = read_runs(runs, skip_damaged=skip_damaged)
    if perfetto is not None:
        count = max(len(runs), len(read))
        if count != 1:
            raise BadInput(f"--perfetto draws one run, not {count:,}", hint="name the run directory itself")
        _draw(read[0], perfetto, first=first, end=end)
    result = reported(read)
    if as_json:
        answer(result.show.model_dump_json(by_alias=True, indent=1))
        return
    print_report(result)


def step_range(text: str | None) -> tuple[int, int | None]:
    """The first step and the one after the last (None: to the end) that ``--steps`` asks for.

    >>> step_range("100:200"), step_range("100:"), step_range(":50"), step_range(None)
    ((100, 200), (100, None), (0, 50), (0, None))

    Raises:
        BadInput: it is written otherwise, or there is no step in it.
    """
    if text is None:
        return 0, None
    match = _RANGE.fullmatch(text.strip())
    first, end = (int(match.group(1) or 0), int(match.group(2)) if match.group(2) else None) if match else (0, 0)
    if match is None or (end is not None and end <= first):
        raise BadInput(
            f"--steps {text[:80]!r} cannot be read", hint="write it as --steps 100:200, which draws steps 100 to 199"
        )
    return first, end


def _draw(run: AlignedRun, path: Path, *, first: int, end: int | None) -> None:
    """Write the timeline of ``run``.

    Raises:
        BadInput: nothing of it can be drawn.
    """
    from allpull.report.perfetto.timeline import write  # noqa: PLC0415  polars is not needed for --help

    written = write(run, path, first=first, end=end)
    steps = f"steps {written.first:,} to {written.last:,}"
    note(f"{written.path}: {written.events:,} events of {steps}; open it at https://ui.perfetto.dev")
    for line in written.notes:
        note(line)
