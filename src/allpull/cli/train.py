"""``allpull train``: the reference trainer, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli import completion
from allpull.cli.options import (
    AsJson,
    DryRun,
    Out,
    Prepare,
    Sets,
    check_exclusive,
    closing_lines,
    exit_like,
    own_command,
    print_plan,
    print_prepared,
)
from allpull.cli.say import answer, note
from allpull.errors import BadInput

EXAMPLE = "allpull train digits -n 2 --set train.epochs=3"

Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="Name of a recipe, or a TOML file.",
        show_default=False,
        autocompletion=completion.recipes,
    ),
]
Ranks = Annotated[int | None, typer.Option("-n", "--ranks", help="Ranks, one process each. [default: the recipe's]")]
Launch = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME[:ARGUMENT]",
        help="Where ranks run: local, ssh:HOSTS, slurm, mpi[:HOSTFILE], rehearse:CLUSTER.toml. "
        "[default: slurm inside a Slurm job, else local]",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="RUN", help="Continue from the last checkpoint of this run.", autocompletion=completion.runs
    ),
]


def train(  # noqa: PLR0917  one parameter an option, called by typer alone
    recipe: Recipe = None,
    ranks: Ranks = None,
    launcher: Launch = None,
    sets: Sets = None,
    out: Out = Path("runs"),
    resume: Resume = None,
    dry_run: DryRun = False,
    prepare: Prepare = False,
    list_recipes: Annotated[bool, typer.Option("--list-recipes", help="List the recipes and stop.")] = False,
    list_models: Annotated[bool, typer.Option("--list-models", help="List the models and stop.")] = False,
    list_data: Annotated[bool, typer.Option("--list-data", help="List the data sets and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train the model of a recipe, data-parallel, and record the run."""
    from allpull.cli import listing  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.cli.progress import follow  # noqa: PLC0415
    from allpull.jobs import training  # noqa: PLC0415
    from allpull.launch.execute import execute  # noqa: PLC0415
    from allpull.launch.launcher import choose  # noqa: PLC0415

    if list_recipes or list_models or list_data:
        answer(listing.listing(recipes=list_recipes, models=list_models, data=list_data, as_json=as_json))
        if list_models and not as_json:
            note("for 1 channel and 10 classes; for others: allpull probe compute MODEL --channels … --classes …")
        return
    if recipe is None:
        raise BadInput("no recipe was given", hint=f"allpull train {' | '.join(listing.recipe_names())}")
    check_exclusive(dry_run=dry_run, prepare=prepare)
    request = training.TrainingRequest(
        recipe=recipe, sets=tuple(sets or ()), ranks=ranks, launcher=launcher, resume=resume
    )
    spec = training.resolve(request, notify=note)
    if dry_run:
        print_plan(training.training_plan(spec, out, own_command()))
        return
    if prepare:
        print_prepared(training.training_script(spec, out, own_command()))
        return
    job = training.training_job(spec, out, own_command())
    with follow(job.directory, spec) as look:
        record = execute(job, choose(spec.launch.launcher), look, note)
    for line in closing_lines(job.directory) if record.status == "completed" else ():
        note(line)
    note(f"run directory: {job.directory}")
    exit_like(record)
