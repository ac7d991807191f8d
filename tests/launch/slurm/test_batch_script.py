"""The batch script says what was asked, runs what was meant, and nothing that stands in a path or option is run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.launch.job import Job, prospect
from allpull.launch.ports import port_of
from allpull.launch.shell_script import shell_script
from allpull.launch.slurm.batch_script import directives, sbatch_script
from allpull.rundir import layout
from allpull.schema.spec import ContainerSpec, LaunchSpec, RunSpec, SlurmSpec

GOLDEN = Path(__file__).parent / "golden"
FULL = SlurmSpec(
    account="phys",
    partition="gpu,gpu-long",
    qos="high",
    constraint="v100&ib",
    reservation="friday",
    switches="1@00:30:00",
    exclusive=True,
    gpus_per_node="v100:2",
    cpus_per_rank=8,
    mem="64G",
    time="1:30:00",
    requeues=3,
    signal_s=120,
    mail="someone@example.org",
    modules=("gcc/12", "cuda"),
    prologue=("source /opt/venv/bin/activate", "ulimit -l unlimited"),
    lines=("--hint=nomultithread",),
    master="{host}-ib",
)
BOX = ContainerSpec(image="/images/allpull.sif", binds=("/data:/data:ro",), options=("--nv",))


def job_in(directory: Path, spec: RunSpec) -> Job:
    job = prospect(
        spec, kind="train", module="allpull.train", command=["allpull", "train", "digits"], out=Path("/runs")
    )
    return replace(job, directory=directory)


def spec_of(**parts: Any) -> RunSpec:
    return RunSpec(name="digits", launch=LaunchSpec(ranks=4, hosts=2), **parts)


CASES = {
    "small": spec_of(),
    "one_host": RunSpec(name="digits", launch=LaunchSpec(ranks=4, hosts=1)),
    "full": spec_of(slurm=FULL, container=BOX),
    "array": spec_of(slurm=SlurmSpec(array="0-4%2", requeues=1)),
}


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python3")
    return "/opt/venv/bin/python3"


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_one_that_was_read_and_approved(python: str, case: str) -> None:
    """Golden files, to be read: what a change of the code does to a script stands in the diff."""
    assert sbatch_script(job_in(Path("/runs/a"), CASES[case])) == (GOLDEN / f"{case}.sbatch").read_text("utf-8")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("case", CASES)
def test_shellcheck_finds_nothing(case: str) -> None:
    script = sbatch_script(job_in(Path("/runs/a"), CASES[case]))
    # 1091: the user's own `source` line names a file that is not here
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--exclude=SC1091", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_only_what_was_asked_for_is_asked_of_slurm() -> None:
    assert list(directives(job_in(Path("/runs/a"), spec_of()))) == [
        "--job-name=digits",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--no-requeue",
        "--open-mode=append",
        "--output=/runs/a/job/logs/slurm.log",
    ]


@pytest.mark.parametrize("place", ["line\nbreak", "\x1b[31m", "bell\x07", "tab\there", "back\\slash", "\udcff"])
def test_a_path_that_no_script_can_hold_is_refused(place: str) -> None:
    with pytest.raises(BadInput) as caught:
        sbatch_script(job_in(Path("/runs") / place, spec_of()))
    assert caught.value.message.isprintable()
    assert "--out" in caught.value.hint


@pytest.mark.parametrize(
    "slurm",
    [
        SlurmSpec(account="a\n#SBATCH --uid=root"),
        SlurmSpec(prologue=("echo\nrm -rf /",)),
        SlurmSpec(lines=("--mem=1\nrm -rf /",)),
        SlurmSpec(modules=("gcc\nrm",)),
        SlurmSpec(master="a\nb"),
    ],
)
def test_an_option_with_a_line_break_is_refused(slurm: SlurmSpec) -> None:
    with pytest.raises(BadInput, match="line break"):
        sbatch_script(job_in(Path("/runs/a"), spec_of(slurm=slurm)))


def test_percent_signs_of_a_path_are_not_slurms() -> None:
    asked = list(directives(job_in(Path("/runs/100%j"), spec_of())))
    assert "--output=/runs/100%%j/job/logs/slurm.log" in asked or '--output="/runs/100%%j/job/logs/slurm.log"' in asked


def test_the_port_follows_from_the_job_on_every_host() -> None:
    assert [port_of(number) for number in (1, 10_001, 123_456_789)] == [20_001, 20_001, 26_789]


FAKE = """#!/bin/sh
printf '%s\\n' "$0" >> "$FAKE_LOG"
exec {python} -c 'import json, os, sys
keep = ("ALLPULL_RESUME", "ALLPULL_ATTEMPTS", "OMP_NUM_THREADS")
said = dict(name=os.path.basename(sys.argv[1]), args=sys.argv[2:], env=dict((k, os.environ.get(k)) for k in keep))
open(os.environ["FAKE_LOG"] + ".json", "a").write(json.dumps(said) + chr(10))' "$0" "$@"
"""


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """Slurm's commands as programs that only write down how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("srun", "scancel", "scontrol", "module"):
        (folder / name).write_text(FAKE.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE_LOG": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "70123",
        "SLURM_JOB_NODELIST": "node[03-04]",
    }


