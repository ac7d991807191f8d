"""From a recipe to a job of the reference trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allpull.config.load import Spelling, as_set_option, load_spec
from allpull.data.loader import open_feed
from allpull.errors import BadInput, UnknownName
from allpull.jobs.placement import Notify, check_restarts, check_submittable, is_here, need_torch, place_ranks
from allpull.launch.job import PLANNED_ONLY, Job, prepare, prospect
from allpull.launch.launcher import choose
from allpull.launch.slurm.launcher import prepare_script
from allpull.rundir.read.places import find_runs
from allpull.schema.spec import RunSpec
from allpull.train.models import LIBRARIES, MODELS

TRAINER = "allpull.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A training as a user asks for it: a recipe, and what to change. None: as the recipe says.

    ``sets`` are overrides such as ``train.epochs=3``; ``resume`` is the run directory whose last checkpoint to use.
    ``spelling``: how messages name an override.
    """

    recipe: str
    sets: tuple[str, ...] = ()
    ranks: int | None = None
    launcher: str | None = None
    resume: Path | None = None
    spelling: Spelling = as_set_option


def request_of(options: Mapping[str, Any], *, spelling: Spelling = as_set_option) -> TrainingRequest:
    """The request that JSON carries as ``options``: the fields of a ``TrainingRequest`` but ``spelling``."""
    resume = Path(options["resume"]) if options["resume"] else None
    return TrainingRequest(**{**options, "sets": tuple(options["sets"]), "resume": resume, "spelling": spelling})


def resolve(request: TrainingRequest, *, notify: Notify = lambda _: None) -> RunSpec:
    """The checked specification of ``request``.

    Raises:
        BadInput: unknown recipe, option, launcher or data set, with every fault listed.
    """
    spec = load_spec(request.recipe, [*request.sets, *_overrides(request)], spelling=request.spelling)
    spec = place_ranks(spec, os.environ, request.sets, notify=notify)
    choose(spec.launch.launcher)
    check_restarts(spec)
    if spec.ssh.carry:
        raise BadInput(
            "ssh.carry copies a program of yours, and allpull's own trainer is installed on every host",
            hint="leave it out; --set ssh.ship=true copies allpull's code",
        )
    check_inputs(spec)
    return spec


def check_inputs(spec: RunSpec) -> None:
    """Check that model, data, weights and checkpoint exist, before any rank is started.

    Raises:
        BadInput: there is no such model or data set, files of either are missing, data are damaged, or there is
            nothing to resume from.
        MissingPart: ranks would run here, and no device here supports the requested arithmetic.
    """
    if spec.model.name.partition(":")[0] not in (*MODELS.names(), *LIBRARIES):
        raise UnknownName("model", spec.model.name, MODELS.names())
    if not spec.launch.launcher.startswith(PLANNED_ONLY):  # the data are where the manifest is applied
        open_feed.check(spec.data)
    if spec.model.weights and not spec.train.resume and not Path(spec.model.weights).is_file():
        raise BadInput(
            f"model.weights: no file {spec.model.weights}", hint="give a state_dict with torchvision's names, or none"
        )
    if spec.train.precision == "tf32" and is_here(spec):
        from allpull.train.numerics.precision import check_here  # noqa: PLC0415  torch takes seconds, and few request tf32

        check_here(spec.train.precision)
    if spec.train.resume and not spec.launch.launcher.startswith(PLANNED_ONLY) and not Path(spec.train.resume).exists():
        raise BadInput(
            f"cannot resume from {spec.train.resume}: no such file or directory", hint="give a run directory"
        )


def _overrides(request: TrainingRequest) -> list[str]:
    resume = request.resume
    if resume is not None:
        (resume,) = [resume] if resume.exists() else find_runs(resume)  # a name is that of one run
        resume = resume.resolve()
    given = {"launch.ranks": request.ranks, "launch.launcher": request.launcher, "train.resume": resume}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def training_job(spec: RunSpec, out: Path, command: Sequence[str]) -> Job:
    """The training of ``spec`` with a run directory below ``out``, not started; ``command`` is recorded as its origin.

    Raises:
        MissingPart: torch is not installed.
        BadInput: the run directory cannot be made.
    """
    need_torch()
    return prepare(spec, kind="train", module=TRAINER, command=command, out=out)


def training_plan(spec: RunSpec, out: Path, command: Sequence[str]) -> str:
    """The script that the training of ``spec`` would run now; nothing is started or written.

    Raises:
        AllpullError: it cannot be started here, as far as that shows beforehand.
    """
    job = prospect(spec, kind="train", module=TRAINER, command=command, out=out)
    return choose(spec.launch.launcher).plan(job)


def training_script(spec: RunSpec, out: Path, command: Sequence[str], *, companion: Sequence[str] = ()) -> Path:
    """Make the run directory of a training with a batch script in it, for manual submission; returns the script's path.

    ``companion``: see ``Job``.

    Raises:
        BadInput: the launcher is not Slurm, or the script cannot be made.
    """
    check_submittable(prospect(spec, kind="train", module=TRAINER, command=command, out=out))
    job = prepare(spec, kind="train", module=TRAINER, command=command, out=out)
    return prepare_script(replace(job, companion=tuple(companion)))
