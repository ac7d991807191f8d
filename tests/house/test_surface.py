"""The command line grows by decision: its verbs and options stand in a file, and each says what it does."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from allpull.cli import GROUPS, VERBS, app
from allpull.config.load import load_spec
from allpull.jobs import command as observing
from allpull.jobs import probing

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


@functools.cache
def shown_help(name: str, columns: int) -> str:
    """What ``allpull NAME --help`` prints on a terminal of this width."""
    done = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=columns, env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("columns", [80, 100])
def test_no_summary_is_cut_off(group: Any, columns: int) -> None:
    for name in ("", *GROUPS):
        commands = shown_help(name, columns).partition("Commands:")[2]
        assert commands
        assert "..." not in commands, commands


def test_each_help_shows_an_example_that_parses_and_no_type_of_python(group: Any) -> None:
    for name, command in all_commands(group):
        text = shown_help(name, 100)
        assert "list[" not in text, name
        example = text.partition("Example:\n")[2].strip().removeprefix('eval "$(').removesuffix(')"')
        assert example.startswith(f"allpull {name}"), name
        if not hasattr(command, "commands"):
            words = shlex.split(example)[1 + len(name.split()) :]
            command.make_context(name, words, resilient_parsing=False)


def test_every_verb_that_help_names_exists(group: Any) -> None:
    known = dict(all_commands(group))
    for name in ("", *known):
        for verb in re.findall(r"\ballpull ([a-z]+)\b", shown_help(name, 100)):
            assert verb in known, (name, verb)


def test_every_option_that_help_of_set_names_can_be_set(group: Any) -> None:
    """`allpull run --help` suggested train.epochs, which `allpull run` refuses."""
    kinds = {"train": "digits", "demo": "digits", "run": None, "env": None}
    for name, command in all_commands(group):
        option = next((one for one in command.params if "--set" in getattr(one, "opts", ())), None)
        if option is None:
            continue
        for text in re.findall(r"[a-z]+\.[a-z_]+=[^\s,;]*[^\s,;.]", option.help):
            recipe = kinds.get(name)
            if name.startswith("study"):
                if text.startswith("study."):
                    continue  # of the study file: tests/study/test_file.py
                recipe = "digits"
            if recipe:
                load_spec(recipe, [text])
            elif name.startswith("probe"):
                probing.specification(probing.ProbeRequest(name="clock", launcher="slurm", sets=[text]))
            else:
                ranks = 4 if text.startswith("launch.") else None
                spec = observing.specification(observing.CommandRequest(command=("x",), ranks=ranks, sets=(text,)))
                if ranks is None:
                    observing.unlaunched(spec, "command")
