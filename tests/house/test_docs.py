"""The documentation is current, complete and true: built, linked, and run where that is quick."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import typer

import allpull
from allpull.cli import GROUPS, VERBS, app
from allpull.config.load import load_spec
from allpull.data.datasets import digits

Python = Callable[..., CompletedProcess[str]]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
STORED = re.compile(r"<!-- stored: .*?<!-- /stored -->", re.DOTALL)
MEASURED = re.compile(r"\d[\d,.]*\s?(?:%|±|×(?! \d)|[nmµ]?s\b|samples/s|MiB|GB)")
QUICK = ("allpull --help", "allpull --version", "allpull train --list-recipes", "allpull doctor --json")
ARCHITECTURE_LINES = 110
ADR_LINES = 15


@pytest.fixture(scope="module")
def pages(our_files: list[Path]) -> dict[Path, str]:
    """Every Markdown file of the repository."""
    return {path: path.read_text("utf-8") for path in our_files if path.suffix == ".md"}


@pytest.fixture(scope="module")
def commands(pages: dict[Path, str]) -> list[tuple[str, list[str]]]:
    """Every command that a console block types: the file, and the words."""
    return [
        (path.name, shlex.split(line[2:]))
        for path, text in pages.items()
        for language, block in FENCE.findall(text)
        if language == "console"
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def test_generated_pages_and_stored_numbers_are_current(python: Python) -> None:
    done = python("tools/reference.py", "--check")
    assert done.returncode == 0, f"run: make reference\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("tool", ["tools/reference.py", "tools/environment.py"])
def test_examples_in_the_tools_are_right(python: Python, tool: str) -> None:
    done = python("-m", "doctest", tool)
    assert done.returncode == 0, done.stdout


def test_documentation_builds_without_a_warning(python: Python, tmp_path: Path) -> None:
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    built = "".join(path.read_text("utf-8") for path in (tmp_path / "site").rglob("*.html"))
    fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]*|<link[^>]+stylesheet[^>]+//[^"]*', built)
    assert not fetched, "a reader may have no network"


def test_relative_links_lead_somewhere(pages: dict[Path, str]) -> None:
    broken = [
        f"{path.name}: {target}"
        for path, text in pages.items()
        for target in LINK.findall(FENCE.sub("", text))
        if not re.match(r"[a-z]+:", target)
        and not target.startswith("#")
        and not (path.parent / target.partition("#")[0]).exists()
    ]
    assert not broken


def test_every_page_is_linked_from_the_navigation(root: Path) -> None:
    navigation = (root / "mkdocs.yml").read_text("utf-8")
    missing = [
        page for page in (root / "docs").rglob("*.md") if page.relative_to(root / "docs").as_posix() not in navigation
    ]
    assert not missing


def test_decisions_are_short_and_numbered(root: Path) -> None:
    records = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(path.name[:3]) for path in records] == list(range(1, len(records) + 1))
    overview = (root / "docs" / "decisions" / "index.md").read_text("utf-8")
    for path in records:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        assert lines[0].startswith(f"# {path.name[:3]}: ")
        assert len(lines) <= ADR_LINES, path.name
        assert path.name in overview, path.name


def test_architecture_is_one_page_and_names_every_room(root: Path) -> None:
    text = (root / "ARCHITECTURE.md").read_text("utf-8")
    assert len(text.splitlines()) <= ARCHITECTURE_LINES
    floors = text.partition("## Floors")[2].partition("Designed and not built")[0]
    rooms = {path.name for path in (root / "src" / "allpull").iterdir() if (path / "__init__.py").is_file()}
    rooms |= {path.name for path in (root / "src" / "allpull").glob("[a-z]*.py")}
    assert set(re.findall(r"(?:^\| \d+ \| |; )`([a-z_.]+)`", floors, re.MULTILINE)) == rooms
    absent = text.partition("Designed and not built")[2].partition("\n")[0]
    assert not set(re.findall(r"`([a-z]+)`", absent)) & rooms, "it is built by now"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md"])
def test_files_that_are_named_exist(root: Path, name: str) -> None:
    text = (root / name).read_text("utf-8")
    named = re.findall(r"`((?:src|tests|tools|docs|benchmarks)/[\w./-]+)`", text)
    assert not [path for path in named if not (root / path).exists()]


def test_commands_that_are_shown_exist(commands: list[tuple[str, list[str]]], root: Path) -> None:
    group: Any = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    faults = [
        f"{name}: {shlex.join(words)}: {fault}"
        for name, words in commands
        for fault in faults_of(words, group, targets, root)
    ]
    assert not faults, "\n".join(faults)
    assert sum(words[0] == "allpull" for _, words in commands) > 10  # the blocks were found at all


def faults_of(words: list[str], group: Any, targets: set[str], root: Path) -> Iterator[str]:
    """What in one command does not exist; behind ``--`` stands somebody else's."""
    words = words[: words.index("--")] if "--" in words else words
    if words[0] == "make":
        yield from (f"no target {word}" for word in words[1:] if word not in targets)
    elif words[0] in {"python", "torchrun"} and any(word.endswith(".py") for word in words):
        yield from (f"no script {word}" for word in words if word.endswith(".py") and not (root / word).is_file())
    elif words[0] == "allpull":
        command, rest = group, words[1:]
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            if rest[0] not in command.commands and hasattr(command, "default"):
                rest = [command.default, *rest]  # a word that may be left out
            if rest[0] not in command.commands:
                yield f"no verb {rest[0]}"
                return
            command, rest = command.commands[rest[0]], rest[1:]
        parameters = command.params
        known = {"-h", "--help", *(name for one in parameters for name in [*one.opts, *one.secondary_opts])}
        yield from (f"no option {word}" for word in words if word.startswith("-") and word not in known)
    elif words[0] not in {"pip", "apt", "kubectl", "mlflow", "tensorboard", ".venv/bin/python"}:
        yield "a program that nothing is known of"


