"""The layers hold, the types are right, the style is clean, and each room does without what it says it does without."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Python = Callable[..., CompletedProcess[str]]

OLD_PYTHON = (3, 9)
IN_RANKS = (
    "allpull.marks",
    "allpull.kernel",
    "allpull.rundir.layout",
    "allpull.rundir.live.activity",
    "allpull.rundir.write",
    "allpull.rundir.redact",
    "allpull.observe.recording.recorder",
    "allpull.observe.host",
)
"""What an observed rank imports from us, torch aside."""

NEEDS_TORCH = (
    "allpull.observe.recording.arrival",
    "allpull.observe.rank.__main__",
    "allpull.observe.agent.__main__",
    "allpull.train.__main__",
)
TORCH_ROOMS = {"backend", "observe", "train", "probe", "rehearse", "labs"}  # of the last two, only what ranks run
NOT_IN_RANKS = ("pydantic", "polars", "typer", "rich", "altair", "psutil", "click", "jinja2")

BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by a test)", name=name)
sys.meta_path.insert(0, Absent())
"""


def blocked(*names: str) -> str:
    """Lines that make importing ``names`` fail as if they were not installed."""
    return BLOCKED.format(names=set(names))


def test_floors_import_only_lower_ones(python: Python) -> None:
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = python("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout  # not merely that nothing was checked


def test_the_architecture_page_numbers_the_floors_as_the_contract_orders_them(root: Path) -> None:
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)(?:\.py)?` \|", page, re.MULTILINE)
    layers = contract(root, "layers")["layers"]
    built = [{room for room in layer.split(" | ") if not room.startswith("(")} for layer in reversed(layers)]
    floors = enumerate(rooms for rooms in built if rooms)
    assert {(int(floor), room) for floor, room in rows} == {(floor, room) for floor, rooms in floors for room in rooms}


def test_every_room_may_import_torch_or_is_forbidden_to(root: Path) -> None:
    rooms = {path.stem for path in (root / "src" / "allpull").glob("[a-z]*") if path.suffix in {"", ".py"}}
    forbidden = {name.split(".")[1] for name in contract(root, "forbidden")["source_modules"]}
    assert rooms - forbidden == TORCH_ROOMS - {"rehearse", "labs"}


def contract(root: Path, kind: str) -> dict[str, Any]:
    """The first contract of ``kind``: of forbidden imports, that about torch."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return next(one for one in contracts if one["type"] == kind)


@pytest.mark.slow
def test_types_are_right(python: Python) -> None:
    done = python("-m", "mypy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=["lint", "format"])
def test_style_is_clean(python: Python, arguments: tuple[str, ...]) -> None:
    done = python("-m", "ruff", *arguments, ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_is_no_dependency(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [name for name in project["dependencies"] if name.startswith("torch")]
    assert [name for name in project["optional-dependencies"]["torch"] if name.startswith("torch")]


@pytest.mark.parametrize("module", IN_RANKS)
def test_what_runs_in_ranks_is_standard_library(python: Python, module: str) -> None:
    done = python("-c", blocked(*NOT_IN_RANKS, "torch", "numpy") + f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_what_runs_in_ranks_with_torch_needs_none_of_our_dependencies(python: Python) -> None:
    imports = "; ".join(f"import {module}" for module in NEEDS_TORCH)
    done = python("-c", blocked(*NOT_IN_RANKS) + imports)
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks(python: Python) -> None:
    done = python("-c", blocked("pydantic") + "import allpull.schema.run")
    assert "blocked by a test" in done.stderr


@pytest.mark.parametrize("verb", ["show", "show --json", "report"])
def test_reading_works_without_torch(python: Python, kept_runs: list[Path], tmp_path: Path, verb: str) -> None:
    output = ["-o", str(tmp_path / "report.html")] if verb == "report" else []
    arguments = ["allpull", *verb.split(), str(kept_runs[-1]), *output]
    code = f"import sys; sys.argv = {arguments!r}; from allpull.cli import main; main()"
    done = python("-c", blocked("torch") + code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_training_without_torch_is_one_clear_error(python: Python, tmp_path: Path) -> None:
    code = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        f"sys.argv = ['allpull', 'train', 'digits', '--out', {str(tmp_path)!r}]\n"
        "from allpull.cli import main; main()"
    )
    done = python("-c", code)
    assert done.returncode == 2
    assert "torch" in done.stderr.splitlines()[0]
    assert "hint: pip install torch" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_loads_nothing_heavy(python: Python) -> None:
    heavy = {"torch", "polars", "pydantic", "altair", "numpy", "scipy", "vl_convert", "jinja2"}
    code = (
        "import sys, typer.testing; from allpull.cli import app\n"
        "assert typer.testing.CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        f"print(*sorted({heavy!r} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_show_loads_no_charts_or_rules(python: Python) -> None:
    code = (
        "import sys, allpull.api.reporting, allpull.api.runs, allpull.cli.say, allpull.report.terminal.show\n"
        "heavy = ('torch', 'scipy', 'altair', 'vl_convert', 'jinja2', 'allpull.explain.rules')\n"
        "print(*sorted(set(heavy) & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_old_pythons_can_read_what_runs_in_ranks(root: Path) -> None:
    """The syntax of Python 3.9, and no argument that a later one added; only running it there would prove more."""
    found = [fault for path in old_files(root) for fault in too_new(path)]
    assert not found, "\n".join(found)


def test_what_is_too_new_is_found(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text("match 1:\n    case 1: pass\n")
    assert list(too_new(path))
    path.write_text("x = list(zip([1], [2], strict=True))\n")
    assert list(too_new(path))


def old_files(root: Path) -> list[Path]:
    source = root / "src" / "allpull"
    rundir = [source / "rundir" / f"{name}.py" for name in ("layout", "write", "redact", "live/activity")]
    return [source / "kernel.py", source / "marks.py", *rundir, *sorted((source / "observe").rglob("*.py"))]


def too_new(path: Path) -> Iterator[str]:
    """What Python 3.9 would stumble over in ``path``."""
    source = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source, feature_version=OLD_PYTHON)
    except SyntaxError as error:
        yield f"{path.name}:{error.lineno}: {error.msg}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            later = {word.arg for word in node.keywords} & {"slots", "kw_only", "strict"}
            if later and ast.unparse(node.func).rpartition(".")[2] in {"dataclass", "field", "zip"}:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node.func)}({', '.join(later)}=…)"
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {getattr(node, "module", None), *(name.name for name in node.names)}
            if names & {"tomllib", "UTC", "StrEnum", "Self", "TypeAlias", "ParamSpec", "pairwise", "batched"}:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
