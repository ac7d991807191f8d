"""``allpull rehearse``: train a virtual accelerator on a virtual cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.say import answer, note
from allpull.cli.train import Out
from allpull.errors import BadInput

MAX_STEPS = 1_000_000


def rehearse(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER.toml", help="The virtual cluster and its accelerator.")],
    steps: Annotated[int, typer.Option("--steps", help="Steps to train.")] = 60,
    unshaped: Annotated[
        bool,
        typer.Option("--unshaped", help="Start the same ranks without hosts and links; faults of those do not act."),
    ] = False,
    out: Out = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be made and run, and stop.")] = False,
) -> None:
    """Train the cluster file's virtual accelerator on its virtual cluster, with real ranks and collectives."""
    from allpull.cli import running  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.cli.progress import follow  # noqa: PLC0415
    from allpull.launch.execute import execute  # noqa: PLC0415
    from allpull.launch.job import prepare, prospect  # noqa: PLC0415
    from allpull.rehearse import specification as asked  # noqa: PLC0415
    from allpull.rehearse.launcher import ACCELERATOR, Rehearse  # noqa: PLC0415
    from allpull.rehearse.unshaped import Unshaped  # noqa: PLC0415

    if not 1 <= steps <= MAX_STEPS:
        raise BadInput(f"--steps {steps}: between 1 and {MAX_STEPS:,} can be asked for", hint="such as --steps 60")
    shaped = Rehearse(cluster)
    planned = shaped.cluster
    if planned.accelerator is None:
        raise BadInput(f"{cluster} has no [accelerator]", hint="add one, or train on the cluster: allpull train")
    launcher = Unshaped(planned) if unshaped else shaped
    spec = asked.specification(planned, steps=steps, source=str(cluster), shaped=not unshaped)
    options = asked.options(planned, steps)
    if dry_run:
        job = prospect(spec, kind="rehearse", module=ACCELERATOR, command=[*sys.argv], out=out, options=options)
        answer(launcher.plan(job))
        return
    running.need_torch()
    job = prepare(spec, kind="rehearse", module=ACCELERATOR, command=[*sys.argv], out=out, options=options)
    job = asked.recorded(job)
    with follow(job.directory, spec) as look:
        record = execute(job, launcher, look, note)
    note(f"run directory: {job.directory}")
    running.pass_on(record)
