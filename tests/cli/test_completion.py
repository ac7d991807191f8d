"""Completion in the shells that people use: real bash, zsh and fish ask the script that allpull installs."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
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


@pytest.mark.slow
def test_bash_waits_for_the_value_of_a_key_without_a_space(folder: Path) -> None:
    """Typed on a real terminal: the key completed, ``echo`` put in front, and the value behind."""
    main, terminal = pty.openpty()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PS1": "", "SHELL": "/bin/bash", "INPUTRC": os.devnull}
    shell = subprocess.Popen(
        ["bash", "--norc", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=folder
    )
    os.close(terminal)
    os.write(main, b'eval "$(allpull --show-completion bash)"; echo rea""dy\n')
    printed = until(main, b"ready")
    os.write(main, b"allpull train digits --set train.epo\t")
    printed += until(main, b"train.epochs=")
    os.write(main, b"3\x01echo typed: \x05\n")
    printed += until(main, b"typed: allpull")
    shell.kill()
    shell.wait(timeout=60)
    os.close(main)
    assert b"typed: allpull train digits --set train.epochs=3" in printed, printed


def until(terminal: int, end: bytes) -> bytes:
    """What the terminal shows until ``end`` is among it, or for a minute."""
    shown, deadline = b"", time.monotonic() + 60
    while end not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 65536)
    return shown
