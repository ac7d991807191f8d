"""``allpull explain``: where the time of a run went, what is wrong in it, and what each remedy gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli import completion
from allpull.cli.options import AsJson, SkipDamaged, newest_run
from allpull.cli.say import answer, answer_json, show_result
from allpull.errors import BadInput
from allpull.report.printable import inert_json

EXAMPLE = (
    "allpull explain runs/20260312T101500Z_digits_n4_ab12cd34 --reference runs/20260312T101000Z_digits_n1_12ab34cd"
)

NOTHING = 4  # exit code of a run whose records explain nothing

Run = Annotated[
    Path | None,
    typer.Argument(
        help="Run directory, or a folder of them: the newest.",
        metavar="RUN",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        metavar="RUN",
        help="A run of the same training on another number of ranks; may be given several times. "
        "Efficiency is measured against the one with the fewest ranks.",
        autocompletion=completion.runs,
    ),
]
Rules = Annotated[bool, typer.Option("--rules", help="List all rules, one per line, and stop.")]
Rule = Annotated[
    str | None,
    typer.Option(
        "--rule", metavar="SLUG", help="Print the manual of one rule and stop.", autocompletion=completion.rules
    ),
]


def explain(  # noqa: PLR0917  typer reads the options
    run: Run = None,
    reference: References = None,
    as_json: AsJson = False,
    rules: Rules = False,
    rule: Rule = None,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Explain where the time of a run went, and what to change.

    Each finding names the ranks at fault, what they cost, and what its remedy gains. The exit code is 4 if the
    records explain nothing: there is no step in them, or steps of ranks cannot be compared; the reason is printed.
    """
    if rules or rule is not None:
        _manual(rule, as_json=as_json)
        return
    if run is None:
        raise BadInput("no run is named", hint="allpull explain RUN; or --rules for what can be found")
    from allpull.api.runs import open_run  # noqa: PLC0415  polars is not needed for --help

    chosen = newest_run(run)
    opened, *references = [open_run(one, skip_damaged=skip_damaged) for one in (chosen, *(reference or ()))]
    result = opened.explain(references)
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.explain import explained  # noqa: PLC0415
        from allpull.report.terminal.waiting import waiting  # noqa: PLC0415

        table = waiting(result)
        show_result(explained(result), *([] if table is None else [table]))
    if not result.window.steps and not result.findings:
        raise typer.Exit(NOTHING)


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
        answer(inert_json(json.dumps({"schema": tag("rules"), "rules": pages}, indent=1)))
    elif slug is None:
        show_result(rules({name: summary(name) for name in chosen}))
    else:
        show_result(rule(slug, summary(slug), sections(slug)))
