"""Export a run: its tables as files, or its curves to TensorBoard or MLflow."""

from __future__ import annotations

import shlex
import tempfile
from datetime import datetime
from pathlib import Path

from allpull.analyse.programs import flat, program
from allpull.api.explanation import kept_explanation
from allpull.api.results import Explanation
from allpull.api.runs import Run
from allpull.errors import BadInput
from allpull.export import mlflow_store, tensorboard_log
from allpull.export.curves import curves, left_out
from allpull.export.files import FILES, write_parquet
from allpull.export.tables import tables
from allpull.export.target import check_free, new_folder, write_manifest
from allpull.rundir import redact
from allpull.rundir.safe_open import shown_path
from allpull.rundir.write import whole_file
from allpull.schema.base import tag
from allpull.schema.explained import ExplainResult
from allpull.schema.exported import Export, Format
from allpull.schema.run import RunRecord

MS_PER_S = 1000
OPTIONS_OF_TRAINER = ("data.", "model.", "train.", "parallel.")
"""Options of the specification that say nothing about a command, which has its own."""


def export_run(run: Run, to: Format, out: str, *, replace: bool) -> Export:
    """Export ``run``: into a folder of its name below ``out``, or to the MLflow that ``out`` names.

    A run that cannot be written whole is not written at all.

    Raises:
        BadInput: it was exported there before and ``replace`` is False, or it cannot be written.
        MissingPart: the package of the format is not installed.
    """
    if to == "mlflow":
        return _to_mlflow(run, out, replace=replace)
    if "://" in out:
        raise BadInput(f"--out {out} is an address, and --to {to} writes files", hint="give a folder")
    if to == "tensorboard":
        tensorboard_log.need_tensorboard()
    place = Path(out) / run.directory.name
    made = Export(schema=tag("export"), run=run.id, to=to, place=shown_path(place), gaps=list(run.gaps))
    with new_folder(place, replace=replace) as folder:
        if to == "tensorboard":
            summary = _summary(kept_explanation(run.aligned))
            points = tensorboard_log.write_log(curves(run.aligned), summary, folder)
            made = made.model_copy(update={"points": points, "notes": left_out(run.aligned)})
        else:
            made = made.model_copy(update={"tables": FILES[to](tables(run.aligned, run.metrics()), folder)})
        write_manifest(folder, made)
    return made


def check_target(run: Run, to: Format, out: str, *, replace: bool) -> None:
    """Check that ``run`` can be exported to ``out``, before minutes are spent on the first of several.

    Raises:
        BadInput: it was exported there before and ``replace`` is False.
    """
    if to != "mlflow":
        check_free(Path(out) / run.directory.name, replace=replace)


def how_to_open(export: Export) -> str:
    """The command that shows what was exported; empty for files."""
    if export.to == "tensorboard":
        return f"tensorboard --logdir {shlex.quote(str(Path(export.place).parent))}"
    if export.to == "mlflow" and export.place.startswith("sqlite:"):
        return f"mlflow ui --backend-store-uri {shlex.quote(export.place)}"
    return ""


def _to_mlflow(run: Run, out: str, *, replace: bool) -> Export:
    uri, artifact_place = mlflow_store.open_store(out)
    mlflow = mlflow_store.client(uri)
    name = run.directory.name  # a name of a file: safe in MLflow's filters but for quotes, which run names have not
    earlier = mlflow_store.existing(mlflow, uri, name)
    if earlier and not replace:
        raise BadInput(f"{name} is in MLflow already, as run {earlier[0]}", hint="add --replace")
    record, result = run.data.record, kept_explanation(run.aligned)
    with tempfile.TemporaryDirectory(prefix="allpull-export-") as scratch:
        artifacts = Path(scratch)
        whole_file(str(artifacts / "explain.json"), result.model_dump_json(by_alias=True, indent=1) + "\n")
        run.report(artifacts / "report.html")
        (artifacts / "tables").mkdir()
        written = write_parquet(tables(run.aligned, run.metrics()), artifacts / "tables")
        logged = mlflow_store.Logged(
            run=name,
            name=run.name,
            begin_ms=_ms(record.created_utc) or 0,
            end_ms=_ms(record.ended_utc) or _ms(record.created_utc) or 0,
            failed=record.status == "failed",
            params=_params(record),
            tags=_tags(record, result),
            curves=curves(run.aligned),
            artifacts=artifacts,
        )
        identity, points = mlflow_store.log_run(mlflow, uri, artifact_place, logged)
    mlflow_store.remove(mlflow, uri, earlier)
    return Export(
        schema=tag("export"),
        run=run.id,
        to="mlflow",
        place=redact.text(uri)[0],
        id=identity,
        tables=written,
        points=points,
        notes=left_out(run.aligned),
        gaps=list(run.gaps),
    )


def _params(record: RunRecord) -> dict[str, str]:
    """The configuration of a run, by the keys of ``--set``; of a command without the options of our trainer."""
    own = record.kind != "run"
    spec = {key: value for key, value in flat(record.spec).items() if own or not key.startswith(OPTIONS_OF_TRAINER)}
    more = {"command": shlex.join(record.command), "ranks": record.ranks, "hosts": len(record.hosts) or None}
    more |= {"threads_per_rank": record.threads_per_rank, "global_batch": record.global_batch, "seed": record.seed}
    return {**{key: str(value) for key, value in more.items() if value is not None}, **spec}


def _tags(record: RunRecord, result: ExplainResult) -> dict[str, str]:
    source = program(record).name
    tags = {
        "allpull.program": source,
        "allpull.kind": record.kind,
        "allpull.status": record.status,
        "allpull.launcher": record.launcher,
        "allpull.ranks": str(record.ranks),
        "allpull.hosts": " ".join(record.hosts),
        **{f"allpull.version.{name}": version for name, version in record.versions.items() if version},
        "mlflow.source.name": source,
        "mlflow.note.content": _summary(result),
    }
    return {**tags, "mlflow.source.git.commit": record.git.commit} if record.git else tags


def _summary(result: ExplainResult) -> str:
    """The explanation as paragraphs of Markdown."""
    shown = Explanation.model_construct(**{name: getattr(result, name) for name in ExplainResult.model_fields})
    return "\n\n".join(repr(shown).splitlines())


def _ms(utc: str | None) -> int | None:
    """Milliseconds since 1970 of a moment in ISO 8601; None where it cannot be read, 0 before."""
    try:
        return None if utc is None else max(0, int(datetime.fromisoformat(utc).timestamp() * MS_PER_S))
    except (ValueError, OverflowError):
        return None
