"""A real run of every version of the format is read, and is what the types and the JSON Schemas say it is."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from allpull.api.reporting import scaling_report
from allpull.api.runs import open_runs
from allpull.observe.recording import journal
from allpull.observe.sidecar import __main__ as sidecar
from allpull.rundir.read.run import read_run
from allpull.schema.base import VERSION, tag
from allpull.schema.document import DOCUMENTED
from allpull.schema.events import Event

Line = tuple[str, str, dict[str, Any]]
"""What it is (a stem of ``DOCUMENTED``), where it stands, and the record."""


def lines_of(run: Path) -> Iterator[Line]:
    """Every record of a run directory."""
    yield "run", "run.json", json.loads((run / "run.json").read_text("utf-8"))
    for path in sorted((run / "hosts").iterdir()):
        yield "host", path.name, json.loads(path.read_text("utf-8"))
    for folder in ("steps", "events", "counters"):
        for path in sorted((run / folder).iterdir()):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
                yield f"{folder}-header" if number == 1 else folder, f"{folder}/{path.name}:{number}", json.loads(line)


@pytest.fixture(scope="module")
def every_line(kept_runs: list[Path]) -> list[Line]:
    """Every record of every kept run."""
    return [(what, f"{run.name}/{where}", record) for run in kept_runs for what, where, record in lines_of(run)]


@pytest.fixture(scope="module")
def schemas(root: Path) -> dict[str, jsonschema.Draft202012Validator]:
    """The published JSON Schemas, by stem."""
    folder = root / "docs" / "reference" / "schema"
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    for schema in found.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {stem: jsonschema.Draft202012Validator(schema) for stem, schema in found.items()}


def test_there_is_a_run_of_this_version(kept_runs: list[Path]) -> None:
    assert f"v{VERSION}" in [run.name for run in kept_runs]


def test_kept_runs_are_read(kept_runs: list[Path]) -> None:
    for directory in kept_runs:
        run = read_run(directory)
        assert run.gaps == ()
        assert run.record.status == "completed"
        assert sorted(run.headers) == list(range(run.record.ranks))
        assert run.steps.height == sum(log.end.steps for log in run.events.values() if log.end)
        assert (run.steps["end_ns"] > run.steps["begin_ns"]).all()


def test_every_line_is_of_its_type(every_line: list[Line]) -> None:
    adapters = {stem: TypeAdapter(kind) for stem, kind in DOCUMENTED.items()}
    for what, where, record in every_line:
        try:
            adapters[what].validate_python(record, strict=True)
        except ValidationError as error:
            pytest.fail(f"{where}: {error}")


def test_every_line_is_of_its_json_schema(
    every_line: list[Line], schemas: dict[str, jsonschema.Draft202012Validator]
) -> None:
    for what, where, record in every_line:
        fault = jsonschema.exceptions.best_match(schemas[what].iter_errors(record))
        assert fault is None, f"{where}: {fault.message}"


def test_writers_write_no_field_that_the_types_do_not_have(every_line: list[Line]) -> None:
    """Both sides ignore unknown fields, so only this would notice a misspelt one."""
    for what, where, record in every_line:
        kind = next(event for event in event_types() if kind_of(event) == record["kind"]) if what == "events" else None
        strange = list(unknown_fields(kind or DOCUMENTED[what], record))
        assert not strange, f"{where}: {strange}"


def test_every_kind_of_record_is_among_the_kept_runs(every_line: list[Line]) -> None:
    answers = {"doctor", "show", "runs", "explain", "compare", "audit", "export", "report"}  # not in a run directory
    answers |= {
        "forecast",
        "kernels",
        "lab-batch",
        "lab-ring",
        "lab-sgd",
        "placements",
        "predict",
        "study",
        "study-plan",
        "tune",
    }
    answers |= {stem for probe in ("loader", "storage", "compute") for stem in (probe, f"probes-{probe}")}
    assert {what for what, _, _ in every_line} == set(DOCUMENTED) - answers


def test_what_is_wrong_is_refused(every_line: list[Line], schemas: dict[str, jsonschema.Draft202012Validator]) -> None:
    step = next(record for what, _, record in every_line if what == "steps")
    wrong = [
        {key: value for key, value in step.items() if key != "begin_ns"},
        {**step, "step": -1},
        {**step, "forward_ns": "fast"},
        {**step, "tags": ["sleepy"]},
    ]
    for record in wrong:
        assert not schemas["steps"].is_valid(record)
        with pytest.raises(ValidationError):
            TypeAdapter(DOCUMENTED["steps"]).validate_python(record, strict=True)


def test_json_schemas_refuse_what_types_refuse_for_events(schemas: dict[str, jsonschema.Draft202012Validator]) -> None:
    assert schemas["events"].is_valid({"kind": "end", "steps": 3, "t_ns": 1})
    assert not schemas["events"].is_valid({"kind": "ended", "steps": 3, "t_ns": 1})


def test_writers_state_the_version_of_the_types() -> None:
    """Ranks have no pydantic, so their writers carry the version themselves."""
    assert journal.VERSION == VERSION
    assert tag("counters") == sidecar.SCHEMA


def test_answers_are_of_their_json_schemas(
    kept_runs: list[Path], schemas: dict[str, jsonschema.Draft202012Validator]
) -> None:
    report = scaling_report([run.aligned for run in open_runs(kept_runs)])
    assert schemas["show"].is_valid(json.loads(report.show.model_dump_json(by_alias=True)))
    assert schemas["report"].is_valid(json.loads(report.model_dump_json(by_alias=True)))
    assert report.show.runs[0].throughput is not None


def test_nothing_in_kept_runs_names_a_machine(kept_runs: list[Path]) -> None:
    allowed = re.compile(r"/home/user\b|/bin/sh")
    for path in (path for run in kept_runs for path in run.rglob("*") if path.is_file()):
        for found in re.findall(r"(?<![\w.])/[a-z][\w.-]*/[\w./-]+", path.read_text("utf-8")):
            assert allowed.match(found), f"{path.name}: {found}"
    for run in kept_runs:
        assert json.loads((run / "run.json").read_text("utf-8"))["hosts"] == ["node1"]


def event_types() -> tuple[Any, ...]:
    return typing.get_args(typing.get_args(Event)[0])


def kind_of(event: Any) -> str:
    return str(typing.get_args(event.model_fields["kind"].annotation)[0])


def unknown_fields(kind: Any, record: Any, path: str = "") -> Iterator[str]:
    """Fields of ``record`` that ``kind`` does not have, those of records inside it included."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = [part for part in arguments if part is not type(None)]
        if record is not None and len(inner) == 1:
            yield from unknown_fields(inner[0], record, path)
    elif origin is list:
        for item in record:
            yield from unknown_fields(arguments[0], item, path)
    elif origin is dict:
        for key, item in record.items():
            yield from unknown_fields(arguments[1], item, f"{path}{key}.")
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        yield from (f"{path}{key}" for key in record if key not in fields)
        for key, value in record.items():
            if key in fields:
                yield from unknown_fields(fields[key].annotation, value, f"{path}{key}.")
