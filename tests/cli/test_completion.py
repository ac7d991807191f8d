"""Completion in the shells that people use: real bash, zsh and fish ask the script that allpull installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.cli import completion
from allpull.rundir.run_record import read_record, write_record

KEPT = Path(__file__).parents[1] / "runs/v1.5"
ID = "20260312T101500Z_digits_n2_ab12cd34"
HOSTILE = "$(touch hacked)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs: a named one, and one with a name that a shell would execute."""
    for number, name in enumerate(("baseline", HOSTILE)):
        run = tmp_path / "runs" / ID.replace("1500", f"150{number}")
        shutil.copytree(KEPT, run)
        write_record(run, read_record(run).model_copy(update={"name": name, "id": run.name}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_runs_are_offered_by_latest_id_and_name_but_no_name_that_a_shell_would_execute():
    assert set(completion.runs("")) == {"runs", "latest", "baseline", ID.replace("1500", "1501"), ID}
    assert completion.runs("la") == ["latest"]
    assert completion.runs("runs/b") == ["runs/baseline"]
    assert completion.runs("nowhere/") == []


def test_recipes_rules_and_keys():
    assert "digits" in completion.recipes("di")
    assert completion.rules("slow-r") == ["slow-rank"]
    assert completion.keys("train.epo") == ["train.epochs="]
    assert completion.command_keys("train.") == []
    assert "observe.counters=" in completion.script_keys("observe.c")
    assert completion.keys("train.epochs=") == []


ASKED = {
    ("show", "la"): "latest",
    ("explain", "base"): "baseline",
    ("explain", "--rule", "slow-r"): "slow-rank",
    ("train", "fash"): "fashion-mnist",
    ("train", "digits", "--set", "train.epo"): "train.epochs=",
    ("compare", "base"): "baseline",
}


def bash(words: tuple[str, ...]) -> str:
    line = " ".join(f"'{word}'" for word in ("allpull", *words))
    return (
        'eval "$(_ALLPULL_COMPLETE=source_bash allpull)"; '
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _allpull_completion allpull; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )


def zsh(words: tuple[str, ...]) -> str:
    """zsh shows completions on a terminal alone: here ``_arguments``, to which the script hands them, prints them."""
    line = " ".join(f"'{word}'" for word in ("allpull", *words))
    return (
        "compdef() { :; }; _describe() { print -rl -- ${(P)2} $@; }; _arguments() { print -rl -- $@; }; "
        "_files() { :; }; "
        'eval "$(_ALLPULL_COMPLETE=source_zsh allpull)"; '
        f"words=({line}); CURRENT={len(words) + 1}; _allpull_completion"
    )


def fish(words: tuple[str, ...]) -> str:
    return f"_ALLPULL_COMPLETE=source_fish allpull | source; complete -C '{' '.join(('allpull', *words))}'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


@pytest.mark.slow
@pytest.mark.parametrize("words", ASKED, ids=" ".join)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(folder: Path, shell: str, words: tuple[str, ...]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {**os.environ, "PATH": path, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    options = {"bash": ("--norc",), "zsh": ("-f",), "fish": ("--no-config",)}[shell]
    done = subprocess.run(
        [shell, *options, "-c", SHELLS[shell](words)], env=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert ASKED[words] in done.stdout, done.stderr
    assert "touch" not in done.stdout
    assert not (folder / "hacked").exists()
