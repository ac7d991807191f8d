"""Make the generated part of the documentation: command line, options, fields, JSON Schemas, stored numbers.

    python tools/reference.py           write what changed
    python tools/reference.py --check   write nothing; exit 1 and name what is stale

The code is the source: a page here says nothing that a docstring, a help text or a field's description does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import allpull
import printed
from allpull import cli
from allpull.analyse import frames
from allpull.config.load import load_spec, recipes
from allpull.explain import manual
from allpull.explain.rules import names
from allpull.schema.document import DOCUMENTED, json_schema
from allpull.schema.spec import RunSpec, to_plain

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
SCHEMAS = REFERENCE / "schema"
WITH_NUMBERS = ("README.md", "docs/**/*.md")
NOTE = "<!-- Made by tools/reference.py from the code; do not edit. -->\n\n"
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WORDS: dict[Any, str] = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null"}


def main() -> int:
    """Write or check every generated file; the exit code is 1 where ``--check`` found one stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is stale")
    check = parser.parse_args().check
    wanted = generated()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    left_over = [path for path in sorted(SCHEMAS.glob("*")) if path not in wanted]
    for path in [*stale, *left_over]:
        print(f"{'stale' if check else 'written' if path in wanted else 'removed'}: {path.relative_to(ROOT)}")
    if check:
        return 1 if stale or left_over else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    for path in left_over:
        path.unlink()
    return 0


def generated() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    pages = {
        "api.md": python_api(),
        "cli.md": command_line(),
        "options.md": option_tables(),
        "fields.md": field_tables(),
        "rules.md": rules(),
    }
    texts = {REFERENCE / name: NOTE + text for name, text in pages.items()}
    for stem in DOCUMENTED:
        texts[SCHEMAS / f"{stem}.json"] = json.dumps(json_schema(stem), indent=2, ensure_ascii=False) + "\n"
    for pattern in WITH_NUMBERS:
        for path in sorted(ROOT.glob(pattern)):
            if path not in texts:
                texts[path] = printed.fill(path.read_text(encoding="utf-8"))
    return texts


def command_line() -> str:
    """Every verb with its arguments and options, from the application itself."""
    group: Any = typer.main.get_command(cli.app)
    lines = ["# The command line", "", group.help, "", *_parameter_table(group, "allpull")]
    for name, command in all_commands(group):
        arguments = "".join(f" {_place(one)}" for one in _arguments(command))
        lines += [f"## allpull {name}", "", "```text", f"allpull {name}{arguments} [OPTIONS]", "```", ""]
        lines += [command.help, "", *_parameter_table(command, name)]
    return "\n".join([*lines, *EXIT_CODES]) + "\n"


def all_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb by its whole name, those below another verb after it."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{prefix}{name} ")


def _parameter_table(command: Any, name: str) -> list[str]:
    rows = [(f"`{_place(one)}`", "", one.help) for one in _arguments(command)]
    rows += [(_spelled(one), _default(one), one.help) for one in _options(command)]
    return [*table((f"`{name}` takes", "default", "what it does"), rows), ""] if rows else []


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _place(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _spelled(option: Any) -> str:
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or max(option.opts, key=len).lstrip('-').upper()}"
    return ", ".join(f"`{name}{value}`" for name in names)


def _default(option: Any) -> str:
    if option.secondary_opts:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    unset = option.default is None or option.default is False
    return "" if unset else f"`{option.default}`"


def python_api() -> str:
    """What ``import allpull`` offers, from the docstrings."""
    lines = [
        "# The Python API",
        "",
        "What `import allpull` offers, and what the command line is built on. Times are float",
    ]
    lines += ["seconds, sizes are bytes; a name ends in its unit. See also [in a notebook](../how-to/notebook.md).", ""]
    lines += ["## Marks", "", "For any training loop; they cost nothing while it is not observed.", ""]
    for name in ("phase", "step", "epoch", "metric"):
        lines += _member(f"allpull.{name}", getattr(allpull, name))
    lines += ["## Functions", ""]
    offered = {name: getattr(import_module(module), name) for name, module in allpull.API.items()}
    for name, value in offered.items():
        if inspect.isfunction(value):
            lines += _member(f"allpull.{name}", value)
    lines += ["## Classes", ""]
    for name, value in offered.items():
        if inspect.isclass(value):
            lines += [f"### allpull.{name}", "", *_prose(value), *_results_fields(value)]
            for member, found in vars(value).items():
                inserted = inspect.isfunction(found) and found.__module__ != value.__module__  # by pydantic
                if not (member.startswith("_") or inserted or isinstance(found, classmethod)):
                    lines += _class_member(name, member, found)
    return "\n".join(lines[:-1]) + "\n"


