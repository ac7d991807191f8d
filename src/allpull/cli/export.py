"""``allpull export``: the numbers of runs in the formats of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import AsJson, Runs, SkipDamaged
from allpull.cli.say import answer, answer_json, note
from allpull.errors import UnknownName

if TYPE_CHECKING:
    from allpull.schema.exported import Format

EXAMPLE = "allpull export runs --to csv --out tables"

FORMATS: dict[Format, str] = {
    "csv": "exports",
    "parquet": "exports",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
}
"""Format → where it is written by default."""

To = Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"Format to write: {', '.join(FORMATS)}.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder to write into; for mlflow also a tracking URI. [default: exports, tensorboard or mlflow]",
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an earlier export of the same run.")]


def export(
    runs: Runs,
    to: To,
    out: Target = None,
    *,
    replace: Replace = False,
    skip_damaged: SkipDamaged = False,
    as_json: AsJson = False,
) -> None:
    """Write the numbers of runs for other tools.

    Tables as CSV or Parquet files, or curves for TensorBoard or MLflow.
    """
    from allpull.api.exporting import check_target, export_run, how_to_open  # noqa: PLC0415
    from allpull.api.runs import readable_runs  # noqa: PLC0415  polars is not needed for --help
    from allpull.schema.base import tag  # noqa: PLC0415
    from allpull.schema.exported import ExportResult  # noqa: PLC0415

    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    place = out or FORMATS[to]
    opened, damaged = readable_runs(runs, skip_damaged=skip_damaged)
    for line in damaged:
        note(f"not readable: {line}")
    for run in opened:
        check_target(run, to, place, replace=replace)
    made = []
    for run in opened:
        one = export_run(run, to, place, replace=replace)
        made.append(one)
        for line in one.notes:
            note(f"{one.run}: {line}")
        if not as_json:
            answer(one.place if one.id is None else f"{one.place} run {one.id}")
    if as_json:
        result = ExportResult(schema=tag("export"), exports=made, damaged=damaged)
        answer_json(result)
    if shown := how_to_open(made[-1]):
        note(f"open it: {shown}")
