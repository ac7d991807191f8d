"""What the checks of the house share: the root of the repository, and the files that belong to it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def trees(root: Path) -> dict[str, ast.Module]:
    """Each of our source files, parsed, by its path below src/allpull."""
    package = root / "src" / "allpull"
    paths = sorted(package.rglob("*.py"))
    return {path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="session")
def nodes(trees: dict[str, ast.Module]) -> dict[str, list[ast.AST]]:
    """All nodes of each of our source files, as ``ast.walk`` gives them."""
    return {where: list(ast.walk(tree)) for where, tree in trees.items()}


@pytest.fixture(scope="session")
def our_files(root: Path) -> list[Path]:
    """Every file that git tracks or would track; what it ignores was built or run here."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [root / name for name in listed.stdout.split("\0") if name]
    return sorted(path for path in paths if path.is_file())


@pytest.fixture(scope="session")
def kept_runs(root: Path) -> list[Path]:
    """A real run of every version of the format, by version."""
    return sorted((root / "tests" / "runs").iterdir())


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m …`` or a script of ours in the root of the repository."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a Python of this environment in the root of the repository."""
    return tool
