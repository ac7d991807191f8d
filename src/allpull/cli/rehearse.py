"""``allpull rehearse``: train a virtual accelerator on a virtual cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import DryRun, Out, exit_like, own_command, print_plan
from allpull.cli.say import note

EXAMPLE = "allpull rehearse cluster.toml --steps 60"


def rehearse(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml", help="The virtual cluster and its accelerator.")],
    steps: Annotated[int, typer.Option("--steps", help="Steps to train.")] = 60,
    unshaped: Annotated[
        bool,
        typer.Option("--unshaped", help="Start the same ranks without virtual hosts, links and their faults."),
    ] = False,
    out: Out = Path("runs"),
    dry_run: DryRun = False,
) -> None:
    """Train a virtual accelerator on a virtual cluster.

    Ranks, collectives and buckets are real; hosts, links and compute times are those of the cluster file.
    """
    from allpull.cli.progress import follow  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.jobs import rehearsal  # noqa: PLC0415
    from allpull.launch.execute import execute  # noqa: PLC0415

    planned = rehearsal.resolve(cluster, steps=steps, unshaped=unshaped)
    if dry_run:
        print_plan(rehearsal.rehearsal_plan(planned, out, own_command()))
        return
    job = rehearsal.rehearsal_job(planned, out, own_command())
    with follow(job.directory, planned.spec) as look:
        record = execute(job, planned.launcher, look, note)
    note(f"run directory: {job.directory}")
    exit_like(record)
