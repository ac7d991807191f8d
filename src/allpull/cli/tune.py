"""``allpull tune``: the best setting of a study's parameters within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer_json, note, show_result

if TYPE_CHECKING:
    from allpull.schema.tuned import Trial

EXAMPLE = "allpull tune study.toml"


def tune(
    study: Annotated[str, typer.Argument(metavar="FILE", help="A study file with [tune], or a study's name.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Directory of the study; omitted: studies/NAME.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the study, such as its tune.trials."),
    ] = None,
    fit_here: Annotated[bool, typer.Option("--fit-here", help="Lay [fit_here] over the study.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest configuration within a budget.

    Runs the study at one configuration after another, those that relieve its bottleneck first, and ends runs early
    that are clearly slower than the best. The same command resumes a tuning that was interrupted.
    """
    from allpull.study.file import load_study  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.study.tune.study_tuning import tune_study  # noqa: PLC0415

    loaded = load_study(study, sets or (), fit_here=fit_here)
    try:
        result = tune_study(loaded, out, on_trial=_progress)
    except KeyboardInterrupt:
        note("every trial that ended is kept; the same command goes on")
        raise
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.tune import tuned  # noqa: PLC0415

        show_result(tuned(result))
    if result.best is None:
        raise typer.Exit(1)


def _progress(trial: Trial, best: Trial | None) -> None:
    from allpull.report.terminal.tune import trial_line  # noqa: PLC0415

    note(trial_line(trial, best))
