"""What a terminal, a pipe and a script get: lines as they are, ASCII where there is no more, codes that can be used."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allpull.cli.encoding import ASCII, in_encoding, transliterate
from allpull.rundir.run_record import write_record
from allpull.schema.run import RunRecord

KEPT = Path(__file__).parents[1] / "runs/v1.5"
VERBS = ("show", "explain", "ls")
IN_ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


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


def test_at_80_columns_every_factor_of_efficiency_has_its_meaning(run_cli, run):
    assert "what is lost there" in run_cli("explain", str(run), COLUMNS="80").stdout


def test_one_run_has_no_empty_column_and_its_rate_once(run_cli, run):
    text = run_cli("show", str(run)).stdout
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
def test_explain_of_a_run_without_a_step_has_a_code_of_its_own(run_cli, tmp_path, options, run):
    assert run_cli("explain", str(empty_run(tmp_path / "run")), *options).returncode == 4
    assert run_cli("explain", str(run), *options).returncode == 0


def test_doctor_fails_where_a_check_is_bad(run_cli):
    done = run_cli("doctor", "--json")
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
