"""``allpull watch``: the progress and health of a running job."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli import completion
from allpull.cli.options import AsJson, newest_run
from allpull.cli.say import answer, answer_json, note, show_result

if TYPE_CHECKING:
    from allpull.schema.results import WatchResult

STUCK = 3  # exit code of a snapshot with a dead or hung rank, or of a job that failed
EVERY_S, SERVED_EVERY_S = 1.0, 0.3  # between snapshots
GRACE_S = 3.0  # for a browser to fetch the last snapshot

EXAMPLE = "allpull watch runs"


def watch(  # noqa: PLR0917  one parameter an option, called by typer alone
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run directory, or a folder of them: the newest.", autocompletion=completion.runs
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and stop.")] = False,
    as_json: AsJson = False,
    interval: Annotated[
        float | None,
        typer.Option("--interval", min=0.1, max=3600, help="Seconds between snapshots. [default: 1; with --serve 0.3]"),
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Show where a rank hangs, if py-spy is installed.")
    ] = True,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve a live page on 127.0.0.1, and print its address.")
    ] = False,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port of the page. [default: any free one]", show_default=False),
    ] = 0,
) -> None:
    """Watch a running job: its progress, and slow, dead or hung ranks.

    With --once or --json the exit code is 3 if a rank is dead or hung, or the job has failed.
    """
    from allpull.report.terminal.watch import page  # noqa: PLC0415  not needed for --help

    directory = newest_run(run)
    if as_json or once:
        result = _look(directory, stacks=stacks)
        if as_json:
            answer_json(result)
        else:
            show_result(page(result))
            _note_failure(directory)
        if result.status == "failed" or any(trouble.kind in {"dead", "hung"} for trouble in result.troubles):
            raise typer.Exit(STUCK)
        return
    if serve:
        _serve(directory, port, interval or SERVED_EVERY_S, stacks=stacks)
        _note_failure(directory)
        return
    _follow(directory, interval or EVERY_S, stacks=stacks)
    _note_failure(directory)


def _follow(directory: Path, interval_s: float, *, stacks: bool) -> None:
    """Show the job until it ends: on a terminal all the time, in a file or a pipe its end."""
    from rich.console import Console  # noqa: PLC0415  not needed for --help
    from rich.live import Live  # noqa: PLC0415

    from allpull.report.terminal.watch import page  # noqa: PLC0415

    console = Console()
    shown = Live(console=console, refresh_per_second=4, screen=False) if console.is_terminal else None
    with shown or nullcontext():
        while True:
            result = _look(directory, stacks=stacks)
            if shown:
                shown.update(page(result))
            if _has_ended(result):
                break
            time.sleep(interval_s)
    if not shown:
        show_result(page(result))


def _serve(directory: Path, port: int, interval_s: float, *, stacks: bool) -> None:
    """Serve a live page until the job ends."""
    from allpull.report.live import LivePage  # noqa: PLC0415  not needed for --help

    result = _look(directory, stacks=stacks)
    page = LivePage(port)
    try:
        page.update(result, is_final=_has_ended(result))
        answer(page.url)
        tunnel = f"ssh -L {page.port}:127.0.0.1:{page.port} HOST"
        note(f"until the job ends, for browsers of this machine; from another one: {tunnel}")
        while not _has_ended(result):
            time.sleep(interval_s)
            result = _look(directory, stacks=stacks)
            page.update(result, is_final=_has_ended(result))
    finally:
        page.close(grace_s=GRACE_S if _has_ended(result) else 0.0)


def _has_ended(result: WatchResult) -> bool:
    """Return whether this is the last snapshot of a job."""
    from allpull.schema.run import UNENDED  # noqa: PLC0415  not needed for --help

    return result.is_over or result.status not in UNENDED


def _note_failure(directory: Path) -> None:
    """Say how a job failed; nothing where it did not."""
    from allpull.rundir.run_record import read_record  # noqa: PLC0415  not needed for --help

    exit_ = read_record(directory).exit
    if exit_ is not None and exit_.code:
        note(f"allpull: {exit_.describe()}")


def _look(directory: Path, *, stacks: bool) -> WatchResult:
    from allpull.analyse.job_health import assess  # noqa: PLC0415
    from allpull.jobs.stacks import with_stacks  # noqa: PLC0415
    from allpull.rundir.live.snapshot import job_snapshot  # noqa: PLC0415

    result = assess(job_snapshot(directory))
    return with_stacks(result) if stacks else result
