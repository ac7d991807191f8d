"""``allpull demo``: the whole chain on real data, on one rank and on two."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer, note
from allpull.cli.train import Out, Sets
from allpull.errors import BadInput


def demo(
    ranks: Annotated[str, typer.Option("--ranks", help="Numbers of ranks, smallest first.")] = "1,2",
    recipe: Annotated[
        str, typer.Option("--recipe", help="digits (embedded), or fashion-mnist (larger; see the README).")
    ] = "digits",
    sets: Sets = None,
    out: Out = Path("runs"),
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Train on 1 and on 2 ranks, compare them, and write a report (about a minute)."""
    from allpull.cli import results, running  # noqa: PLC0415  pydantic and polars are not needed for --help
    from allpull.cli.report import write  # noqa: PLC0415

    counts = parse_counts(ranks)
    spec = running.resolve(recipe, ["launch.launcher=local", *(sets or [])])
    directories = []
    for count in counts:
        record, directory = running.run_training(running.with_ranks(spec, count), out)
        note(f"run directory: {directory}")
        running.pass_on(record)
        directories.append(directory)
    runs = results.read_runs(directories)
    result = results.reported(runs)
    results.print_report(result)
    page = write(results.with_explanation(result, runs), out / "report.html")
    answer(f"report: {page}")
    if open_page and sys.stdout.isatty() and _has_desktop():
        webbrowser.open(page.as_uri())


def parse_counts(text: str) -> list[int]:
    """``"1,2"`` as numbers of ranks.

    Raises:
        BadInput: it is no list of different numbers from 1 on.

    >>> parse_counts("1,2,4")
    [1, 2, 4]
    """
    words = [word.strip() for word in text.split(",")]
    counts = [int(word) for word in words if word.isascii() and word.isdigit() and 1 <= int(word) <= 65536]
    if len(counts) != len(words) or len(set(counts)) != len(counts):
        raise BadInput(f"'{text}' is no list of rank counts", hint="write it as --ranks 1,2")
    return counts


def _has_desktop() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
