"""From a cluster file to a job that trains its virtual accelerator on its virtual cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allpull.errors import BadInput
from allpull.jobs.placement import need_torch
from allpull.launch.job import Job, prepare, prospect
from allpull.launch.launcher import Launcher
from allpull.rehearse import specification as rehearsal
from allpull.rehearse.launcher import ACCELERATOR, Rehearse
from allpull.rehearse.specification import RehearsalSpec
from allpull.rehearse.unshaped import Unshaped

MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A checked rehearsal: the cluster file's launcher, the steps to train, and their specification."""

    shaped: Rehearse
    launcher: Launcher
    steps: int
    spec: RehearsalSpec


def resolve(cluster: Path, *, steps: int, unshaped: bool) -> Planned:
    """The rehearsal of ``steps`` steps that the file ``cluster`` describes; ``unshaped``: without hosts and links.

    Raises:
        BadInput: the file holds faults, or no accelerator; or ``steps`` is out of range.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise BadInput(f"--steps {steps} is not between 1 and {MAX_STEPS:,}", hint="such as --steps 60")
    shaped = Rehearse(cluster)
    if shaped.cluster.accelerator is None:
        raise BadInput(f"{cluster} has no [accelerator]", hint="add one, or train on the cluster: allpull train")
    return Planned(
        shaped=shaped,
        launcher=Unshaped(shaped.cluster) if unshaped else shaped,
        steps=steps,
        spec=rehearsal.specification(shaped.cluster, steps=steps, source=str(cluster), shaped=not unshaped),
    )


def rehearsal_plan(planned: Planned, out: Path, command: Sequence[str]) -> str:
    """What a rehearsal would make and run, as a script; nothing is started or written.

    Raises:
        AllpullError: it cannot be started here, as far as that shows beforehand.
    """
    options = rehearsal.options(planned.shaped.cluster, planned.steps)
    job = prospect(planned.spec, kind="rehearse", module=ACCELERATOR, command=command, out=out, options=options)
    return planned.launcher.plan(job)


def rehearsal_job(planned: Planned, out: Path, command: Sequence[str]) -> Job:
    """A rehearsal with a run directory below ``out``, not started; ``command`` is recorded as its origin.

    Raises:
        MissingPart: torch is not installed.
        BadInput: the run directory cannot be made.
    """
    need_torch()
    options = rehearsal.options(planned.shaped.cluster, planned.steps)
    job = prepare(planned.spec, kind="rehearse", module=ACCELERATOR, command=command, out=out, options=options)
    return rehearsal.recorded(job)
