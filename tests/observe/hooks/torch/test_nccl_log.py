"""Of NCCL's log a rank keeps its own lines about transports, each way once, and touches nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allpull.explain.evidence.hosts.transports import transports_of
from allpull.observe.hooks.torch.nccl_log import MOST_LINES, log_path, transport_lines
from allpull.rundir.read.nccl_log import parse_transports, read_transports
from allpull.rundir.read.run import read_run

LOG = """n1:7:9 [0] NCCL INFO cudaDriverVersion 12040
n1:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
n1:8:9 [1] NCCL INFO NET/Socket : Using [0]eth1:10.0.0.1<0>
n1:7:9 [0] NCCL INFO Using network Socket
n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
n1:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0
n1:7:9 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
"""


def test_lines_of_this_process_about_transports_are_kept_once(tmp_path: Path) -> None:
    (tmp_path / "nccl").write_text(LOG)
    lines = transport_lines(str(tmp_path / "nccl"), 7)
    assert len(lines) == 4
    (one,) = parse_transports(line.encode() for line in lines)
    assert one.networks == {"Socket"}
    assert one.interfaces == {0: "eth0"}


def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert transport_lines(str(tmp_path / "pipe"), 7) == []
    assert transport_lines("/dev/null", 7) == []
    assert transport_lines(str(tmp_path), 7) == []
    assert transport_lines(str(tmp_path / "missing"), 7) == []
    (tmp_path / "long").write_bytes(b"".join(b"n1:7:9 [0] NCCL INFO via %d\n" % way for way in range(10_000)))
    assert len(transport_lines(str(tmp_path / "long"), 7)) == MOST_LINES


def test_the_name_of_the_log_is_that_of_nccl() -> None:
    assert log_path({}) is None
    assert log_path({"NCCL_DEBUG_FILE": "/tmp/a.%h.%%"}) == f"/tmp/a.{os.uname().nodename.partition('.')[0]}.%"


PROGRAM = """
import os, socket
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
prefix = f"{socket.gethostname()}:{os.getpid()}:9 [0] NCCL INFO"  # there is no NCCL here: what it would write
with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as log:
    print(prefix, "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", file=log)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.slow
def test_the_logs_of_real_ranks_are_in_their_events(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", str(tmp_path / "runs"), "--", str(program)]
    environment = {**os.environ, "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%p")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    run = read_run(next((tmp_path / "runs").iterdir()))
    found = transports_of(run, read_transports(run.directory, run.events))
    assert sorted(found.ranks) == [0, 1]
    assert all({one.kind for one in log.transports} == {"SHM"} for log in found.ranks.values())