FRAMES = {
    "steps": frames.STEPS,
    "phases": frames.PHASES,
    "collectives": frames.COLLECTIVES,
    "counters": frames.COUNTERS,
}


def _class_member(kind: str, name: str, found: Any) -> list[str]:
    """A method, or a property with the columns of its data frame."""
    if inspect.isfunction(found):
        return _member(f"{kind}.{name}", found)
    if not isinstance(found, property | functools.cached_property):
        return []
    columns = FRAMES.get(name, {}) if kind == "Run" else {}
    rows = [(f"`{column}`", text) for column, text in columns.items()]
    return [f"#### {kind}.{name}", "", *_prose(found), *([*table(("column", "what it is"), rows), ""] if rows else [])]


def _member(name: str, found: Any) -> list[str]:
    signature = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(found)))
    signature = signature.replace("(self, ", "(").replace("(self)", "()").replace("allpull.api.runs.", "")
    return [f"#### {name}", "", "```text", f"{name}{signature}", "```", "", *_prose(found)]


def _prose(found: Any) -> list[str]:
    """A docstring as Markdown: its sections (Args, Raises) become lists."""
    lines: list[str] = []
    in_section = False
    for line in inspect.cleandoc(found.__doc__ or "").replace("``", "`").splitlines():
        if line in {"Args:", "Raises:"}:
            in_section = True
            lines += [f"**{line.removesuffix(':')}**", ""]
        elif in_section and re.match(r"    \S", line):
            name, _, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}")
        else:
            in_section = in_section and bool(line.strip())
            lines.append(f"  {line.strip()}" if in_section else line)
    return [*lines, ""]


def _results_fields(kind: type) -> list[str]:
    """Where the fields of a result are listed."""
    record = next((base for base in kind.__mro__[1:] if base in described_models()), None)
    return (
        []
        if record is None
        else [f"Its fields are those of [{record.__name__}](fields.md#{record.__name__.lower()}).", ""]
    )


def described_models() -> set[type]:
    """Every record that the page of fields describes."""
    return {model for kind in DOCUMENTED.values() for model in _models(kind)}


EXIT_CODES = [
    "## Exit codes",
    "",
    "| code | meaning |",
    "|---|---|",
    "| 0 | success |",
    "| 1 | `study run`: some runs failed; `tune`: no configuration trained to the end |",
    "| 2 | invalid input: the error says what, where, and what to do |",
    "| 3 | a gate failed: `compare --fail-if`, `pack verify`, a bad check of `doctor`, a wrong program of `lab sgd` |",
    "| 3 | `watch --once` or `--json`: a rank is dead or hung, or the job has failed |",
    "| 3 | no answer: `predict` cannot tell from these measurements, numbers of `study audit` contradict each other |",
    "| 3 | `study run`: a limit of time or money was reached first |",
    "| 4 | `explain`: the records explain nothing: no step was recorded, or steps of ranks cannot be compared |",
    "| 125 | allpull itself failed; `ALLPULL_DEBUG=1` shows where |",
    "| 130 | interrupted by Ctrl-C |",
    "| other | `demo`, `train`, `run -n`: the code of the rank that failed first; 128 + n if signal n ended it |",
    "| other | `run` without `-n`: the code of the command, also after Ctrl-C |",
]


def option_tables() -> str:
    """Every option of a specification, and what the shipped recipes set."""
    lines = ["# Recipes and options", "", "A recipe is a TOML file of these options; `--set` changes one of them.", ""]
    lines += ["## Shipped recipes", "", *table(("recipe", "what it is", "it sets"), list(_recipe_rows())), ""]
    own = [item for item in dataclasses.fields(RunSpec) if not _is_table(item)]
    lines += ["## At the top", "", *table(OPTION_HEAD, [_option_row(RunSpec, item, "") for item in own]), ""]
    for item in dataclasses.fields(RunSpec):
        if _is_table(item):
            kind: Any = typing.get_type_hints(RunSpec)[item.name]
            rows = [_option_row(kind, inner, f"{item.name}.") for inner in dataclasses.fields(kind)]
            lines += [f"## [{item.name}]", "", _purpose(kind), "", *table(OPTION_HEAD, rows), ""]
    return "\n".join(lines[:-1]) + "\n"


OPTION_HEAD = ("option", "default", "takes", "what it is")


