"""What a terminal, a pipe and a script get: lines as they are, ASCII where there is no more, codes that can be used."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allpull.cli import app
from allpull.cli.encoding import ASCII, in_encoding, locale_encoding, transliterate
from allpull.rundir.run_record import write_record
from allpull.schema.run import RunRecord

KEPT = Path(__file__).parents[1] / "runs/v1.5"
VERBS = ("show", "explain", "ls")
IN_ASCII = {"LC_ALL": "C"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A copy of a kept run: explaining one writes into it."""
    return Path(shutil.copytree(KEPT, tmp_path_factory.mktemp("runs") / "run"))


def printed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A verb whose stdout is a pipe, without COLUMNS."""
    own = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "allpull", *arguments]
    return subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_pipe_gets_whole_lines_without_trailing_blanks(verb, run):
    lines = printed(verb, str(run)).stdout.splitlines()
    assert lines
    assert [line for line in lines if line != line.rstrip()] == []
    narrow = printed(verb, str(run), COLUMNS="60").stdout.splitlines()
    assert max(map(len, narrow)) <= 60 if verb != "ls" else narrow
    assert len(lines) < len(narrow) if verb != "ls" else lines


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_locale_without_utf8_gets_the_same_tables_in_ascii(verb, run):
    plain, full = printed(verb, str(run), **IN_ASCII).stdout, printed(verb, str(run), PYTHONUTF8="1").stdout
    assert plain.isascii()
    assert "?" not in plain
    assert len(plain.splitlines()) == len(full.splitlines())
    assert any("±" in line for line in full.splitlines())
    assert any("+-" in line for line in plain.splitlines())


ASCII_COMMANDS = """
import io, sys
from allpull.cli import main
for line in open(sys.argv[1]):
    sys.argv = ["allpull", *line.split()]
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding=out.encoding) for _ in range(2))
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    written = sys.stdout.buffer.getvalue() + sys.stderr.buffer.getvalue()
    sys.stdout, sys.stderr = out, err
    print(repr((line.strip(), code, written)))
"""
"""A program that runs a verb per line of a file, and prints the line, the exit code and the bytes that were written."""

JOBS = {"demo", "tune", "rehearse", "import", "rename", "rm"}
"""Verbs that are only asked for help here: they train, need root, or change runs."""


@pytest.mark.slow
def test_every_verb_writes_ascii_in_the_locale_c(run, tmp_path):
    other = shutil.copytree(KEPT, tmp_path / "other")
    names = sorted({command.name or command.callback.__name__.removesuffix("_") for command in app.registered_commands})
    groups = {group.name: group.typer_instance.registered_commands for group in app.registered_groups}
    commands = [
        *(f"{name} --help" for name in ["", *names, *groups]),
        *(f"{name} {one.name or one.callback.__name__} --help" for name, inside in groups.items() for one in inside),
        *(f"ls {tmp_path}", f"show {run}", f"show {run} {other}", f"show {run} --json", f"show {tmp_path / 'none'}"),
        *(f"explain {run}", f"explain {run} --json", "explain --rules", "explain --rule slow-rank"),
        *(f"compare {run} --with {other}", f"predict {run} --ranks 8", f"watch {run} --once"),
        *(f"report {run} -o {tmp_path / 'r.html'}", f"export {run} --to csv --out {tmp_path / 'csv'}"),
        *("doctor", "doctor --json", "train --list-models", "train --list-recipes", "train digits --dry-run"),
        *("run -n 2 --dry-run -- train.py", f"env --out {tmp_path / 'env'}", "study list", "study plan hal"),
        *("lab --help", "pack info nothing", "probe compute --help", "train digits --set train.epoch=1"),
    ]
    assert {command.partition(" ")[0] for command in commands if "--help" not in command} >= {*names} - JOBS
    (tmp_path / "commands").write_text("\n".join(commands))
    command = [sys.executable, "-c", ASCII_COMMANDS, str(tmp_path / "commands")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "PYTHON", "COLUMNS"))}
    done = subprocess.run(command, env={**kept, **IN_ASCII}, cwd=tmp_path, capture_output=True, check=True)
    answers = [ast.literal_eval(line) for line in done.stdout.decode().splitlines()]
    assert [line for line, _, _ in answers] == [one.strip() for one in commands]
    assert [line for line, _, written in answers if not written] == []
    assert [(line, written) for line, _, written in answers if not written.isascii()] == []
    assert {line: code for line, code, _ in answers if code not in (0, 2, 3)} == {}
    shown = next(written for line, _, written in answers if line == f"show {run} --json")
    assert json.loads(shown)["runs"]


def test_utf8_is_kept_where_it_is_requested():
    assert locale_encoding({}, is_utf8_mode=True, own="ANSI_X3.4-1968") == "ANSI_X3.4-1968"
    assert locale_encoding({"PYTHONUTF8": "1"}, is_utf8_mode=True, own="ANSI_X3.4-1968") is None
    assert locale_encoding({}, is_utf8_mode=True, own="UTF-8") is None
    assert locale_encoding({}, is_utf8_mode=False, own="ISO-8859-1") is None  # Python writes that itself


@pytest.mark.parametrize("verb", ["--help", "run", "explain"])
def test_help_is_ascii_there_too(verb):
    done = printed(*([verb] if verb == "--help" else [verb, "--help"]), **IN_ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "[COMMAND...]" in done.stdout if verb == "run" else done.stdout


def test_columns_stay_where_a_gap_has_room():
    assert in_encoding("258 ± 11    60 ms   1.2×", "ascii").index("60") == "258 ± 11    60 ms".index("60")
    assert in_encoding("258 ± 11    60 ms", "latin-1") == "258 ± 11    60 ms"
    assert all(value.isascii() for value in ASCII.values())
    assert transliterate("ü") == "u"


def test_at_80_columns_every_factor_of_efficiency_has_its_meaning(run_here, run):
    assert "what is lost there" in run_here("explain", str(run), COLUMNS="80").stdout


def test_one_run_has_no_empty_column_and_its_rate_once(run_here, run):
    text = run_here("show", str(run)).stdout
    head = text.splitlines()[0]
    assert "speed-up" not in head
    assert "median" in head
    assert text.count("258 ± 11") == 1


def empty_run(folder: Path) -> Path:
    """A run that recorded nothing."""
    record = RunRecord.model_validate_json((KEPT / "run.json").read_text())
    folder.mkdir()
    write_record(folder, record.model_copy(update={"id": folder.name, "gaps": []}))
    return folder


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_explain_of_a_run_without_a_step_has_a_code_of_its_own(run_here, tmp_path, options, run):
    assert run_here("explain", str(empty_run(tmp_path / "run")), *options).returncode == 4
    assert run_here("explain", str(run), *options).returncode == 0


def test_doctor_fails_where_a_check_is_bad(run_here):
    done = run_here("doctor", "--json")
    bad = [one for one in json.loads(done.stdout)["checks"] if one["state"] == "bad"]
    assert done.returncode == (3 if bad else 0)


def test_what_is_watched_into_a_pipe_has_no_trailing_blanks(run_cli):
    lines = run_cli("watch", str(KEPT)).stdout.splitlines()
    assert any(line.startswith("rank ") for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_ctrl_c_is_a_sentence_and_130(tmp_path):
    record = RunRecord.model_validate_json((KEPT / "run.json").read_text())
    run = tmp_path / "run"
    run.mkdir()
    write_record(run, record.model_copy(update={"id": "run", "status": "running", "exit": None}))
    command = [sys.executable, "-m", "allpull", "watch", str(run)]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)  # until it watches: before that, Python itself ends by the signal
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert said.strip() == "interrupted"
