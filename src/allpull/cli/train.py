"""``allpull train``: the reference trainer, on any number of ranks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer, note
from allpull.cli.show import AsJson
from allpull.errors import BadInput

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one option of the recipe, such as train.epochs=3."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder in which the run directory is made.")]

Prepare = Annotated[
    bool,
    typer.Option("--prepare", help="Make the run directory with a batch script in it, to be submitted with sbatch."),
]


def train(  # noqa: PLR0917  one parameter an option, called by typer alone
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Name of a recipe, or a TOML file.", show_default=False)
    ] = None,
    ranks: Annotated[int | None, typer.Option("-n", "--ranks", help="Ranks, one process each.")] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            metavar="NAME[:ARGUMENT]",
            help="Where ranks run: local, ssh:HOSTS, slurm, mpi[:HOSTFILE], rehearse:CLUSTER.toml. "
            "Not given: Slurm inside a Slurm job, else local.",
        ),
    ] = None,
    sets: Sets = None,
    out: Out = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on from the last checkpoint of this run directory.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, to be read, and start and write nothing.")
    ] = False,
    prepare: Prepare = False,
    list_recipes: Annotated[bool, typer.Option("--list-recipes", help="List the recipes and stop.")] = False,
    list_models: Annotated[bool, typer.Option("--list-models", help="List the models and stop.")] = False,
    list_data: Annotated[bool, typer.Option("--list-data", help="List the data sets and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train the model of a recipe, data-parallel, and record it."""
    from allpull.cli import listing, running  # noqa: PLC0415  pydantic is not needed for --help

    if list_recipes or list_models or list_data:
        answer(listing.listing(recipes=list_recipes, models=list_models, data=list_data, as_json=as_json))
        if list_models and not as_json:
            note("for 1 channel and 10 classes; for others: allpull probe compute MODEL --channels … --classes …")
        return
    if recipe is None:
        raise BadInput("no recipe was given", hint=f"allpull train {' | '.join(listing.recipe_names())}")
    check_asked(dry_run=dry_run, prepare=prepare)
    spec = running.resolve(recipe, sets or [], ranks=ranks, launcher=launcher, resume=resume)
    if dry_run:
        answer(running.plan_training(spec, out))
        return
    if prepare:
        say_prepared(running.prepare_training(spec, out))
        return
    record, directory = running.run_training(spec, out)
    note(f"run directory: {directory}")
    running.pass_on(record)


def check_asked(*, dry_run: bool, prepare: bool) -> None:
    """Make sure that not both were asked for.

    Raises:
        BadInput: they were.
    """
    if dry_run and prepare:
        raise BadInput("--dry-run writes nothing, and --prepare a run directory", hint="leave one of the two out")


def say_prepared(script: Path) -> None:
    """Say how ``script`` is submitted; the path alone on stdout."""
    note(f"submit it from this folder: sbatch {shlex.quote(str(script))}")
    answer(str(script))
