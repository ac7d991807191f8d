"""The command line grows by decision: its verbs and options stand in a file, and each says what it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from allpull.cli import GROUPS, VERBS, app

HEAD = "# Every verb and option. A line more or less is a decision: change this file with it.\n"


@pytest.fixture(scope="module")
def group() -> Any:
    """The application, as what typer made of it."""
    return typer.main.get_command(app)


def surface(group: Any) -> Iterator[str]:
    """One line for each verb and each of its arguments and options."""
    yield from (f"allpull {spelled(one)}" for one in group.params)
    for name, command in all_commands(group):
        yield f"allpull {name}"
        yield from (f"allpull {name} {spelled(one)}" for one in command.params)


def all_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb by its whole name, those below another verb after it."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{prefix}{name} ")


def spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def test_surface_is_the_one_that_was_decided(group: Any, root: Path) -> None:
    decided = (root / "tests" / "house" / "cli_surface.txt").read_text(encoding="utf-8")
    assert decided == HEAD + "".join(f"{line}\n" for line in surface(group))


def test_every_verb_and_option_says_what_it_does(group: Any) -> None:
    silent = [name for name, command in all_commands(group) if not command.help]
    silent += [
        f"{name} {spelled(one)}"
        for name, command in [("allpull", group), *all_commands(group)]
        for one in command.params
        if not (one.help or "").strip()
    ]
    assert not silent


def test_each_verb_is_a_file_of_its_own(group: Any) -> None:
    modules = [verb.__module__.removesuffix("_") for verb in VERBS] + [f"allpull.cli.{name}" for name in GROUPS]
    assert modules == [f"allpull.cli.{name}" for name in group.commands]


def test_whatever_reads_answers_in_json(group: Any) -> None:
    commands = dict(all_commands(group))
    for name in ("show", "compare", "doctor", "train", "probe allreduce", "probe clock", "probe loader"):
        assert any("--json" in one.opts for one in commands[name].params), name
