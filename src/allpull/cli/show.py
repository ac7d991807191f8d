"""``allpull show``: what one run did, or the scaling table of several; one run also as a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import Accuracy, AsJson, Runs, SkipDamaged, step_range
from allpull.cli.say import answer_json, note, show_result
from allpull.errors import BadInput

if TYPE_CHECKING:
    from allpull.api.runs import Run

EXAMPLE = "allpull show runs"

Perfetto = Annotated[
    Path | None, typer.Option("--perfetto", metavar="FILE", help="Write all ranks on one timeline for ui.perfetto.dev.")
]
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="FIRST:LAST", help="With --perfetto: draw only steps FIRST to LAST - 1."),
]
Kernels = Annotated[
    bool,
    typer.Option(
        "--kernels", help="Show the top kernels and operators of one run's profiler windows instead, by class of work."
    ),
]


def show(
    runs: Runs,
    *,
    as_json: AsJson = False,
    perfetto: Perfetto = None,
    steps: Steps = None,
    accuracy: Accuracy = None,
    kernels: Kernels = False,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Show throughput, phases, epochs and accuracy of runs.

    Several runs give a scaling table per program.
    """
    from allpull.api.shown import shown  # noqa: PLC0415  records are not needed for --help
    from allpull.api.side_by_side import side_by_side  # noqa: PLC0415

    if perfetto is None and steps is not None:
        raise BadInput("--steps chooses what --perfetto draws", hint="allpull show RUN --perfetto FILE --steps 100:200")
    first, end = step_range(steps, "draws")
    result = None
    if perfetto is not None or kernels:
        from allpull.api.reporting import scaling_report  # noqa: PLC0415  polars is not needed for --help
        from allpull.api.runs import open_runs  # noqa: PLC0415  polars is not needed for --help

        opened = open_runs(runs, skip_damaged=skip_damaged)
        if perfetto is not None:
            _draw(opened, perfetto, first=first, end=end)
        if kernels:
            _kernels(opened, as_json=as_json)
            return
        result = scaling_report([run.aligned for run in opened], accuracy)
    result = result or shown(runs, accuracy, skip_damaged=skip_damaged)
    if as_json:
        answer_json(side_by_side(result))
        return
    from allpull.report.terminal.show import page  # noqa: PLC0415

    show_result(page(result))


def _kernels(runs: list[Run], *, as_json: bool) -> None:
    """Print the work in profiler windows of the one run in ``runs``.

    Raises:
        BadInput: there are several runs, or this one has no window that can be read.
    """
    from allpull.analyse.operators import kernel_result  # noqa: PLC0415  polars is not needed for --help
    from allpull.report.terminal.kernels import tables  # noqa: PLC0415

    if len(runs) != 1:
        raise BadInput(f"--kernels shows one run, not {len(runs):,}", hint="name the run directory itself")
    result = kernel_result(runs[0].data)
    if as_json:
        answer_json(result)
    else:
        show_result(tables(result))


def _draw(runs: list[Run], path: Path, *, first: int, end: int | None) -> None:
    """Write the timeline of the one run in ``runs``.

    Raises:
        BadInput: there are several runs, or nothing of this one can be drawn.
    """
    from allpull.report.perfetto.timeline import write  # noqa: PLC0415  polars is not needed for --help

    if len(runs) != 1:
        raise BadInput(f"--perfetto draws one run, not {len(runs):,}", hint="name the run directory itself")
    written = write(runs[0].aligned, path, first=first, end=end)
    steps = f"steps {written.first:,} to {written.last:,}"
    note(f"{written.path}: {written.events:,} events of {steps}; open it at https://ui.perfetto.dev")
    for line in written.notes:
        note(line)
