"""``allpull compare``: whether a change made a difference, with statistics; a gate for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpull.cli import completion
from allpull.cli.options import Accuracy, AsJson, SkipDamaged
from allpull.cli.say import answer, answer_json, note, show_result
from allpull.cli.verb import Verb
from allpull.errors import BadInput

if TYPE_CHECKING:
    from allpull.schema.compared import CompareResult, PlacementResult

EXAMPLE = "allpull compare before/* --with after/* --fail-if 'throughput < -3%'"

GATE_FAILED = 3

Before = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Runs before, or folders of them. Without --with: one before and one after.",
        metavar="BEFORE…",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
After = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="AFTER…", help="Runs after: everything up to the next option.", autocompletion=completion.runs
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="'METRIC < NUMBER'",
        help="Exit with code 3 if the data show this, such as 'throughput < -3%'; may be given several times.",
    ),
]
BetweenRun = Annotated[
    str | None,
    typer.Option(
        "--between-run",
        metavar="PERCENT|FILE",
        help="Run-to-run variation, for fewer than three runs per side: a standard deviation (0.8%), or a file with "
        "the output of an earlier `allpull compare --json`.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="Show only this metric, and decide by it; may be given several times."
    ),
]


Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the comparison as one self-contained page.")
]


class Sides(Verb):
    """A command line on which every argument after ``--with`` is a run after, as shells expand ``--with after/*``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The command line with ``--with`` before each of them."""
        flags = {name for one in self.params if getattr(one, "is_flag", False) for name in one.opts} | {"-h", "--help"}
        return super().parse_args(ctx, each_after(args, flags))


def each_after(arguments: Sequence[str], flags: set[str]) -> list[str]:
    """``arguments`` with ``--with`` before each run after; ``flags`` are the options that take no value.

    >>> each_after(["a", "--with", "b", "c", "--json", "d"], {"--json"})
    ['a', '--with', 'b', '--with', 'c', '--json', '--with', 'd']
    """
    spread: list[str] = []
    after = False
    remaining = iter(arguments)
    for word in remaining:
        if word == "--with":
            after = True
        elif word == "--":
            continue
        elif word.startswith("-") and len(word) > 1:
            after = after or word.startswith("--with=")
            spread.append(word)
            if word not in flags and "=" not in word:
                spread += [value for value in (next(remaining, None),) if value is not None]
        else:
            spread += ["--with", word] if after else [word]
    return spread


def compare(  # noqa: PLR0917  one parameter an option, called by typer alone
    before: Before = None,
    after: After = None,
    fail_if: FailIf = None,
    between_run: BetweenRun = None,
    metric: Metrics = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare the runs even if they differ in facts that must agree.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --fail-if: also fail where the data cannot tell.")
    ] = False,
    html: Html = None,
    accuracy: Accuracy = None,
    as_json: AsJson = False,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Compare runs before and after a change.

    Every change has a 99 % interval, if the run-to-run variation is known. With --fail-if it is a gate for CI: exit
    code 3 if the gate fails. Of all-reduce probes it compares the time of each size on two placements of the ranks.
    """
    from allpull.api.comparison import compare as compare_runs  # noqa: PLC0415  polars is not needed for --help
    from allpull.api.placements import placements  # noqa: PLC0415
    from allpull.api.places import run_directories  # noqa: PLC0415

    places = _sides(before or [], after or [])
    if strict and not fail_if:
        raise BadInput("--strict has no effect without --fail-if", hint="add --fail-if 'throughput < -3%'")
    sides = [run_directories(side) for side in places]
    placed = placements(*sides, skip_damaged=skip_damaged)
    if placed is not None:
        _print_placements(placed, as_json=as_json, unused=[*(fail_if or []), *(metric or []), between_run, html])
        return
    result = compare_runs(
        *sides,
        metrics=metric or [],
        fail_if=fail_if or [],
        between_run=between_run,
        anyway=anyway,
        skip_damaged=skip_damaged,
        accuracy=accuracy,
    )
    if html is not None:
        note(f"page: {result.report(html)}")
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.compare import Comparison  # noqa: PLC0415

        show_result(Comparison(result))
    if _fails(result, strict=strict):
        raise typer.Exit(GATE_FAILED)


def _print_placements(result: PlacementResult, *, as_json: bool, unused: Sequence[object]) -> None:
    """Print two placements compared.

    Raises:
        BadInput: an option was given that is for runs.
    """
    from allpull.report.terminal.probe import placements_table  # noqa: PLC0415

    if any(unused):
        raise BadInput(
            "--fail-if, --metric, --between-run and --html are for runs, not for probes", hint="leave them out"
        )
    answer_json(result) if as_json else answer(placements_table(result))


def _sides(before: list[Path], after: list[Path]) -> tuple[list[Path], list[Path]]:
    """The runs of both sides; two places without ``--with`` are one before and one after.

    Raises:
        BadInput: a side is empty.
    """
    if not after and len(before) == 2:
        return [before[0]], [before[1]]
    if not before or not after:
        missing = "before" if after else "after" if before else "at all"
        raise BadInput(f"no run {missing} was given", hint="allpull compare BEFORE… --with AFTER…")
    return before, after


def _fails(result: CompareResult, *, strict: bool) -> bool:
    """Whether a gate was not passed; such gates are named on stderr, apart from the answer."""
    bad = {"failed", "unknown"} if strict else {"failed"}
    for one in result.gates:
        if one.outcome != "passed":
            note(f"gate {one.outcome}: {one.gate}: {one.words}")
    return any(one.outcome in bad for one in result.gates)
