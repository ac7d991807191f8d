"""``allpull study``: a matrix of runs as one command, and series of measurements as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer, answer_json, note, show_result
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import BadInput
from allpull.report.printable import inert_json

if TYPE_CHECKING:
    from allpull.study.file import StudyFile
    from allpull.study.points import Point

SLIPS = 3  # exit code: numbers contradict each other
FAILED = 1  # exit code: some runs of a study failed
LIMIT = 3  # exit code: a limit of the study was reached first

study = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A matrix of runs as one command: planned, run, shown, audited.",
    epilog=example("allpull study run study.toml"),
)

Place = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="A study file (TOML), the name of a shipped study, or a study's directory."),
]
FitHere = Annotated[
    bool, typer.Option("--fit-here", help="Lay [fit_here] over the study, so that it fits a small machine.")
]
StudyOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Directory of the study. [default: studies/ and its name]"),
]
StudySets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change the study, such as study.repeats=5, or an option of all its runs, such as train.lr=0.2.",
    ),
]


@study.command("list", cls=Verb, epilog=example("allpull study list"))
def list_studies(as_json: AsJson = False) -> None:
    """List the studies that come with allpull."""
    from allpull.schema.base import tag  # noqa: PLC0415  as above
    from allpull.study.file import recipes  # noqa: PLC0415  pydantic is not needed for --help

    shipped = [{"name": name, "about": about} for name, about in recipes().items()]
    if as_json:
        answer(inert_json(json.dumps({"schema": tag("list"), "studies": shipped}, indent=1)))
    else:
        answer("\n".join(f"{one['name']:12}{one['about']}" for one in shipped))


@study.command("plan", cls=Verb, epilog=example("allpull study plan hal --fit-here"))
def plan(
    place: Place, fit_here: FitHere = False, out: StudyOut = None, sets: StudySets = None, as_json: AsJson = False
) -> None:
    """Show the runs of a study and what they cost; start nothing."""
    from allpull.study import plan as planning  # noqa: PLC0415  pydantic is not needed for --help

    study, points, directory = _opened(place, fit_here=fit_here, out=out, sets=sets)
    result = planning.plan(study, points, directory)
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.study import planned  # noqa: PLC0415

        show_result(planned(result))


@study.command("run", cls=Verb, epilog=example("allpull study run study.toml --limit 2h"))
def run(  # noqa: PLR0917  one parameter an option, called by typer alone
    place: Place,
    fit_here: FitHere = False,
    out: StudyOut = None,
    sets: StudySets = None,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="TIME", help="Longest time of all runs, such as 4h.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--continue", help="Go on although the study file has changed since it was begun.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run what is missing of a study.

    After any interruption the same command goes on: what completed is not run again. Exit code 1: some runs failed; 3:
    a limit of time or money was reached first.
    """
    from allpull.cli.study_progress import StudyProgress  # noqa: PLC0415  polars is not needed for --help
    from allpull.study.file import with_limit  # noqa: PLC0415
    from allpull.study.runner import run_study  # noqa: PLC0415  as above

    study, points, directory = _opened(place, fit_here=fit_here, out=out, sets=sets)
    if limit is not None:
        study = with_limit(study, limit)
    try:
        end = run_study(study, points, directory, StudyProgress(), anew=anew)
    except KeyboardInterrupt:
        note(f"what completed is kept in {directory}; the same command goes on")
        raise
    _show(directory, as_json=as_json)
    if end.stopped:
        note(f"stopped: {end.stopped}")
        note("the same command with a larger limit goes on")
    note(f"study directory: {directory}")
    failed = end.count("failed") + end.count("timeout")
    if failed or end.stopped:
        raise typer.Exit(FAILED if failed else LIMIT)


@study.command("submit", cls=Verb, epilog=example("allpull study submit study.toml --at-once 2"))
def submit(
    place: Place,
    out: StudyOut = None,
    sets: StudySets = None,
    at_once: Annotated[int, typer.Option("--at-once", metavar="N", help="How many jobs may run at the same time.")] = 1,
) -> None:
    """Submit what is missing of a study to Slurm, a job per run."""
    from allpull.study.submission import submit_study  # noqa: PLC0415  polars is not needed for --help

    study, points, directory = _opened(place, fit_here=False, out=out, sets=sets)
    for job in submit_study(study, points, directory, at_once=at_once, notify=note):
        answer(f"{job.number} {job.directory}")
    note(f"as jobs end: allpull study show {directory}")


@study.command("show", cls=Verb, epilog=example("allpull study show studies/my-scaling"))
def show(
    place: Annotated[str, typer.Argument(metavar="STUDY", help="A study's directory, name below studies/, or file.")],
    as_json: AsJson = False,
) -> None:
    """Show what a study has measured so far, beside what was published."""
    from allpull.study.directory import measured_directory  # noqa: PLC0415  pydantic is not needed for --help

    _show(measured_directory(place), as_json=as_json)


def _show(directory: Path, *, as_json: bool) -> None:
    from allpull.study.results import read_study  # noqa: PLC0415  polars is not needed for --help

    result = read_study(directory)
    if as_json:
        answer_json(result)
    else:
        from allpull.report.terminal.study import measured  # noqa: PLC0415

        show_result(measured(result))


def _opened(
    place: str, *, fit_here: bool, out: Path | None, sets: Sequence[str] | None
) -> tuple[StudyFile, list[Point], Path]:
    """The study at ``place``, its points, and its directory."""
    from allpull.study.directory import directory_of, is_study, kept_study  # noqa: PLC0415
    from allpull.study.file import load_study, recipes  # noqa: PLC0415
    from allpull.study.points import points_of  # noqa: PLC0415

    path, shipped = Path(place), place in recipes()
    if is_study(path):
        if fit_here or out is not None:
            other = "; rename it, or work in another folder, for the shipped study of that name" if shipped else ""
            raise BadInput(
                f"{place} is the directory of a study here, to which --fit-here and --out do not apply",
                hint=f"leave them out to resume it{other}",
            )
        study, directory = kept_study(path, sets or ()), path
    elif path.is_dir() and not shipped:
        raise BadInput(f"the folder {place} holds no study", hint="give a study file (TOML) or a study's directory")
    else:
        study = load_study(place, sets or (), fit_here=fit_here)
        directory = directory_of(study, out)
    return study, points_of(study), directory


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
