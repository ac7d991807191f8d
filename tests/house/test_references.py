"""What a docstring or comment names in double backquotes exists: modules, what is in them, and files."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from allpull.schema.spec import RunSpec

DOTTED = re.compile(r"(?<!`)``((?:[a-z_]\w*\.)+\w+)(?:\(\))?``(?!`)")
Modules = Mapping[str, Path]


def test_what_docstrings_name_exists(root: Path, our_files: list[Path]) -> None:
    ours = modules(root)
    files = {path.name for path in our_files}
    missing = [
        f"{path.relative_to(root)}:{number}: {reference}"
        for path in our_files
        if path.suffix == ".py" and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for reference in DOTTED.findall(line)
        if not exists(reference, ours, files)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("reference", "is_there"),
    [
        ("rundir.read.counters.PINGS_SCHEMA", True),
        ("allpull.rundir.layout", True),
        ("counters.PINGS_SCHEMA", True),
        ("train.global_batch", True),  # an option
        ("torch.save", True),
        ("row.tail", True),  # a variable
        ("test_references.py", True),
        ("rundir.read.events.PINGS_SCHEMA", False),
        ("rundir.collectives", False),
        ("records.SCHEMA", False),
        ("train.global_match", False),
        ("no_such_file.py", False),
    ],
)
def test_a_reference_to_nothing_is_noticed(root: Path, reference: str, is_there: bool) -> None:
    assert exists(reference, modules(root), {"test_references.py"}) == is_there


def exists(reference: str, ours: Modules, files: Collection[str]) -> bool:
    """Whether ``reference`` names a file, an option, or something of ours, as far as it can be meant for one.

    A module may be given by the end of its path. A lower-case name after one module is a variable's, if not of it.
    """
    parts = reference.removeprefix("allpull.").split(".")
    if parts[-1] == "py":
        return reference in files
    if ".".join(parts) in options() or find_spec(parts[0]) is not None:
        return True
    for count in range(len(parts), 0, -1):
        ending = "." + ".".join(parts[:count])
        meant = [path for module, path in ours.items() if f".{module}".endswith(ending)]
        if any(count == len(parts) or parts[count] in top_level(path) for path in meant):
            return True
    is_module_path = parts[0] in ours or (len(parts) > 2 and parts[-1][:1].isupper())
    return not is_module_path and not parts[-1][:1].isupper()


@cache
def options() -> frozenset[str]:
    """The names of all options of a specification."""
    return frozenset(_options(RunSpec))


def _options(kind: Any, lead: str = "") -> list[str]:
    hints = get_type_hints(kind)
    names = []
    for field in fields(kind):
        names.append(f"{lead}{field.name}")
        if is_dataclass(hints[field.name]):
            names += _options(hints[field.name], f"{lead}{field.name}.")
    return names


@cache
def modules(root: Path) -> Modules:
    """The file of each module and package of ours, by its dotted path in the package, or among tests and tools."""
    ours = {}
    for place in (root / "tests", root / "benchmarks", root / "tools", root / "src" / "allpull"):
        for path in place.rglob("*.py"):
            parts = path.relative_to(place).with_suffix("").parts
            ours[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return ours


@cache
def top_level(path: Path) -> frozenset[str]:
    """What a module defines, assigns or imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name) for name in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return frozenset(found)
