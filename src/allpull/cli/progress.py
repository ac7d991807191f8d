"""Progress of a running training, read from its records: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from allpull.cli.say import note
from allpull.patient_stream import PatientStream
from allpull.rundir.live.tail import Follower
from allpull.schema.spec import RunSpec


@contextmanager
def follow(directory: Path, spec: RunSpec) -> Iterator[Callable[[], None]]:
    """A function that looks at rank 0's records and shows what is new."""
    follower = Follower(directory)
    ranks = spec.launch.ranks
    title = f"{spec.name} on {ranks} rank{'s' * (ranks != 1)}"
    if sys.stderr.isatty():
        yield from _bar(follower, spec, title)
    else:
        yield from _lines(follower, spec, title)


def _lines(follower: Follower, spec: RunSpec, title: str) -> Iterator[Callable[[], None]]:
    note(f"{title}: starting")

    def look() -> None:
        for epoch, values in follower.epochs():
            note(f"{title}: epoch {epoch + 1}/{spec.train.epochs} {values}")
        for text in follower.remarks():
            note(text)

    yield look
    look()


def _bar(follower: Follower, spec: RunSpec, title: str) -> Iterator[Callable[[], None]]:
    stderr, layout = sys.stderr, StringIO()
    terminal = PatientStream(stderr.fileno())  # after Ctrl-S it takes nothing, and the job goes on

    def show() -> None:
        with suppress(OSError):  # it has closed
            terminal.write(layout.getvalue().encode(stderr.encoding, stderr.errors or "strict"))
        layout.seek(0)
        layout.truncate()

    try:
        with Progress(*columns(), console=Console(file=layout, force_terminal=True), auto_refresh=False) as progress:
            task = progress.add_task(title, total=None, state="starting")

            def draw() -> None:
                state = ""
                for epoch, values in follower.epochs():
                    state = f"epoch {epoch + 1}/{spec.train.epochs} {values}"
                if follower.steps_per_epoch:
                    total = follower.steps_per_epoch * spec.train.epochs
                    progress.update(task, total=total, completed=follower.steps_done())
                if state:
                    progress.update(task, state=state)
                for text in follower.remarks():
                    progress.console.print(text, markup=False, highlight=False)
                progress.refresh()

            def look() -> None:
                show()
                if not terminal.is_behind:
                    draw()

            yield look
            draw()
    finally:
        show()
        with suppress(OSError):
            terminal.finish()


def columns() -> tuple[ProgressColumn, ...]:
    """The content of the bar; names are plain text, whatever they contain."""
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
    )