def _is_table(item: dataclasses.Field[Any]) -> bool:
    return dataclasses.is_dataclass(typing.get_type_hints(RunSpec)[item.name])


def _option_row(kind: type, item: dataclasses.Field[Any], prefix: str) -> tuple[str, ...]:
    bounds = [f"{BOUNDS[name]} {bound:,}" for name, bound in item.metadata.get("bounds", {}).items()]
    takes = ", ".join([type_words(typing.get_type_hints(kind)[item.name]), *bounds])
    default = json.dumps(item.default, ensure_ascii=False)
    return f"`{prefix}{item.name}`", f"`{default}`", takes, item.metadata["help"]


def _recipe_rows() -> Iterator[tuple[str, ...]]:
    defaults = dict(_flat(to_plain(RunSpec()), ""))
    for name, about in recipes().items():
        spec = dict(_flat(to_plain(load_spec(name)), ""))
        changed = [f"`{path} = {json.dumps(value)}`" for path, value in spec.items() if value != defaults[path]]
        yield f"`{name}`", about, ", ".join(changed)


def _flat(plain: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def field_tables() -> str:
    """Every field of every record, by file."""
    lines = ["# Fields of the records", ""]
    lines += ["Names that end in `_ns` are integer nanoseconds: durations, or moments of the host's monotonic clock;"]
    lines += ["only `realtime_ns` counts from 1970. `null` (None in Python) means not measured, never 0. What each"]
    lines += ["file is for is described in [the run directory](run-directory.md).", ""]
    described: set[type] = set()
    for stem, kind in DOCUMENTED.items():
        lines += [f"## {stem}", "", f"JSON Schema: [{stem}.json](schema/{stem}.json).", ""]
        for model in _models(kind):
            if model not in described:
                described.add(model)
                lines += [f"### {model.__name__}", "", _purpose(model), "", *_field_table(model), ""]
    return "\n".join(lines[:-1]) + "\n"


def _models(kind: Any) -> list[type[BaseModel]]:
    """The records in a type, each with those inside it, outer ones first."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = [model for field in kind.model_fields.values() for model in _models(field.annotation)]
        return list(dict.fromkeys([kind, *inner]))
    return list(dict.fromkeys(model for part in typing.get_args(kind) for model in _models(part)))


def _field_table(model: type[BaseModel]) -> list[str]:
    rows = [_field_row(name, field) for name, field in model.model_fields.items()]
    return table(("field", "holds", "what it is"), rows)


def _field_row(name: str, field: FieldInfo) -> tuple[str, ...]:
    bounds = [
        f"{BOUNDS[name]} {getattr(bound, name):,}"
        for bound in field.metadata
        for name in BOUNDS
        if isinstance(bound, annotated_types.Ge | annotated_types.Gt | annotated_types.Le) and hasattr(bound, name)
    ]
    holds = ", ".join([type_words(field.annotation), *bounds, *([] if field.is_required() else ["may be absent"])])
    return f"`{field.alias or name}`", holds, field.description or ""


def rules() -> str:
    """The manual of the rules of `allpull explain`, from their docstrings."""
    lines = ["# What `allpull explain` can find", ""]
    lines += ["Each rule is a file of `src/allpull/explain/rules/`, and this page is made from their docstrings. On a"]
    lines += ["terminal: `allpull explain --rule SLUG`.", ""]
    lines += [*table(("rule", "what it is"), [(f"[{slug}](#{slug})", manual.summary(slug)) for slug in names()]), ""]
    for slug in names():
        lines += [f"## {slug}", "", manual.summary(slug), ""]
        for heading, text in manual.sections(slug).items():
            lines += [f"**{heading}.** {inspect.cleandoc(text)}", ""]
    return "\n".join(lines[:-1]) + "\n"


def type_words(annotation: Any) -> str:
    """A type as readers of JSON or TOML say it.

    >>> type_words(int | None), type_words(dict[str, list[float]]), type_words(Literal["a", "b"])
    ('integer or null', 'object of list of number', '`"a"` or `"b"`')
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_words(part) for part in arguments)
    if origin in (list, tuple):
        return f"list of {type_words(arguments[0])}"
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {type_words(arguments[1])}"
    return WORDS.get(annotation) or f"[{annotation.__name__}](#{annotation.__name__.lower()})"


def _purpose(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").replace("``", "`")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A Markdown table; what would end a cell is escaped."""
    return [
        _line(head),
        _line(("---",) * len(head)),
        *(_line(tuple(cell.replace("|", "\\|") for cell in row)) for row in rows),
    ]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
