"""``allpull run`` and ``allpull env``: what they refuse, what they print, and scripts that take their lines in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.cli.options import step_options, trace_options
from allpull.errors import BadInput
from allpull.jobs.command import CommandRequest, specification
from allpull.launch.command.env_script import LAUNCHER, lines, unobserved
from allpull.launch.command.hook_environment import hook_variables
from allpull.launch.job import prospect
from allpull.schema.spec import LaunchSpec, RunSpec


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run where nothing is observed and no batch system is near."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "PBS_", "ALLPULL_")):
            monkeypatch.delenv(name)


def test_windows_and_steps_become_what_the_hook_is_told(tmp_path):
    sets = (*trace_options("every=500, first=7"), *step_options(":200"))
    job = prospect(
        specification(CommandRequest(command=("train.py",), sets=sets)),
        kind="run",
        program=("x",),
        command=(),
        out=tmp_path,
    )
    watch = job.spec.watch
    assert (watch.trace_every, watch.trace_steps, watch.trace_first) == (500, 3, 7)
    assert (watch.first_step, watch.last_step) == (0, 200)


@given(st.text(max_size=30))
def test_whatever_stands_behind_trace_and_steps_is_options_or_bad_input(text):
    for read in (trace_options, step_options):
        try:
            found = read(text)
        except BadInput:
            continue
        assert specification(CommandRequest(command=("x",), sets=tuple(found))).watch is not None


@pytest.mark.parametrize(
    "text",
    ["every=5,steps=9", "every=0", "steps=3", "every=1,every=2", "every=0x5", "every=٣", "every=1e3", "", "every=5;rm"],
)
def test_windows_that_cannot_be_are_refused(text):
    with pytest.raises(BadInput):
        specification(CommandRequest(command=("x",), sets=tuple(trace_options(text))))


def test_a_dry_run_shows_the_command_and_writes_nothing(run_cli, tmp_path):
    done = run_cli("run", "--out", "runs", "--dry-run", "--", "torchrun", "train.py", "--lr", "0.1", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "exec torchrun train.py --lr 0.1"
    assert "export ALLPULL_JOB=" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_options_behind_the_command_are_the_commands(run_cli, tmp_path):
    words = ("run", "--set", "observe.counters=false", "--out", str(tmp_path), "echo", "-n", "--out", "--", "x")
    assert run_cli(*words).stdout == "--out -- x"


NAMES = {"sh": "sh", "bash": "sh", "zsh": "sh", "tcsh": "csh", "fish": "fish"}


@pytest.mark.parametrize("shell", NAMES)
def test_every_shell_reads_its_lines_as_they_are_meant(tmp_path, shell):
    """The oracle is the shell: a path with all that could have a meaning in it arrives as it is."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    spec = RunSpec(launch=LaunchSpec(launcher=LAUNCHER))
    out = tmp_path / 'it\'s "$HOME" `x` \\ !1 *'
    job = prospect(spec, kind="run", program=(), command=(), out=out)
    text = lines(job, NAMES[shell], {}).partition("\ntrap")[0]
    read = {"sh": 'eval "$LINES_"', "csh": "eval `cat lines`", "fish": "cat lines | source"}[NAMES[shell]]
    (tmp_path / "lines").write_text(text + "\n")
    options = ["-f"] if shell == "tcsh" else []
    done = subprocess.run(
        [shell, *options, "-c", f"{read}; env -0"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "LINES_": text, "HOME": str(tmp_path)}, capture_output=True,
        check=False,
    )  # fmt: skip
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {**hook_variables(job, {}), "ALLPULL_RUN": str(job.directory)}.items() <= seen.items(), done.stderr


