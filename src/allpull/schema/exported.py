"""What an export wrote: the manifest in its folder, and the result of `allpull export`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

Format = Literal["csv", "parquet", "tensorboard", "mlflow"]


class ExportedTable(Record):
    """One table of an export."""

    name: str
    rows: int = Field(ge=0)
    columns: dict[str, str] = Field(description="name → what it is; the unit is in the name")


class Export(Record):
    """One run in the format of another tool. Also the manifest of a folder, by which a later export knows it."""

    schema_: str = Field(alias="schema")
    run: str = Field(description="id of the run")
    to: Format
    place: str = Field(description="folder, or tracking URI of MLflow")
    id: str | None = Field(None, description="of the run in MLflow")
    tables: list[ExportedTable] = Field(default_factory=list)
    points: int | None = Field(None, ge=0, description="of all curves; None: tables were written")
    notes: list[str] = Field(default_factory=list, description="what was left out")
    gaps: list[str] = Field(default_factory=list, description="what is missing from the run")


class ExportResult(Record):
    """The result of `allpull export`."""

    schema_: str = Field(alias="schema")
    exports: list[Export]
    damaged: list[str] = Field(
        default_factory=list, description="runs of a folder that could not be read, each with the reason"
    )