def calls(environment: dict[str, str]) -> list[dict[str, Any]]:
    path = Path(environment["FAKE_LOG"] + ".json")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(script: str, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, **environment}
    everything.pop("ALLPULL_RESUME", None)
    return subprocess.run(["bash", "-c", script], env=everything, cwd=cwd, capture_output=True, text=True, check=False)


HOSTILE = "a \"b\" $(touch owned) `touch owned` 'c' ; touch owned & #x ! * ? ~ {a,b} <d> |e -f ü"


def test_hostile_text_reaches_srun_as_it_is(tmp_path: Path, fakes: dict[str, str]) -> None:
    directory = tmp_path / HOSTILE
    (directory / "job").mkdir(parents=True)
    slurm = SlurmSpec(modules=(HOSTILE,), master=f"{{host}}{HOSTILE}")
    done = run(sbatch_script(job_in(directory, spec_of(slurm=slurm))), fakes, tmp_path)
    assert done.returncode == 0, done.stderr
    loaded, started = calls(fakes)
    assert (loaded["name"], loaded["args"]) == ("module", ["load", HOSTILE])
    assert started["name"] == "srun"
    assert started["args"][:6] == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--kill-on-bad-exit=1"),
        sys.executable,
    ]
    assert started["args"][6:] == [
        *("-m", "allpull.observe.agent", str(directory / layout.SPEC), "--from-slurm"),
        *("--master", f"node03{HOSTILE}", "--port", "20123"),
    ]
    assert started["env"] == {"ALLPULL_RESUME": None, "ALLPULL_ATTEMPTS": None, "OMP_NUM_THREADS": "1"}
    assert not list(tmp_path.rglob("owned"))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30))
def test_bash_reads_back_any_text(text: str) -> None:
    script = sbatch_script(job_in(Path("/runs"), spec_of(slurm=SlurmSpec(prologue=(":",), modules=(text,)))))
    line = next(line for line in script.splitlines() if line.startswith("module load "))
    done = subprocess.run(
        ["bash", "-c", f"printf %s {line.removeprefix('module load ')}"], capture_output=True, check=True
    )
    assert done.stdout.decode() == text


@pytest.mark.parametrize("earlier", [0, 2])
def test_a_later_attempt_moves_records_aside_and_resumes(tmp_path: Path, fakes: dict[str, str], earlier: int) -> None:
    """Slurm requeued the job once; ``earlier`` attempts had been ended by restarts in place before that."""
    directory = tmp_path / "run dir"
    for attempt in range(earlier):
        (directory / f"attempts/{attempt}").mkdir(parents=True)
    for folder in layout.FOLDERS:
        (directory / folder).mkdir(parents=True)
    written = {f"{folder}/old.json" for folder in layout.ATTEMPT_FOLDERS}
    for name in written | {"job/logs/rank-00000.log"}:
        (directory / name).write_text("old")
    script = sbatch_script(job_in(directory, spec_of(slurm=SlurmSpec(requeues=2))))
    done = run(script, {**fakes, "SLURM_RESTART_COUNT": "1"}, tmp_path)
    assert done.returncode == 0, done.stderr
    before = directory / f"attempts/{earlier}"
    assert {str(path.relative_to(before)) for path in directory.glob("attempts/**/*.json")} == written
    assert all(not list((directory / folder).iterdir()) for folder in layout.ATTEMPT_FOLDERS)
    assert (directory / "job/logs/rank-00000.log").read_text() == "old"
    (started,) = calls(fakes)
    assert (started["env"]["ALLPULL_RESUME"], started["env"]["ALLPULL_ATTEMPTS"]) == ("1", str(earlier + 1))


