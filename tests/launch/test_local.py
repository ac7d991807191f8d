"""Jobs on this machine: how they end, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from allpull.errors import BadInput
from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.local import Local
from allpull.observe.scratch import path_of
from allpull.rundir.job_file import SECRETS_VARIABLE
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec

pytestmark = pytest.mark.ranks


def run_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, ranks: int = 2):
    """Run ``text`` as the program of every rank, observed, without torch in it."""
    (tmp_path / "program.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = RunSpec(name="program", launch=LaunchSpec(ranks=ranks, grace_s=1), observe=ObserveSpec(counters=False))
    job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "runs")
    return execute(job, Local(), lambda: None), job.directory


def test_the_rank_that_raised_first_is_named_with_its_exception_and_log(tmp_path, monkeypatch):
    """The other rank fails later, as it would in a collective; it is a victim."""
    record, directory = run_program(
        tmp_path,
        monkeypatch,
        "import os, sys, time\n"
        "from allpull import marks\n"
        "marks.step(1)\n"
        f"flag = {str(tmp_path / 'failing')!r}\n"
        "if os.environ['RANK'] == '1':\n"
        "    print('about to fail, password=hunter2')\n"
        "    open(flag, 'w').close()\n"
        "    raise ValueError('no such label: 11')\n"
        "while not os.path.exists(flag):\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "raise RuntimeError('Connection closed by peer')\n",
    )
    assert record.status == "failed"
    assert record.exit is not None
    assert (record.exit.code, record.exit.rank, record.exit.host) == (1, 1, socket.gethostname())
    assert record.exit.exception == "ValueError: no such label: 11"
    tail = "\n".join(record.exit.log_tail)
    assert "about to fail, password=[redacted]" in tail
    assert "ValueError: no such label: 11" in tail
    assert json.loads((directory / "run.json").read_text())["exit"]["rank"] == 1


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("os._exit(3)", 3), ("os.abort()", 128 + 6)])
def test_the_exit_code_of_the_rank_is_passed_on(tmp_path, monkeypatch, ending, code):
    program = f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {ending}\ntime.sleep(60)\n"
    record, _ = run_program(tmp_path, monkeypatch, program)
    assert record.exit is not None
    assert (record.exit.code, record.exit.rank) == (code, 1)


def test_a_rank_that_a_signal_ends_is_the_cause_although_the_agent_ends_others_by_the_same(tmp_path, monkeypatch):
    program = "import os, signal, time\nif os.environ['RANK'] == '1':\n    signal.raise_signal(15)\ntime.sleep(60)\n"
    record, _ = run_program(tmp_path, monkeypatch, program, ranks=3)
    assert record.exit is not None
    assert (record.exit.code, record.exit.rank, record.exit.signal) == (128 + 15, 1, "SIGTERM")


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_rank_that_leaves_early_without_an_error_is_named_beside_its_victim(tmp_path, monkeypatch, ending):
    """Of three ranks one is ended by the agent: it did not leave."""
    program = (
        f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {ending}\n"
        "time.sleep(60 if os.environ['RANK'] == '2' else 2)\n"
        "raise RuntimeError('Connection closed by peer')\n"
    )
    record, _ = run_program(tmp_path, monkeypatch, program, ranks=3)
    assert record.exit is not None
    assert record.exit.rank == 0
    assert record.exit.reason is not None
    assert record.exit.reason.startswith("rank 1 had ended with exit code 0")


@pytest.mark.slow
def test_ranks_meet_on_the_loopback_interface_only_and_a_program_without_steps_completes(tmp_path, monkeypatch):
    """Every listening socket of the job's processes is bound to 127.0.0.1."""
    program = (
        "import os, json, psutil, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "family = [psutil.Process(), psutil.Process().parent()]\n"
        "found = [c.laddr.ip for p in family for c in p.net_connections('inet') if c.status == 'LISTEN']\n"
        "print(json.dumps(found) if dist.get_rank() == 0 else 'hello')\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    record, directory = run_program(tmp_path, monkeypatch, program)
    assert (record.status, record.exit.code) == ("completed", 0), (directory / "job/logs/rank-00000.log").read_text()
    listening = json.loads((directory / "job/logs/rank-00000.log").read_text())
    assert listening
    assert set(listening) == {"127.0.0.1"}
    assert (directory / "job/logs/rank-00001.log").read_text() == "hello\n"
    assert len((directory / "steps/rank-00000.jsonl").read_text().splitlines()) == 1


@pytest.fixture
def long_training(tmp_path):
    """A training on two ranks that would take minutes, with both ranks stepping."""
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--set", "train.epochs=5000"]
    command += ["--set", "launch.grace_s=2", "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    directory = None
    while time.monotonic() < deadline and process.poll() is None:
        found = list((tmp_path / "runs").glob("*/steps/rank-*.jsonl"))
        if len(found) == 2 and all(path.stat().st_size > 5000 for path in found):
            directory = found[0].parent.parent
            break
        time.sleep(0.1)
    assert directory is not None, process.stderr.read() if process.stderr and process.poll() is not None else "no step"
    family = psutil.Process(process.pid).children(recursive=True)
    yield process, directory, family
    if process.poll() is None:
        process.kill()
        process.wait()


def pid_of(directory: Path, rank: int) -> int:
    with (directory / f"steps/rank-{rank:05d}.jsonl").open() as file:
        return json.loads(file.readline())["pid"]


def gone(family: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(family, timeout=60)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_rank_ends_the_job_and_leaves_a_directory_that_reads(long_training, run_cli):
    process, directory, family = long_training
    os.kill(pid_of(directory, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + 9
    assert f"rank 1 on {socket.gethostname()} was ended by SIGKILL" in err
    assert gone(family)
    shown = run_cli("show", str(directory), "--json")
    assert shown.returncode == 0, shown.stderr
    run = json.loads(shown.stdout)["runs"][0]
    assert run["status"] == "failed"
    assert run["throughput"]["value"] > 0
    assert any("1" in gap and "ended without" in gap for gap in run["gaps"]), run["gaps"]  # rank 0 may be with it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_every_process(long_training, number, code):
    process, directory, family = long_training
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert gone(family)
    record = json.loads((directory / "run.json").read_text())
    assert (record["status"], record["exit"]["code"]) == ("cancelled", code)
    assert "nonce" not in json.loads((directory / "job/spec.json").read_text())


@pytest.mark.slow
def test_an_impatient_user_gets_the_same_ending(long_training):
    """Ctrl-C four times in a row: no traceback, and the record is closed."""
    process, directory, family = long_training
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert gone(family)
    assert json.loads((directory / "run.json").read_text())["status"] == "cancelled"


@pytest.mark.slow
def test_nothing_outlives_a_killed_allpull(long_training):
    process, _, family = long_training
    process.kill()
    process.wait()
    assert gone(family)


@pytest.mark.slow
def test_what_to_do_about_the_error_of_a_rank_is_said_where_the_user_looks(run_cli, tmp_path):
    """The network is built in the ranks, which find that it has no norms; whoever typed the option is elsewhere."""
    wrong = ("--set", "model.name=vgg16", "--set", "model.norm=group")
    done = run_cli("train", "digits", "-n", "2", *wrong, "--out", "runs", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(r"allpull: rank \d on \S+ failed: BadInput: vgg16 has no norms.*; hint: use vgg16_bn", done.stderr)
    shown = run_cli("show", "runs", cwd=tmp_path)
    assert "hint: use vgg16_bn" in " ".join((shown.stdout + shown.stderr).split())


def test_a_port_in_use_is_one_clear_error(run_cli, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_cli("train", "digits", "--set", f"launch.port={port}", cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"allpull: port {port}: .*\nhint: leave launch.port out", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="it is not a folder"):
        prepare(RunSpec(), kind="train", module="m", command=["m"], out=tmp_path / "file")


STRANGER = """
import os, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
def attack(port):
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
    keys = store.list_keys() if hasattr(store, "list_keys") else []
    for key in {*keys, "allpull/0/warned", "allpull/0/last", "allpull/0/counted"}:
        store.set(key, "0")
    print(port, keys, flush=True)
threading.excepthook = lambda _: None
for port in map(int, sys.argv[1:]):
    threading.Thread(target=attack, args=(port,), daemon=True).start()
time.sleep(15)  # Gloo's sockets, which are no stores, answer nothing at all
os._exit(0)
"""


@pytest.mark.slow
def test_a_stranger_on_this_host_who_does_not_know_the_job_cannot_end_it(long_training):
    """Reproduced before: this ended the job with code 138, as if a queue had warned it."""
    process, directory, family = long_training
    ports = [
        str(one.laddr.port)
        for member in [psutil.Process(process.pid), *family]
        for one in member.net_connections("inet")
        if one.status == "LISTEN"
    ]
    steps = directory / "steps/rank-00000.jsonl"
    command = [sys.executable, "-c", STRANGER, *ports, os.environ.get("MASTER_PORT", "29500")]
    stranger = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert stranger.stdout == ""  # no store answers at any port of the job
    size = steps.stat().st_size
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and steps.stat().st_size < size + 5000:
        time.sleep(0.1)
    assert steps.stat().st_size >= size + 5000  # some seconds of steps: a warning is looked for once a second
    assert process.poll() is None


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_directory_by_an_agent_that_is_killed(long_training):
    process, directory, family = long_training
    scratch = Path(path_of(str(directory), socket.gethostname()))
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert list(scratch.glob("store-*"))
    (agent,) = [one for one in family if "allpull.observe.agent" in one.cmdline()]
    agent.kill()
    process.communicate(timeout=120)
    assert not scratch.exists()


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.3, 1.0, 3.0, 8.0])
def test_no_secret_is_left_on_disk_by_an_allpull_that_is_killed(tmp_path, after_s):
    """Reproduced before: the job file kept the token, the password and the nonce in clear."""
    program = tmp_path / "program.py"
    program.write_text("import sys, time\nprint(len(sys.argv), flush=True)\ntime.sleep(60)\n")
    secrets = ["tok-hunter2", "pw-hunter3", "AKIAIOSFODNN7EXAMPLE"]
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--"]
    command += ["python", str(program), "--token", secrets[0], f"--pw={secrets[1]}", "--x", secrets[2]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert soon_exists(tmp_path / "runs")
    time.sleep(after_s)
    family = psutil.Process(process.pid).children(recursive=True)
    environments = [variable for one in family for variable in environ_of(one)]
    process.kill()
    process.wait()
    assert gone(family)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert files
    text = b"".join(path.read_bytes() for path in files)
    assert [secret for secret in secrets if secret.encode() in text] == []
    handed = [json.loads(value) for name, value in environments if name == SECRETS_VARIABLE]
    assert all(one["nonce"].encode() not in text for one in handed)


def environ_of(process: psutil.Process) -> list[tuple[str, str]]:
    try:
        return list(process.environ().items())
    except psutil.Error:
        return []


def soon_exists(path: Path) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not path.exists():
        time.sleep(0.01)
    return path.exists()