@pytest.mark.parametrize(("made_with", "has"), [("", "/mods/a:/b c"), ("/x", "/y"), ("/x", "/x"), ("/x", ""), ("", "")])
def test_lines_that_were_made_elsewhere_keep_the_path_of_the_script(tmp_path, made_with, has):
    """As on a login node, for a script that loads modules first; and taken in twice, they are there once."""
    job = prospect(RunSpec(launch=LaunchSpec(launcher=LAUNCHER)), kind="run", program=(), command=(), out=tmp_path)
    text = lines(job, "sh", {"PYTHONPATH": made_with} if made_with else {}).partition("\ntrap")[0]
    for times in (1, 2):
        said = subprocess.run(
            ["sh", "-euc", 'eval "$LINES_";' * times + 'printf %s "$PYTHONPATH"'],
            env={"PATH": os.environ["PATH"], "LINES_": text, **({"PYTHONPATH": has} if has else {})},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert said == ":".join([str(job.directory / "job/hook"), *filter(None, [has])])


def test_lines_that_are_taken_in_again_leave_nothing_of_the_run_before(tmp_path):
    spec = RunSpec(launch=LaunchSpec(launcher=LAUNCHER))
    first, second = (prospect(spec, kind="run", program=(), command=(), out=tmp_path / name) for name in "ab")
    theirs = {"PYTHONPATH": "/theirs", "APPTAINER_BIND": "/data"}
    once = {**theirs, **hook_variables(first, theirs)}
    assert unobserved(once)["PYTHONPATH"] == "/theirs"
    assert unobserved(once)["APPTAINER_BIND"] == "/data"
    assert hook_variables(second, unobserved(once)) == hook_variables(second, theirs)


@pytest.fixture
def script(tmp_path):
    """A function that runs a script of bash in a folder of its own, and gives what it ended with and its records."""
    allpull = f"{sys.executable} -m allpull"

    def run(text: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
        whole = f'eval "$({allpull} env --name mine)"\n{text}'
        done = subprocess.run(["bash", "-c", whole], cwd=tmp_path, capture_output=True, text=True, check=False)
        found = sorted((tmp_path / "runs").iterdir())
        return done, [json.loads((path / "run.json").read_text()) for path in found]

    return run


def test_a_script_that_takes_the_lines_in_has_its_run_closed_with_its_own_code(script):
    done, (record,) = script("echo printed; exit 6")
    assert (done.returncode, done.stdout) == (6, "printed\n")
    assert (record["name"], record["status"], record["exit"]["code"]) == ("mine", "failed", 6)
    assert record["ended_utc"]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("sleep 20", "sleep 20"),
        ("sleep 20 | cat", "cat"),
        ("sleep 20 & wait", "wait"),
        ("sleep 30 & false; env TOKEN=hush sleep 20", "env TOKEN=[redacted] sleep 20"),
    ],
)
def test_a_script_that_a_signal_ends_has_not_succeeded(tmp_path, text, command):
    """As Slurm does at a time limit: the code that bash's trap sees is that of the command before."""
    whole = f'eval "$({sys.executable} -m allpull env)"\ntrue\ntouch here\n{text}'
    in_group = {"cwd": tmp_path, "start_new_session": True, "stderr": subprocess.PIPE}
    with subprocess.Popen(["bash", "-c", whole], **in_group) as script:
        while not (tmp_path / "here").exists() or len(psutil.Process(script.pid).children()) < text.count("sleep"):
            time.sleep(0.02)
        os.killpg(script.pid, signal.SIGTERM)
        _, said = script.communicate()
    assert script.returncode == -signal.SIGTERM
    (record,) = (json.loads((path / "run.json").read_text()) for path in (tmp_path / "runs").iterdir())
    reason = f"a signal ended the script in the middle of: {command}"
    assert (record["status"], record["exit"]["code"], record["exit"]["reason"]) == ("failed", 143, reason)
    assert reason in said.decode()


@pytest.mark.parametrize("text", ["true", "sleep 0.1 & wait $!", "(\n  cat <<< '[2] x'\n  sleep 5\n) & true"])
def test_a_script_that_leaves_something_running_has_ended_by_itself(script, text):
    _, (record,) = script(f"exec > /dev/null 2>&1\nsleep 5 &\n{text}")
    assert (record["status"], record["exit"]["code"]) == ("completed", 0)


def test_a_script_with_plans_for_its_end_keeps_them_and_is_told(tmp_path):
    whole = f"trap 'echo bye' EXIT\neval \"$({sys.executable} -m allpull env)\"\nexit 4"
    done = subprocess.run(["sh", "-c", whole], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "bye\n")
    assert "this script has an EXIT trap" in done.stderr


def test_a_script_that_is_killed_leaves_a_run_that_can_be_read(script, run_cli, tmp_path):
    _, (record,) = script("kill -9 $$")
    assert record["status"] == "running"
    shown = run_cli("show", "--json", str(tmp_path / "runs"))
    assert shown.returncode == 0, shown.stderr
    closed = run_cli("env", "--finish", str(tmp_path / "runs" / record["id"]), "--code", "9")
    assert closed.returncode == 0, closed.stderr
    assert "nothing was recorded" in closed.stderr
    assert json.loads((tmp_path / "runs" / record["id"] / "run.json").read_text())["exit"]["code"] == 9
    job = json.loads((tmp_path / "runs" / record["id"] / "job/spec.json").read_text())
    assert "nonce" not in job


def test_a_run_that_closes_itself_is_not_closed_by_hand(run_cli, tmp_path):
    run_cli("run", "--set", "observe.counters=false", "--out", str(tmp_path), "--", "true")
    (directory,) = tmp_path.iterdir()
    done = run_cli("env", "--finish", str(directory))
    assert done.returncode == 2
    assert "it closes itself" in done.stderr
