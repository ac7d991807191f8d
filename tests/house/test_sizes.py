"""Rooms stay small: the median of a code base looks after itself, the maximum has to be guarded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FILE_LINES = 400
FUNCTION_LINES = 60

LONG_FILES: dict[str, str] = {}
"""Path below src/allpull → why it may be longer. One that is no longer needed fails."""

LONG_FUNCTIONS: dict[str, str] = {}
"""path:function → why it may be longer."""


@pytest.fixture(scope="module")
def sources(root: Path) -> dict[str, str]:
    """Every source file: path below src/allpull → text."""
    source = root / "src" / "allpull"
    return {path.relative_to(source).as_posix(): path.read_text("utf-8") for path in source.rglob("*.py")}


def functions(nodes: dict[str, list[ast.AST]]) -> dict[str, int]:
    """path:function → lines, docstring included."""
    return {
        f"{path}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, every in nodes.items()
        for node in every
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_files_are_short_or_say_why_not(sources: dict[str, str]) -> None:
    long = {path: len(text.splitlines()) for path, text in sources.items() if len(text.splitlines()) > FILE_LINES}
    assert set(long) - set(LONG_FILES) == set(), long
    assert set(LONG_FILES) - set(long) == set(), "no longer needed"


def test_functions_are_short_or_say_why_not(nodes: dict[str, list[ast.AST]]) -> None:
    long = {name: lines for name, lines in functions(nodes).items() if lines > FUNCTION_LINES}
    assert set(long) - set(LONG_FUNCTIONS) == set(), long
    assert set(LONG_FUNCTIONS) - set(long) == set(), "no longer needed"


def test_every_file_says_its_idea_in_one_line(trees: dict[str, ast.Module]) -> None:
    for path, tree in trees.items():
        said = ast.get_docstring(tree)
        assert said, f"{path} does not say what it is"
        assert said.splitlines()[0].endswith((".", ":")), f"{path}: {said.splitlines()[0]}"


def test_no_file_is_a_drawer(sources: dict[str, str]) -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert not [path for path in sources if Path(path).stem in drawers or set(Path(path).parts) & drawers]


def test_nothing_is_left_to_be_done(our_files: list[Path]) -> None:
    words = [f"{first}{second}" for first, second in (("TO", "DO"), ("FIX", "ME"), ("XX", "X:"))]
    found = [
        f"{path}: {word}"
        for path in our_files
        if path.suffix in {".py", ".md", ".toml", ".html", ".css", ".js"} and path.name != "constraints.txt"
        for word in words
        if word in path.read_text("utf-8")
    ]
    assert not found, "\n".join(found)
