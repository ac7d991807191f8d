"""The paths of a run have one home, ``rundir/layout.py``, and what reads its files is in ``rundir``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import pytest

from allpull.rundir import layout

FOLDERS = (
    *(*layout.RECORDS, layout.JOB, layout.TRACES, layout.PROBES),
    *(layout.CHECKPOINTS, layout.ATTEMPTS, layout.DERIVED),
)
SPELLED = re.compile(rf"(?:^|[/\"'\s])(?:{'|'.join(FOLDERS)})/(?!s\b|\s)|\.log$|\.pt$|\brun\.json\b")
"""A path of a run, or the name of one of its files; ``steps/s`` is a unit."""

READING = {"open", "read_text", "read_bytes", "glob", "rglob", "iterdir", "listdir", "scandir"}
WRITERS = ("rundir", "observe", "train")
"""Rooms that may open files of a run: the one that reads it, and those in whose processes it is written."""


def test_no_file_but_layout_spells_a_path_of_a_run(nodes: dict[str, list[ast.AST]]) -> None:
    spelled = [
        f"{where}:{line}: {text!r}"
        for where, every in nodes.items()
        if where != "rundir/layout.py"
        for line, text in literals(every)
        if SPELLED.search(text)
    ]
    assert not spelled, "name them in rundir/layout.py:\n" + "\n".join(spelled)


def test_files_of_a_run_are_read_by_rundir(nodes: dict[str, list[ast.AST]]) -> None:
    read = [
        f"{where}:{line}"
        for where, every in nodes.items()
        if where.partition("/")[0] not in WRITERS
        for line in readings(every)
    ]
    assert not read, "read them with rundir.safe_open or rundir.read:\n" + "\n".join(read)


@pytest.mark.parametrize(
    "code",
    ['open(f"{run}/job/traps")', 'run / "checkpoints/x"', 'folder / f"step-{n:010d}.pt"', '"$run/attempts/$n".split()'],
)
def test_a_spelled_path_is_noticed(code: str) -> None:
    assert [text for _, text in literals(list(ast.walk(ast.parse(code)))) if SPELLED.search(text)]


def test_docstrings_units_and_folders_of_users_are_no_paths() -> None:
    tree = ast.parse('"""Writes ``steps/x``."""\nprint(f"{n} steps/s", "import traces/ --name x")')
    assert not [text for _, text in literals(list(ast.walk(tree))) if SPELLED.search(text)]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("json.loads((run / layout.SPEC).read_text())", 1),
        ("any((run / layout.HOSTS).iterdir())", 1),
        ("open(run / layout.AGENT_LOG, 'rb')", 1),
        ("open(run / layout.AGENT_LOG, 'ab')", 0),
        ("(run / layout.AGENT_LOG).open('ab')", 0),
        ("(pack / name).open()", 0),
    ],
)
def test_a_file_of_a_run_that_is_read_is_noticed(code: str, count: int) -> None:
    assert len(list(readings(ast.walk(ast.parse(code))))) == count


def literals(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each text, with its line; not docstrings, which are statements of their own."""
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def readings(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """The lines that read or list a path of ``layout``."""
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node.func) in READING:
            modes = {word.value for word in node.args if isinstance(word, ast.Constant)}
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            if "layout" in names and not modes & {"w", "a", "wb", "ab", "xb"}:
                yield node.lineno


def _called(function: ast.expr) -> str:
    """The last word of the name of what is called, empty where it has none."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
