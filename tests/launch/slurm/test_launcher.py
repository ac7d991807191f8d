"""What is asked of Slurm and what is made of its answers, with stand-ins for its commands."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.errors import BadInput, MissingPart
from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare
from allpull.launch.outcome import exit_of
from allpull.launch.slurm.launcher import BatchJob, Slurm, step_command, submit_script
from allpull.rundir import layout
from allpull.schema.spec import LaunchSpec, RunSpec

RUNNING = "JobId=7 JobName=x\n   JobState=RUNNING Reason=None Dependency=(null)\n"
DONE = RUNNING.replace("RUNNING", "COMPLETED")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    spec = RunSpec(launch=LaunchSpec(launcher="slurm", ranks=2, hosts=2))
    return prepare(spec, kind="run", module="m", command=["m"], out=tmp_path / "runs")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function that puts a shell script in the place of one of Slurm's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)

    def put(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    for name in ("sbatch", "scontrol", "scancel", "sacct", "squeue"):
        put(name, f'echo "{name} $*" >> calls; exit 1')
    return put


def ended_on(job: Job, *hosts: str) -> None:
    for host in hosts:
        told = {"host": host, "code": 0, "failures": []}
        (job.directory / layout.ended_file(host)).write_text(json.dumps(told))


def asked(job: BatchJob) -> object:
    """What the next look at Slurm gives."""
    job._look_at = 0.0
    return job.poll()


def test_it_can_say_where_it_waits(job):
    assert BatchJob(job, "7;cluster2").state() == "Slurm job 7: pending"


def test_the_script_goes_to_sbatch_as_it_is_and_the_number_comes_back(fake):
    fake("sbatch", '/bin/cat > taken; echo "4711;east"')
    number = submit_script("#!/bin/bash\nline\n", {"PATH": str(Path("bin").resolve())})
    assert number == "4711;east"
    assert Path("taken").read_text() == "#!/bin/bash\nline\n"


def test_from_inside_a_job_its_own_variables_stay_behind(fake):
    fake("sbatch", "/usr/bin/env > seen; echo 1")
    path = str(Path("bin").resolve())
    submit_script("x", {"PATH": path, "SLURM_JOB_ID": "3", "SLURM_NTASKS": "8", "SLURM_CONF": "/c", "SBATCH_QOS": "q"})
    assert sorted(Path("seen").read_text().split())[:4] == sorted(
        [f"PATH={path}", f"PWD={Path.cwd()}", "SBATCH_QOS=q", "SLURM_CONF=/c"]
    )


def test_a_refusal_is_passed_on_in_sbatchs_words(fake):
    fake("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(BadInput, match=r"sbatch refused the job: sbatch: error: .*Invalid account"):
        submit_script("x", {"PATH": str(Path("bin").resolve())})


def test_no_sbatch_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="there is no sbatch"):
        submit_script("x", {"PATH": str(tmp_path)})


def test_a_job_that_was_just_taken_when_we_are_stopped_is_cancelled(fake, job):
    """Ctrl-C while sbatch is at it: the job must not be left in the queue with nobody to look after it."""
    fake("sbatch", "touch begun; sleep 1; echo 99")
    fake("scancel", 'echo "$*" > cancelled')

    def stop() -> None:
        while not Path("begun").exists():
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    threading.Thread(target=stop).start()
    record = execute(job, Slurm(), lambda: None)
    assert record.status == "cancelled"
    assert record.exit is not None
    assert record.exit.code == 130
    assert Path("cancelled").read_text().strip() == "99"


def test_success_needs_the_word_of_every_host(fake, job):
    running = BatchJob(job, "7")
    fake("scontrol", f"cat <<'E'\n{RUNNING}E")
    assert asked(running) is None
    fake("scontrol", f"cat <<'E'\n{DONE}E")
    ended_on(job, "n1")
    assert asked(running) is None  # the other one's file may only be late
    ended_on(job, "n2")
    ended = asked(running)
    assert [(host.host, host.code) for host in ended] == [("n1", 0), ("n2", 0)]


def test_a_job_that_slurm_has_forgotten_is_over_and_hosts_decide(fake, job):
    fake("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    ended_on(job, "n1", "n2")
    assert exit_of(asked(BatchJob(job, "7"))).code == 0


def test_what_accounting_remembers_of_a_forgotten_job_counts(fake, job):
    fake("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake("sacct", "echo 'TIMEOUT|0:0'")
    ended = asked(BatchJob(job, "7"))
    assert "time limit" in (exit_of(ended).reason or "")


@pytest.mark.parametrize(
    "answer", ["echo 'Unable to contact slurm controller' >&2; exit 1", "echo gibberish", "exit 0"]
)
def test_a_controller_that_does_not_answer_ends_nothing(fake, job, answer):
    fake("scontrol", answer)
    running = BatchJob(job, "7")
    assert asked(running) is None
    assert asked(running) is None


def test_slurm_is_asked_less_and_less_often(fake, job):
    fake("scontrol", f"cat <<'E'\n{RUNNING}E")
    running = BatchJob(job, "7")
    waits = []
    for _ in range(20):
        asked(running)
        waits.append(running._look_at - time.monotonic())
    assert waits[0] < 1.5
    assert 14 < waits[-1] <= 15
    assert all(later > earlier - 0.2 for earlier, later in zip(waits, waits[1:], strict=False))


def test_a_federated_job_is_asked_of_its_cluster(fake, job):
    fake("scontrol", 'echo "$*" > options; exit 1')
    asked(BatchJob(job, "7;east"))
    assert Path("options").read_text().strip() == "--clusters=east show job 7"


def test_a_step_runs_on_the_first_hosts_of_the_allocation(job):
    environ = {"SLURM_JOB_ID": "70001", "SLURM_JOB_NODELIST": "n[05-08]"}
    words = step_command(job, environ)
    assert words[0] == "srun"
    assert "--nodelist=n[05-06]" in words
    assert words[-4:] == ["--master", "n05", "--port", "20001"]
    with pytest.raises(BadInput, match="2 requested, and Slurm job 70001 has 1"):
        step_command(job, {**environ, "SLURM_JOB_NODELIST": "n05"})
