"""Tune a study file in its directory: checked beforehand, locked, resumable, with the result kept on disk."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from allpull.errors import BadInput, ConfigError
from allpull.output_folder import make_folder
from allpull.rundir import safe_open
from allpull.rundir.write import private_folder, whole_file, whole_json
from allpull.schema.studied import Parameters
from allpull.schema.tuned import Trial, TuneResult
from allpull.study.directory import TUNE, TUNE_JSON, directory_of, kept, locked, tuning_in
from allpull.study.file import Matrix, StudyFile, load_study
from allpull.study.overlay import changes
from allpull.study.point_jobs import point_job
from allpull.study.point_run import StudyPlace
from allpull.study.toml_text import toml_text
from allpull.study.tune.jobs_evaluate import JobsEvaluate, point_of
from allpull.study.tune.search import optuna_or_hint
from allpull.study.tune.settings import TuneSettings, read_settings
from allpull.study.tune.space import Dimension, start_of
from allpull.study.tune.tuning import Subject, tune

STUDY_TOML, BEST = "study.toml", "best.toml"
KIND = "tune"
"""The kind of ``tune.json`` in its schema tag."""

MAX_BYTES = 16 << 20
MORE = ("budget", "trials", "rank_hours", "confirm")
"""Settings of ``[tune]`` that may change when a tuning is resumed: its trials stay valid."""

LENGTH = ("observe.warmup_steps=", "watch.last_step=")
"""Options of the trials alone, which say how long they are."""


def read_tuning(directory: Path) -> TuneResult | None:
    """The result of the tuning in ``directory``, as ``tuning_in`` finds it; None: nothing was tuned.

    Raises:
        RunDirError: the result cannot be read.
    """
    folder = tuning_in(directory)
    if folder is None:
        return None
    root = safe_open.checked_directory(folder)
    blob = safe_open.read_whole(root, TUNE_JSON, MAX_BYTES)
    return safe_open.document(TuneResult, KIND, blob, f"{safe_open.shown_path(root)}/{TUNE_JSON}")


def tune_study(
    study: StudyFile, out: Path | None, *, on_trial: Callable[[Trial, Trial | None], object] = lambda _a, _b: None
) -> TuneResult:
    """Tune ``study`` in the folder ``tune`` of its directory, ``out`` or that of its name below ``studies``.

    Raises:
        MissingPart: Optuna is not installed.
        BadInput: there is no ``[tune]``, it contradicts the study, or the directory holds another tuning.
        OSError: the directory cannot be written.
    """
    optuna_or_hint()
    prepared = prepare(study)
    directory = directory_of(study, out) / TUNE
    _open(study, directory)
    with locked(directory) as lock:
        evaluate = JobsEvaluate(
            study, prepared.settings.goal, StudyPlace(directory=directory, lock=lock), fixed=prepared.fixed
        )
        subject = Subject(
            name=study.settings.name,
            title=study.settings.title,
            directory=directory,
            command=lambda parameters: best_command(study, {**prepared.fixed, **parameters}, directory / BEST),
            toml=lambda parameters: best_toml(study, {**prepared.fixed, **parameters}),
        )
        result = tune(subject, prepared.settings, prepared.space, evaluate, seed=study.settings.seed, on_trial=on_trial)
    whole_json(str(directory / TUNE_JSON), result.model_dump(mode="json", by_alias=True))
    if result.best_toml is not None:
        whole_file(str(directory / BEST), result.best_toml)
    return result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a tuning of a study needs; ``fixed`` are the parameters of all its runs."""

    settings: TuneSettings
    space: tuple[Dimension, ...]
    fixed: Parameters


