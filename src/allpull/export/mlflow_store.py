"""Curves, configuration and results as a run of MLflow, in a local database or on a tracking server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from allpull.errors import BadInput, MissingPart
from allpull.export.curves import JOB, Curve, distinct
from allpull.output_folder import make_folder
from allpull.report.printable import short
from allpull.rundir import redact

BATCH_METRICS, BATCH_TEXTS = 1000, 100  # MLflow's limits of one request
MAX_KEY, MAX_VALUE = 250, 5000  # characters, below the limits of MLflow since 2.10
MAX_LINES = 100  # of one text
MAX_COMPLAINT = 600  # characters
MS_PER_S = 1000
EXPERIMENT = "allpull"
RUN_TAG = "allpull.run"

Item = TypeVar("Item")

_NOT_IN_KEY = re.compile(r"[^\w.\- /]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """What one run of MLflow gets: its name, times in ms since 1970, texts, curves, and a folder of artifacts."""

    run: str
    name: str
    begin_ms: int
    end_ms: int
    failed: bool
    params: Mapping[str, str]
    tags: Mapping[str, str]
    curves: Iterable[Curve]
    artifacts: Path


def open_store(out: str) -> tuple[str, str | None]:
    """The tracking URI that ``out`` means, and where artifacts go; a folder gets a database and ``artifacts``.

    None: the tracking server decides.

    >>> open_store("sqlite:////data/mlflow.db"), open_store("/data/mlflow")[0]
    (('sqlite:////data/mlflow.db', None), 'sqlite:////data/mlflow/mlflow.db')
    """
    if "://" in out:
        return out, None
    folder = Path(out).absolute()
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def client(uri: str) -> Any:
    """MLflow's client of ``uri``.

    Raises:
        MissingPart: MLflow is not installed.
        BadInput: MLflow refuses ``uri``.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export to a local file calls nobody
    try:
        from mlflow import MlflowClient  # noqa: PLC0415  an optional part

        if uri.startswith("sqlite:"):
            import sqlalchemy  # noqa: F401, PLC0415  mlflow-skinny alone lacks it
    except ImportError as error:
        raise MissingPart(
            f"--to mlflow needs the package mlflow, which cannot be imported: {error}",
            hint="pip install 'allpull[mlflow]'",
        ) from error
    if uri.startswith("sqlite:///"):
        make_folder(Path(uri.removeprefix("sqlite:///")).parent)
    with _refusals(uri):
        return MlflowClient(tracking_uri=uri)


def existing(mlflow: Any, uri: str, run: str) -> list[str]:
    """Ids of the runs in MLflow that are exports of ``run``.

    Raises:
        BadInput: MLflow refuses.
    """
    with _refusals(uri):
        experiment = mlflow.get_experiment_by_name(_experiment())
        if experiment is None:
            return []
        wanted = f"tags.`{RUN_TAG}` = '{_quoted(run)}'"
        return [one.info.run_id for one in mlflow.search_runs([experiment.experiment_id], wanted)]


def log_run(mlflow: Any, uri: str, artifact_place: str | None, logged: Logged) -> tuple[str, int]:
    """Log one run; its id in MLflow, and its number of points. A run that fails half-way is deleted again.

    Raises:
        BadInput: MLflow refuses.
    """
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415  an optional part

    with _refusals(uri):
        experiment = mlflow.get_experiment_by_name(_experiment())
        own = experiment.experiment_id if experiment else None
        own = own or mlflow.create_experiment(_experiment(), artifact_location=artifact_place)
        made = mlflow.create_run(own, start_time=logged.begin_ms, run_name=short(logged.name, MAX_KEY))
        identity: str = made.info.run_id
        try:
            points, taken = 0, dict[str, int]()
            for params in _batches(_texts(logged.params), BATCH_TEXTS):
                mlflow.log_batch(identity, params=[Param(key, value) for key, value in params])
            for curve in logged.curves:
                key = distinct(metric_key(curve), taken)
                for part in _batches(_points(curve), BATCH_METRICS):
                    mlflow.log_batch(identity, metrics=[Metric(key, value, ms, step) for value, ms, step in part])
                    points += len(part)
            mlflow.log_artifacts(identity, str(logged.artifacts))
            # The tag by which a later export finds this one comes last: only a whole run has it.
            for tags in _batches([*_texts(logged.tags), (RUN_TAG, _quoted(logged.run))], BATCH_TEXTS):
                mlflow.log_batch(identity, tags=[RunTag(key, value) for key, value in tags])
            mlflow.set_terminated(identity, "FAILED" if logged.failed else "FINISHED", end_time=logged.end_ms)
        except BaseException:
            with suppress(Exception):  # where MLflow has gone, what ended the export is told, not that
                mlflow.delete_run(identity)
            raise
    return identity, points


def remove(mlflow: Any, uri: str, identities: Iterable[str]) -> None:
    """Delete runs, as MLflow does: `mlflow gc` removes them from the disk.

    Raises:
        BadInput: MLflow refuses.
    """
    with _refusals(uri):
        for identity in identities:
            mlflow.delete_run(identity)


def metric_key(curve: Curve) -> str:
    """The name of ``curve`` as MLflow allows it; those of ranks and hosts are shown as metrics of the system."""
    name = curve.name if curve.owner == JOB else f"system/{curve.owner}/{curve.name}"
    return _key(name)


def _key(name: str) -> str:
    """``name`` as MLflow allows keys: a path that leads nowhere else."""
    parts = [_NOT_IN_KEY.sub("_", part).strip(" ") for part in name[: MAX_KEY - 1].split("/")]
    return "/".join(part for part in parts if part.strip(".")) or "_"


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """``items`` in lists of at most ``size``."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def _points(curve: Curve) -> Iterator[tuple[float, int, int]]:
    """Value, time in ms and step of each point; MLflow knows no time before 1970."""
    yield from zip(
        curve.values.tolist(),
        (max(0, int(unix_s * MS_PER_S)) for unix_s in curve.unix_s.tolist()),
        curve.steps.tolist(),
        strict=True,
    )


def _texts(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """``texts`` within MLflow's limits, without control characters."""
    taken = dict[str, int]()
    for key, value in texts.items():
        lines = [short(line, MAX_VALUE) for line in value.splitlines()[:MAX_LINES]]
        yield distinct(_key(key), taken), "\n".join(lines)[:MAX_VALUE]


def _quoted(run: str) -> str:
    """``run`` without what would end a text in MLflow's filters; ids of runs have none of it."""
    return run.replace("'", "_")


def _experiment() -> str:
    """The experiment, as MLflow's own variable names it."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


@contextmanager
def _refusals(uri: str) -> Iterator[None]:
    """Turn what MLflow and its database raise into one error."""
    try:
        yield
    except (BadInput, MissingPart, KeyboardInterrupt):
        raise
    except Exception as error:
        raise BadInput(
            short(f"MLflow at {redact.text(uri)[0]}: {redact.text(str(error))[0]}", MAX_COMPLAINT),
            hint="give a folder, sqlite:///FILE, or the address of a tracking server (--out)",
        ) from error
