"""What a job says whose disk, memory or file descriptors run out: the cause, and a closed record where one can be."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allpull.observe.agent.__main__ import FEW_FILES
from allpull.observe.scratch import path_of

TRAIN = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", "--set", "launch.grace_s=2"]
pytestmark = [pytest.mark.ranks, pytest.mark.slow]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """An empty folder; what a test mounts there is unmounted after it."""
    if os.geteuid():
        pytest.skip("needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    while os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str) -> None:
    made = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mount: {made.stderr.strip()}")


def train(out: Path, *sets: str) -> list[str]:
    return [*TRAIN, "--out", str(out), *(word for one in sets for word in ("--set", one))]


def run_of(out: Path) -> Path:
    (directory,) = out.glob("*_digits_*")
    return directory


@pytest.mark.root
@pytest.mark.parametrize("size", ["size=64k", "size=200k", "nr_inodes=22"])
def test_a_full_disk_is_named_and_the_record_is_closed_on_it(mounted: Path, size: str) -> None:
    """64 KB hold the records of an epoch and no log; 200 KB also a checkpoint, not the next; 22 files not all logs."""
    mount("-t", "tmpfs", "-o", size, "tmpfs", str(mounted))
    ended = subprocess.run(train(mounted, "train.epochs=4"), capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode in {1, 2}
    assert re.search(r"rank \d on .* failed: .*No space left on device", ended.stderr), ended.stderr
    record = json.loads((run_of(mounted) / "run.json").read_text())
    assert record["status"] == "failed"
    assert "No space left on device" in record["exit"]["exception"]
    assert not list(run_of(mounted).glob("**/*.tmp"))


@pytest.mark.root
def test_a_disk_that_fills_up_does_not_end_a_training_that_saves_nothing(mounted: Path, tmp_path: Path) -> None:
    """What is not recorded then is told; whether the training succeeded is the program's to say."""
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mounted))
    program = tmp_path / "program.py"
    program.write_text(
        "import time, torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\n"
        "network = DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "optimizer = torch.optim.SGD(network.parameters(), 0.1)\n"
        "for step in range(30):\n"
        "    network(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.05)\n"
        f"    if step == 5 and dist.get_rank() == 0:\n"
        f"        with open({str(mounted / 'fill')!r}, 'wb', buffering=0) as file:\n"
        "            try:\n"
        "                while True:\n"
        "                    file.write(bytes(4096))\n"
        "            except OSError:\n"
        "                pass\n"
        "print('made', step + 1, flush=True)\n",
        "utf-8",
    )
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(mounted), "--name", "full", "--"]
    ended = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("made") == ended.stdout.count("30") == 2  # both write to one pipe at once
    assert "recording stopped, the program continues" in ended.stderr
    (directory,) = mounted.glob("*_full_*")
    assert json.loads((directory / "run.json").read_text())["status"] == "completed"


@pytest.mark.root
def test_a_disk_that_becomes_read_only_is_named_by_the_file_that_the_user_wanted(mounted: Path) -> None:
    """As ext4 does after an error of the device; nothing can be recorded, so readers look at the processes."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    image = mounted.parent / "image"
    with image.open("wb") as file:
        file.truncate(100 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount("-o", "loop", str(image), str(mounted))
    command = train(mounted / "runs", "train.epochs=500", "train.checkpoint_every=20")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(mounted.glob("runs/*/checkpoints/*.pt")) and time.monotonic() < deadline:
            time.sleep(0.1)
        mount("-o", "remount,abort", str(mounted))
        _, err = process.communicate(timeout=120)
    directory = run_of(mounted / "runs")
    assert process.returncode == 2
    assert re.search(r"failed: BadInput: cannot write checkpoint .*/step-\d+\.pt: Read-only file system", err), err
    assert "free some space" not in err
    assert f"{directory}/run.json is not up to date: Read-only file system" in err
    assert not Path(path_of(str(directory), os.uname().nodename)).exists()


def test_a_job_without_enough_memory_says_so(tmp_path: Path) -> None:
    """A limit on address space that allpull itself fits in, and torch does not."""
    limit = 600 << 20
    ended = subprocess.run(
        train(tmp_path, "train.epochs=1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    end = json.loads((run_of(tmp_path) / "run.json").read_text())["exit"]
    assert ended.returncode == end["code"] > 0
    causes = f"{end['reason']} {end['exception']} {end['log_tail']}"
    assert re.search(
        r"MemoryError|[Cc]annot allocate|bad_alloc|failed to map|Resource temporarily unavailable", causes
    ), end


@pytest.mark.parametrize("files", [12, 16])
def test_a_program_with_too_few_descriptors_ends_at_once_with_the_cause(tmp_path: Path, files: int) -> None:
    """torch's store would have tried to connect for two minutes."""
    command = [
        sys.executable,
        "-m",
        "allpull",
        "run",
        "-n",
        "2",
        "--out",
        str(tmp_path),
        "--",
        sys.executable,
        "-m",
        "this",
    ]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    assert ended.returncode == FEW_FILES
    assert f"only {files} open files are allowed (ulimit -n)" in ended.stderr


EATS = """
import os, time
import torch
eaten = []
while os.environ["RANK"] == "1":
    eaten.append(os.urandom(1 << 20) * 8)
time.sleep(120)
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory control group of version 1 or 2 with a limit that two ranks reach."""
    if os.geteuid():
        pytest.skip("needs root")
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"allpull-test-{os.getpid()}")
        if os.access(f"{root}/memory.limit_in_bytes", os.R_OK) or "memory" in control(Path(root)):
            group.mkdir()
            (group / limit).write_text(str(1 << 30))
            yield group
            group.rmdir()
            return
    pytest.skip("needs a memory control group")


def control(root: Path) -> str:
    """The controllers that version 2 gives to groups below ``root``."""
    file = root / "cgroup.subtree_control"
    return file.read_text() if file.exists() else ""


@pytest.mark.root
@pytest.mark.parametrize("starter", [["-n", "2", "--"], ["--", "torchrun", "--nproc-per-node", "2"]])
def test_a_rank_that_the_kernel_ends_for_want_of_memory_is_named_with_the_limit(
    limited: Path, starter: list[str], tmp_path: Path
) -> None:
    (tmp_path / "eats.py").write_text(EATS)
    command = [sys.executable, "-m", "allpull", "run", "--out", str(tmp_path / "runs"), *starter, "eats.py"]
    enter = f"echo $$ > {limited}/cgroup.procs && exec {shlex.join(command)}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["sh", "-c", enter], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    killed = "the kernel's OOM killer ended 1 process of the job's control group, which has a limit of 1 GiB"
    assert ended.stderr.count(killed) == 1, ended.stderr
    if "torchrun" not in starter:
        assert ended.returncode == 128 + signal.SIGKILL
        assert re.search(r"rank 1 on \S+ was ended by SIGKILL; on \S+ the kernel's", ended.stderr)
    (directory,) = (tmp_path / "runs").iterdir()
    for verb in ("show",) if "torchrun" in starter else ("show", "explain"):  # of torchrun's, it has ranks to explain
        shown = subprocess.run(
            [sys.executable, "-m", "allpull", verb, str(directory)], capture_output=True, text=True, check=False
        )
        assert killed in " ".join(shown.stdout.split()), shown