def prepare(study: StudyFile) -> Prepared:
    """The search space of ``study``, whose first configuration can be run.

    Raises:
        BadInput: there is no ``[tune]``.
        ConfigError: with a line for every fault.
    """
    source = f"study '{study.settings.name}'"
    settings = read_settings(study.tune, source)
    faults = []
    fixed: Parameters = {}
    for name, values in {**study.axes, **{name: values for one in study.zips for name, values in one.items()}}.items():
        if len(values) == 1:
            fixed[name] = values[0]
        elif name not in settings.space and name not in settings.fixed:
            faults.append(
                f"axes.{name} has {len(values)} values: choose one in [tune.fixed], or add it to [tune.space]"
            )
    fixed = {name: value for name, value in {**fixed, **settings.fixed}.items() if name not in settings.space}
    if settings.goal.name == "time_to_accuracy_s":
        if study.source != "recipe":
            faults.append("tune.objective = 'time_to_accuracy_s' needs a recipe, which stops at the accuracy")
        elif study.settings.steps:
            faults.append("tune.objective = 'time_to_accuracy_s' with study.steps: runs would end before the accuracy")
        elif settings.accuracy is not None:
            fixed["train.stop_at_top1"] = settings.accuracy
    if faults:
        raise ConfigError(source, faults, hint="correct each line; nothing was started")
    space = settings.dimensions(_defaults(study, fixed, settings.space))
    point_of(study, {**fixed, **start_of(space)})  # whether it can be run
    return Prepared(settings=settings, space=space, fixed=fixed)


def _defaults(study: StudyFile, fixed: Parameters, space: Mapping[str, Any]) -> Parameters:
    """What the recipe, or the cluster, has for the parameters of ``space``; a command has nothing without them."""
    if study.source == "command":
        return {}
    matrix = Matrix(axes=dict.fromkeys([*fixed, *space], ()))
    named = dataclasses.replace(study, matrix=matrix, includes=(), excludes=())
    return point_job(named, fixed).defaults


def best_toml(study: StudyFile, parameters: Parameters) -> str:
    """A configuration as TOML: a recipe for `allpull train`, a cluster file for `allpull rehearse`, else parameters."""
    job = point_of(study, parameters).job
    if job.kind == "rehearse":
        table: Mapping[str, Any] = job.configuration["cluster"]
        return toml_text(table)
    if job.kind == "run":
        return toml_text({"parameters": parameters})
    recipe = copy.deepcopy(dict(job.configuration["train"]))
    if study.settings.steps:
        recipe.get("train", {}).pop("stop_after", None)  # the length of the trials
    return toml_text({name: table for name, table in recipe.items() if table != {}})


def best_command(study: StudyFile, parameters: Parameters, best: Path) -> list[str]:
    """What runs a configuration in full: the file ``best`` that holds it, or the user's own command."""
    job = point_of(study, parameters).job
    if job.kind == "train":
        return ["allpull", "train", str(best)]
    if job.kind == "rehearse":
        return ["allpull", "rehearse", str(best)]
    words, kept = list(job.command), list[str]()
    while words:
        word = words.pop(0)
        if word == "--":
            return [*kept, word, *words]
        if word == "--set" and words[0].startswith(LENGTH):
            words.pop(0)
        else:
            kept.append(word)
    return kept


def _open(study: StudyFile, directory: Path) -> None:
    """Make ``directory`` that of this tuning, or check that it is already.

    Raises:
        BadInput: it is that of another one.
    """
    make_folder(directory.parent, mode=0o700)
    known = directory / STUDY_TOML
    if known.is_file():
        differing = changes(_comparable(load_study(str(known)).plain), _comparable(kept(study)))
        if differing:
            lines = [f"{one.what}: {one.full} there, {one.here} here" for one in differing]
            raise BadInput(
                "\n  ".join([f"the study differs from the one tuned in {directory}:", *lines]),
                hint="give it another study.name, or choose another directory: --out DIR",
            )
    private_folder(str(directory))
    private_folder(str(directory / "runs"))
    whole_file(str(known), toml_text(kept(study)))


def _comparable(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What trials depend on: all but the budget."""
    table = {name: value for name, value in plain.get("tune", {}).items() if name not in MORE}
    return {**plain, "tune": table}
