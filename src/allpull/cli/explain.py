"""``allpull explain``: where the time of a run went, what is wrong in it, and what each remedy buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.say import answer
from allpull.cli.show import AsJson, SkipDamaged
from allpull.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from allpull.rundir.read.run import RunData

Run = Annotated[Path | None, typer.Argument(help="Run directory.", metavar="RUN")]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        metavar="RUN",
        help="A run of the same training on another number of ranks; several may be given. "
        "The one with the fewest ranks is what efficiency is measured against.",
    ),
]
Rules = Annotated[bool, typer.Option("--rules", help="Print every rule with a line on it, and nothing else.")]
Rule = Annotated[str | None, typer.Option("--rule", metavar="SLUG", help="Print the manual of one rule.")]


def explain(  # noqa: PLR0917  typer reads the options
    run: Run = None,
    reference: References = None,
    as_json: AsJson = False,
    rules: Rules = False,
    rule: Rule = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Explain one run: where its time went, who is to blame, and what each remedy would buy."""
    if rules or rule is not None:
        _manual(rule, as_json=as_json)
        return
    if run is None:
        raise BadInput("no run is named", hint="allpull explain RUN; or --rules for what can be found")
    from allpull.analyse.aligned import AlignedRun  # noqa: PLC0415
    from allpull.explain.explanation import explain as explained  # noqa: PLC0415  polars is not needed for --help
    from allpull.rundir.derived import cache_explanation  # noqa: PLC0415

    data = _read(run, skip_damaged=skip_damaged)
    others = [AlignedRun(_read(one, skip_damaged=skip_damaged)) for one in reference or []]
    result = explained(AlignedRun(data), others).result
    cache_explanation(data.directory, data.record, result)
    if as_json:
        answer(result.model_dump_json(by_alias=True, indent=1))
        return
    from allpull.report.terminal.explain import explained as shown  # noqa: PLC0415
    from allpull.report.terminal.waiting import waiting  # noqa: PLC0415

    _print(shown(result))
    table = waiting(result)
    if table is not None:
        _print(table)


def _read(place: Path, *, skip_damaged: bool) -> RunData:
    """The one run at ``place``.

    Raises:
        BadInput: there are several.
        RunDirError: it cannot be read.
    """
    from allpull.rundir.read.run import find_runs, read_run  # noqa: PLC0415

    directories = find_runs(place)
    if len(directories) != 1:
        raise BadInput(
            f"{len(directories):,} runs are in that folder, and one is explained at a time",
            hint=f"name one of them, such as {directories[-1].name}",
        )
    return read_run(directories[0], skip_damaged=skip_damaged)


def _manual(slug: str | None, *, as_json: bool) -> None:
    """Print one rule, or a line on each.

    Raises:
        UnknownName: there is no such rule.
    """
    from allpull.explain.manual import sections, summary  # noqa: PLC0415
    from allpull.explain.rules import names  # noqa: PLC0415
    from allpull.report.terminal.explain import rule, rules  # noqa: PLC0415
    from allpull.schema.base import tag  # noqa: PLC0415

    chosen = names() if slug is None else [slug]
    if as_json:
        pages = [{"rule": name, "summary": summary(name), "sections": sections(name)} for name in chosen]
        answer(json.dumps({"schema": tag("rules"), "rules": pages}, indent=1, ensure_ascii=False))
    elif slug is None:
        _print(rules({name: summary(name) for name in chosen}))
    else:
        _print(rule(slug, summary(slug), sections(slug)))


def _print(shown: RenderableType) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False)
    with console.capture() as printed:  # where nobody reads on, rich would end us with code 1
        console.print(shown)
    answer(printed.get().removesuffix("\n"))