ARRAY = {"SLURM_JOB_ID": "70123", "SLURM_ARRAY_JOB_ID": "70123", "SLURM_ARRAY_TASK_ID": "2"}
"""Of the last run of an array that starts, the number is that of the array: signals to it would reach all runs."""


@pytest.fixture
def shell(tmp_path: Path, fakes: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts the script of a job with two requeues, whose srun ends with a code when it is signalled.

    The code ``None`` stands for an srun that ends at once, and well. What Slurm was asked stands in the file said.
    """
    started = []

    def start(code: int | None, array: str = "", **environment: str) -> subprocess.Popen[str]:
        srun = f"trap 'exit {code}' USR1\necho $$ > started\nwhile :; do sleep 0.05; done\n" if code is not None else ""
        bin_folder = Path(fakes["PATH"].split(":")[0])
        (bin_folder / "srun").write_text(f"#!/bin/sh\n{srun}")
        (bin_folder / "scancel").write_text('#!/bin/sh\necho "scancel $*" >> said\nkill -USR1 "$(cat started)"\n')
        (bin_folder / "scontrol").write_text('#!/bin/sh\necho "scontrol $*" >> said\n')
        place = tmp_path / "run" / (f"run_{ARRAY['SLURM_ARRAY_TASK_ID']}" if array else "")
        for folder in layout.FOLDERS:
            (place / folder).mkdir(parents=True)
        script = sbatch_script(job_in(tmp_path / "run", spec_of(slurm=SlurmSpec(requeues=2, array=array))))
        everything = {**os.environ, **fakes, **environment}
        started.append(
            subprocess.Popen(["bash", "-c", script], env=everything, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        )
        deadline = time.monotonic() + 120
        while code is not None and not ((tmp_path / "started").exists() and (tmp_path / "started").read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def said(tmp_path: Path) -> list[str]:
    return (tmp_path / "said").read_text().splitlines() if (tmp_path / "said").exists() else []


@pytest.mark.parametrize(("restarts", "again"), [("", True), ("1", True), ("2", False)])
def test_near_the_limit_ranks_are_warned_and_the_job_requeued_a_bounded_number_of_times(
    tmp_path: Path, shell: Callable[..., subprocess.Popen[str]], restarts: str, again: bool
) -> None:
    process = shell(138, **({"SLURM_RESTART_COUNT": restarts} if restarts else {}))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 138
    assert said(tmp_path) == ["scancel --signal=USR1 70123", *(["scontrol requeue 70123"] if again else [])]
    assert ("used up" in err) is not again


@pytest.mark.parametrize("code", [138, 143])
def test_ranks_that_stopped_at_a_warning_of_others_are_requeued(
    tmp_path: Path, shell: Callable[..., subprocess.Popen[str]], code: int
) -> None:
    """Slurm tells only the ranks when it preempts, and anyone may tell one of them."""
    process = shell(code)
    os.kill(int((tmp_path / "started").read_text()), signal.SIGUSR1)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert said(tmp_path) == ["scontrol requeue 70123"]


@pytest.mark.parametrize("code", [0, 1, 137])
def test_what_ended_by_itself_is_not_done_again(
    tmp_path: Path, shell: Callable[..., subprocess.Popen[str]], code: int
) -> None:
    """Also where the warning came a moment before."""
    process = shell(code)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert said(tmp_path) == ["scancel --signal=USR1 70123"]


def test_a_run_that_nobody_warns_ends_as_its_ranks_do(
    tmp_path: Path, shell: Callable[..., subprocess.Popen[str]]
) -> None:
    process = shell(None)
    process.communicate(timeout=120)
    assert (process.returncode, said(tmp_path)) == (0, [])


def test_of_an_array_only_the_run_itself_is_warned_and_requeued(
    tmp_path: Path, shell: Callable[..., subprocess.Popen[str]]
) -> None:
    process = shell(138, array="0-2", **ARRAY)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=120)
    assert said(tmp_path) == ["scancel --signal=USR1 70123_2", "scontrol requeue 70123_2"]


def test_each_run_of_an_array_finds_its_own_directory(tmp_path: Path, fakes: dict[str, str]) -> None:
    directory = tmp_path / HOSTILE
    (directory / f"{HOSTILE}_2" / "job").mkdir(parents=True)
    script = sbatch_script(job_in(directory, spec_of(slurm=SlurmSpec(array="2,7"))))
    done = run(script, {**fakes, **ARRAY}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (directory / f"{HOSTILE}_2" / layout.QUEUE).read_text() == "70123_2\n"
    (started,) = calls(fakes)
    assert str(directory / f"{HOSTILE}_2" / layout.SPEC) in started["args"]
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("array", ["0-", "a", "4-1", "0-9:0", "1,,2", "1%0", "1 --uid=0", "0-1000", "-1", "1%"])
def test_an_array_that_is_none_is_refused(array: str) -> None:
    with pytest.raises(BadInput, match=r"slurm\.array"):
        sbatch_script(job_in(Path("/runs/a"), spec_of(slurm=SlurmSpec(array=array))))


@pytest.mark.parametrize("requeues", [0, 1])
def test_a_directory_that_was_run_takes_no_second_job_but_the_same_one_again(
    tmp_path: Path, fakes: dict[str, str], requeues: int
) -> None:
    """Whoever submits a prepared script twice would have two jobs write the same records."""
    for folder in layout.FOLDERS:
        (tmp_path / "run" / folder).mkdir(parents=True)
    script = sbatch_script(job_in(tmp_path / "run", spec_of(slurm=SlurmSpec(requeues=requeues))))
    assert run(script, fakes, tmp_path).returncode == 0
    assert (tmp_path / "run" / layout.QUEUE).read_text() == "70123\n"
    again = run(script, {**fakes, "SLURM_JOB_ID": "70124"}, tmp_path)
    assert again.returncode == 2
    assert "has been run already" in again.stderr
    assert run(script, {**fakes, "SLURM_RESTART_COUNT": "1"}, tmp_path).returncode == 0
    assert [one["name"] for one in calls(fakes)] == ["srun", "srun"]


def test_a_simple_script_runs_its_command(tmp_path: Path) -> None:
    job = job_in(tmp_path, spec_of())
    command = [sys.executable, "-c", "import os, sys; print(os.environ['A B'[:1]], sys.argv[1])", HOSTILE]
    done = run(shell_script(job, {"A": HOSTILE}, command), {}, tmp_path)
    assert done.stdout == f"{HOSTILE} {HOSTILE}\n"
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("requeues", [0, 2])
@pytest.mark.parametrize(
    ("code", "is_enough", "exits"), [(143, True, 0), (143, False, 143), (9, True, 9), (0, True, 0)]
)
def test_a_job_that_its_companion_ended_succeeded_and_is_not_queued_again(
    tmp_path: Path, fakes: dict[str, str], requeues: int, code: int, *, is_enough: bool, exits: int
) -> None:
    directory = tmp_path / "run"
    (directory / "job").mkdir(parents=True)
    if is_enough:
        (directory / layout.ENOUGH).write_text("enough")
    programs = {
        "srun": f"until [ -s '{directory}/looked' ]; do sleep 0.05; done; exit {code}",
        "look": 'echo "$@" > "$1/looked"; exec sleep 600',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    job = replace(job_in(directory, spec_of(slurm=SlurmSpec(requeues=requeues))), companion=("look",))
    done = run(sbatch_script(job), fakes, tmp_path)  # returns only once the companion has ended too
    assert done.returncode == exits, done.stderr
    assert (directory / "looked").read_text() == f"{directory}\n"
    requeued = [call for call in calls(fakes) if call["name"] == "scontrol"]
    assert bool(requeued) == (requeues > 0 and exits == 143)
