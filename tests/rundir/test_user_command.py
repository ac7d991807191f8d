"""The user's own command, taken apart."""

from __future__ import annotations

import typer

from allpull.cli import app
from allpull.rundir.user_command import RUN_OPTIONS, of_words, user_command


def test_the_options_of_run_with_a_value_are_those_of_its_command_line() -> None:
    command = typer.main.get_command(app)
    options = [one for one in command.commands["run"].params if one.param_type_name == "option"]
    assert {name for one in options if not one.is_flag for name in one.opts} == set(RUN_OPTIONS)


def test_a_module_has_no_path_and_a_binary_is_its_own_program() -> None:
    assert of_words(["torchrun", "-m", "pkg.train", "--lr=1"]).path is None
    assert of_words(["torchrun", "-m", "pkg.train", "--lr=1"]).program == "pkg.train"
    assert of_words(["/opt/bin/trainer", "big"]).path == "/opt/bin/trainer"


def test_an_import_runs_no_program() -> None:
    assert user_command(["allpull", "import", "trace.json"]).program == ""