def test_options_that_are_set_exist(commands: list[tuple[str, list[str]]]) -> None:
    """Every ``--set`` in the documentation is one that is accepted, by name, type and bounds.

    Those of studies are checked by typing them (``test_console.py``): they may set tables of a study file.
    """
    for name, words in commands:
        if words[1:2] in (["study"], ["tune"]):
            continue
        sets = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
        if "-n" in words:
            sets.append(f"launch.ranks={words[words.index('-n') + 1]}")
        spec = load_spec("digits", sets)
        assert spec is not None, name


def test_recipe_in_the_how_to_is_one(root: Path, tmp_path: Path) -> None:
    text = (root / "docs" / "how-to" / "train.md").read_text("utf-8")
    (recipe,) = [block for language, block in FENCE.findall(text) if language == "toml"]
    (tmp_path / "wide.toml").write_text(recipe, encoding="utf-8")
    assert load_spec(str(tmp_path / "wide.toml")).model.width == 32


@pytest.mark.parametrize("command", QUICK)
def test_quick_commands_work(run_cli: Python, tmp_path: Path, command: str) -> None:
    done = run_cli(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode in {0, *([3] if "doctor" in command else [])}, done.stderr  # 3: this machine is busy
    assert done.stdout.strip()
    if "--json" in command:
        assert next(iter(json.loads(done.stdout))) == "schema"


def test_python_in_the_documentation_runs(python: Python, pages: dict[Path, str]) -> None:
    blocks = {
        path: "".join(block for language, block in FENCE.findall(text) if language == "python")
        for path, text in pages.items()
        if path.name != "notebook.md"  # tests/api/test_notebook.py runs it where its files may be written
    }
    ran = {path: python("-c", code) for path, code in blocks.items() if code}
    assert ran
    for path, done in ran.items():
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert done.stdout.strip(), path.name


def test_what_pages_import_from_us_is_there(pages: dict[Path, str]) -> None:
    """Python that needs a data set or a GPU is not run: what it imports has to be there."""
    shown = [
        (module, name.split(" as ")[0].strip())
        for text in pages.values()
        for module, names in re.findall(r"^ *from (allpull[\w.]*) import ([\w, ]+)$", text, re.MULTILINE)
        for name in names.split(",")
    ]
    assert shown
    assert [one for one in shown if not hasattr(importlib.import_module(one[0]), one[1])] == []


def test_readme_prints_no_number_that_was_typed_by_hand(root: Path) -> None:
    text = FENCE.sub("", STORED.sub("", (root / "README.md").read_text("utf-8")))
    assert not MEASURED.findall(text.replace("95 % confidence", ""))
    assert STORED.search((root / "README.md").read_text("utf-8"))


def test_readme_lists_every_command(root: Path) -> None:
    table = (root / "README.md").read_text("utf-8").partition("\n## All commands\n")[2].partition("\n```")[0]
    listed = set(re.findall(r"`(?:allpull )?(\w+)[ `]", table))
    assert {*(verb.__name__.removesuffix("_") for verb in VERBS), *GROUPS} <= listed


def test_readme_counts_the_digits_right(root: Path) -> None:
    data = digits.read("")
    text = (root / "README.md").read_text("utf-8")
    assert f"{len(data.train) + len(data.test):,} handwritten digits of 8 × 8 pixels" in text
    assert f"{len(data.train):,} to train on and {len(data.test):,} to test" in text


def test_readme_installs_the_torch_that_is_tested(root: Path) -> None:
    (pinned,) = re.findall(r"^torch==\S+", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert f"pip install {pinned} --index-url https://download.pytorch.org/whl/cpu" in (root / "README.md").read_text(
        "utf-8"
    )


def test_changelog_has_a_place_for_this_version(root: Path) -> None:
    assert f"## [{allpull.__version__}]" in (root / "CHANGELOG.md").read_text("utf-8")


def test_nothing_names_the_machine_it_was_written_on(our_files: list[Path]) -> None:
    places = [
        f"/{first}/{second}" for first, second in (("tmp", "w/"), ("work", "main"), ("work", "shared"), ("opt", "pypi"))
    ]
    found = [
        f"{path.name}: {place}"
        for path in our_files
        if path.suffix not in {".npz", ".png"}
        for place in places
        if place in path.read_text("utf-8", errors="replace")
    ]
    assert not found
