"""A study on a terminal: what was published stands beside it with the columns that it has."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from allpull.published.series import published_series
from allpull.report.terminal.study import measured
from allpull.schema.base import tag
from allpull.schema.studied import StudyResult


def shown(*series: str) -> str:
    console = Console(width=160, file=StringIO())
    result = StudyResult.model_validate(
        {
            "schema": tag("study"),
            "name": "a",
            "title": "",
            "directory": "studies/a",
            "scaling": None,
            "points": [],
            "published": [one.model_dump(by_alias=True) for one in published_series(series)],
            "changed": [],
            "notes": [],
        }
    )
    console.print(measured(result))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_published_pop_efficiencies_are_shown_where_there_are_some() -> None:
    claix = shown("claix_pop", "hal_feb")
    of_claix, of_hal = claix.split("published: ")[1:]
    assert "POP parallel" in of_claix
    assert "POP" not in of_hal
    assert "workers" not in of_hal
