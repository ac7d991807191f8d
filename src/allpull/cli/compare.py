"""``allpull compare``: is B different from A, with statistics; a gate for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from allpull.cli.say import answer, note
from allpull.errors import BadInput

if TYPE_CHECKING:
    from allpull.analyse.aligned import AlignedRun
    from allpull.schema.compared import CompareResult
    from allpull.schema.explained import ExplainResult

GATE_FAILED = 3

Before = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Runs before, or folders that hold some. Without --with: one before and one after.",
        metavar="BEFORE…",
        show_default=False,
    ),
]
After = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="AFTER…", help="Runs after: everything up to the next option."),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="'METRIC < NUMBER'",
        help="End with code 3 where the data show this: 'throughput < -3%'. May be given several times.",
    ),
]
BetweenRun = Annotated[
    str | None,
    typer.Option(
        "--between-run",
        metavar="PERCENT|FILE",
        help="How much such runs vary, for fewer than three a side: a standard deviation (0.8%), or a stored answer.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="Show this metric only, and decide on it. May be given several times."
    ),
]


class Sides(TyperCommand):
    """A command line on which every word after ``--with`` is a run after, as shells expand ``--with after/*``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The command line with ``--with`` before each of them."""
        flags = {name for one in self.params if getattr(one, "is_flag", False) for name in one.opts} | {"-h", "--help"}
        return super().parse_args(ctx, each_after(args, flags))


def each_after(words: Sequence[str], flags: set[str]) -> list[str]:
    """``words`` with ``--with`` before each run after; ``flags`` are the options that take no value.

    >>> each_after(["a", "--with", "b", "c", "--json", "d"], {"--json"})
    ['a', '--with', 'b', '--with', 'c', '--json', '--with', 'd']
    """
    spread: list[str] = []
    after = False
    rest = iter(words)
    for word in rest:
        if word == "--with":
            after = True
        elif word == "--":
            continue
        elif word.startswith("-") and len(word) > 1:
            after = after or word.startswith("--with=")
            spread.append(word)
            if word not in flags and "=" not in word:
                spread += [value for value in (next(rest, None),) if value is not None]
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
        bool, typer.Option("--anyway", help="Compare runs that differ in what a fair comparison needs, too.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --fail-if: fail where the data cannot tell, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave damaged lines out, and say how many.")
    ] = False,
) -> None:
    """Say what changed between runs before and runs after, with statistics; a gate for CI."""
    from allpull.compare import comparison, gate, known_variation  # noqa: PLC0415  polars is not needed for --help

    ours, theirs = _sides(before or [], after or [])
    if strict and not fail_if:
        raise BadInput("--strict says how strict --fail-if is", hint="allpull compare A --with B --fail-if … --strict")
    asked = comparison.Asked(
        metrics=[gate.find_metric(name).name for name in metric or []],
        gates=[gate.parse_gate(text) for text in fail_if or []],
        figure=known_variation.parse_figure(between_run) if between_run is not None else None,
        anyway=anyway,
    )
    runs = [_read(places, skip_damaged=skip_damaged) for places in (ours, theirs)]
    sides = comparison.Sides(before=runs[0], after=runs[1], explained=_explained([*runs[0], *runs[1]]))
    result = comparison.compare(sides, asked)
    if as_json:
        answer(result.model_dump_json(by_alias=True, indent=1))
    else:
        _show(result)
    if _fails(result, strict=strict):
        raise typer.Exit(GATE_FAILED)


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


def _read(places: Sequence[Path], *, skip_damaged: bool) -> list[AlignedRun]:
    from allpull.analyse.aligned import AlignedRun  # noqa: PLC0415
    from allpull.rundir.read.run import find_runs, read_run  # noqa: PLC0415

    directories = {found.resolve(): found for place in places for found in find_runs(place)}  # each once
    return [AlignedRun(read_run(directory, skip_damaged=skip_damaged)) for directory in directories.values()]


def _explained(runs: Sequence[AlignedRun]) -> dict[str, ExplainResult]:
    """What `allpull explain` kept of ``runs`` as they stand, or says of them now."""
    from allpull.explain.explanation import explain  # noqa: PLC0415
    from allpull.rundir.derived import cached_explanation  # noqa: PLC0415

    return {
        run.data.record.id: cached_explanation(run.data.directory, run.data.record) or explain(run).result
        for run in runs
    }


def _show(result: CompareResult) -> None:
    from rich.console import Console  # noqa: PLC0415

    from allpull.report.terminal import compare as compared  # noqa: PLC0415

    console = Console(highlight=False)
    with console.capture() as shown:  # where nobody reads on, rich would end us with code 1
        console.print(compared.Comparison(result))
    answer(shown.get().removesuffix("\n"))


def _fails(result: CompareResult, *, strict: bool) -> bool:
    """Whether a gate was not passed; it is said on stderr, where a log keeps it apart from the answer."""
    bad = {"failed", "unknown"} if strict else {"failed"}
    for one in result.gates:
        if one.outcome != "passed":
            note(f"gate {one.outcome}: {one.gate}: {one.words}")
    return any(one.outcome in bad for one in result.gates)
