"""``allpull study``: series of measurements as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer_json, show_result
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import BadInput

SLIPS = 3  # exit code: numbers contradict each other

study = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Series of measurements as a whole.",
    epilog=example("allpull study audit results.csv"),
)


@study.command("audit", cls=Verb, epilog=example("allpull study audit results.csv"))
def audit(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(help="Tables of points, and of the epochs behind them, as CSV files.", metavar="FILE…"),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Audit the published measurements that come with allpull.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check published measurements against themselves.

    Rounded numbers count as all values that they may stand for. Exit code 3: some numbers contradict each other.
    """
    from allpull.study.audit.run import PUBLISHED, audit_tables  # noqa: PLC0415  pydantic is not needed for --help

    if bool(tables) == published:
        raise BadInput("give CSV files, or --published", hint="their columns are in docs/how-to/audit.md")
    result = audit_tables(PUBLISHED if published else tables or [])
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.audit import audited  # noqa: PLC0415

        show_result(audited(result))
    if any(finding.kind == "slip" for finding in result.findings):
        raise typer.Exit(SLIPS)
