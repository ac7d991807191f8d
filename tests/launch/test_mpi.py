"""How mpirun is called, how a rank under it knows itself, and who is blamed when it fails. No rank is started here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from allpull.errors import BadInput, MissingPart
from allpull.launch.job import Job, prospect
from allpull.launch.mpi import Mpi, Site, blamed, command, exported, find_mpirun, first_host, flavour_of, hosts_of
from allpull.observe.identity import identity, numbers
from allpull.observe.rank.mpi import variables
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import ContainerSpec, LaunchSpec, RunSpec

OMPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
PMI = {"PMI_RANK": "6", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2"}
SLURM = {"SLURM_PROCID": "7", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}
TORCH = {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
JOB = JobFile(directory="/runs/a", spec={"launch": {"hosts": 2}})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0)),
        (TORCH, (4, 8, 0)),
        (OMPI, (5, 8, 1)),
        (PMI, (6, 8, 2)),
        ({**SLURM, "SLURM_STEP_ID": "0"}, (7, 8, 3)),
        (SLURM, (0, 1, 0)),  # a batch script has them too, and is no rank
        ({**SLURM, "SLURM_STEP_ID": "0", **PMI}, (6, 8, 2)),
        ({**OMPI, **TORCH}, (4, 8, 0)),
        ({**OMPI, "RANK": "4"}, (5, 8, 1)),  # half of torch's is nobody's
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "five"}, (0, 1, 0)),
    ],
)
def test_a_rank_knows_itself_by_whatever_started_it(environ: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert numbers(environ) == expected


def test_the_name_of_the_host_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**OMPI, "ALLPULL_HOST": "n7"}.items():
        monkeypatch.setenv(name, value)
    for name in TORCH:
        monkeypatch.delenv(name, raising=False)
    who = identity()
    assert (who.rank, who.ranks, who.local_rank, who.host) == (5, 8, 1, "n7")


def test_torch_is_told_what_mpi_says() -> None:
    told = variables({**OMPI, "MASTER_PORT": "2000"}, JOB, "n1")
    assert {name: told[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "2000")
    assert told.get("GLOO_SOCKET_IFNAME", "lo") == "lo"
    assert "ALLPULL_SERVE_STORE" not in told
    first = variables({**OMPI, "OMPI_COMM_WORLD_RANK": "0", "MASTER_PORT": "2000"}, JOB, "n1")
    assert first["ALLPULL_SERVE_STORE"] == "1"


@pytest.mark.parametrize(
    ("asked", "own", "expected"), [("ib0", "eth1", "ib0"), ("", "eth1", "eth1"), ("ib0", None, "ib0")]
)
def test_the_interface_is_the_one_that_was_chosen(asked: str, own: str | None, expected: str) -> None:
    environ = {**OMPI, "MASTER_PORT": "1", **({"GLOO_SOCKET_IFNAME": own} if own else {})}
    assert variables(environ, replace(JOB, interface=asked), "n1")["GLOO_SOCKET_IFNAME"] == expected


def job_of(ranks: int, hosts: int = 1, **parts: Any) -> Job:
    spec = RunSpec(launch=LaunchSpec(ranks=ranks, hosts=hosts), **parts)
    job = prospect(spec, kind="train", module="allpull.train", command=["allpull"], out=Path("/runs"))
    return replace(job, directory=Path("/runs/a b"))


def site(**changes: Any) -> Site:
    plain = {"program": "mpirun", "flavour": "openmpi", "hostfile": "", "master": "127.0.0.1", "port": 2000}
    return Site(**{**plain, **changes})


def test_flags_that_weaken_openmpi_are_given_only_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert {"--oversubscribe", "--allow-run-as-root"} & set(command(job_of(4), site())) == set()
    assert "--oversubscribe" in command(job_of(5), site())
    assert "--oversubscribe" not in command(job_of(5), site(hostfile="/h"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-run-as-root" in command(job_of(1), site())


def test_ranks_are_divided_over_the_hosts() -> None:
    words = command(job_of(4, hosts=2), site(hostfile="/h"))
    assert words[:3] == ["mpirun", "-np", "4"]
    assert words[words.index("--map-by") + 1] == "ppr:2:node"
    assert words[words.index("--hostfile") + 1] == "/h"
    assert words[-4:] == ["-m", "allpull.observe.rank.mpi", "/runs/a b/job/spec.json", "allpull.train"]
    hydra = command(job_of(4, hosts=2), site(flavour="hydra", hostfile="/h"))
    assert hydra[:7] == ["mpirun", "-f", "/h", "-n", "4", "-ppn", "2"]


def test_the_container_stands_between_mpirun_and_the_rank() -> None:
    words = command(job_of(2, container=ContainerSpec(image="a.sif")), site())
    start = words.index("apptainer")
    assert words[start:] == [
        *("apptainer", "exec", "--bind", "/runs/a b", "a.sif", "python3", "-m", "allpull.observe.rank.mpi"),
        *("/runs/a b/job/spec.json", "allpull.train"),
    ]


def test_variables_that_matter_go_along_and_those_of_our_own_job_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "SLURM_JOB_ID", "OMPI_MCA_btl", "UNRELATED"):
        monkeypatch.setenv(name, "1")
    names = exported(job_of(1), site())
    assert {"NCCL_DEBUG", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PATH"} <= names
    assert not {"SLURM_JOB_ID", "OMPI_MCA_btl", "UNRELATED"} & names


@pytest.mark.parametrize(
    ("said", "flavour"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", "openmpi"),
        ("HYDRA build details:\n    Version:                                 4.0.2", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "hydra"),
        ("mpirun: some other thing", None),
        ("", None),
    ],
)
def test_the_flavour_is_what_mpirun_says(said: str, flavour: str | None) -> None:
    assert flavour_of(said) == flavour


def test_no_mpirun_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="no mpirun or mpiexec on this machine"):
        find_mpirun()
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho strange thing 1.0\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(MissingPart, match=r"strange thing 1\.0"):
        find_mpirun()


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ("mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 9 (Killed).", (3, -9)),
        ("  Process name: [[1602,1],1]\n  Exit code:    7\n----", (1, 7)),
        ("There are not enough slots available in the system", None),
        ("", None),
    ],
)
def test_the_rank_that_openmpi_blames(said: str, who: tuple[int, int] | None) -> None:
    assert blamed(said) == who


def test_rank_0_is_on_the_first_host(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\n\nnode7 slots=2\nnode8\n")
    assert first_host(str(hosts), {}) == "node7"
    hosts.write_text("node9:4\n")
    assert first_host(str(hosts), {}) == "node9"
    assert first_host("", {"SLURM_JOB_NODELIST": "n[05-06]"}) == "n05"
    assert first_host("", {"PBS_NODEFILE": str(hosts)}) == "node9"
    hosts.write_text("localhost\nnode8\n")
    assert first_host(str(hosts), {}) != "localhost"  # which is another host there


def test_every_host_of_a_file_or_job_is_counted_once(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=2\nn2:4\nn1\nlocalhost\n" + f"{socket.gethostname()}\n")
    assert hosts_of(str(hosts), {"SLURM_JOB_NODELIST": "n[05-06]"}) == ["n1", "n2", socket.gethostname()]
    assert hosts_of("", {"PBS_NODEFILE": str(hosts)}) == ["n1", "n2", socket.gethostname()]
    assert hosts_of("", {"SLURM_JOB_NODELIST": "n[05-06]"}) == ["n05", "n06"]
    assert hosts_of("", {}) == []


def test_ranks_of_a_host_are_as_many_as_mpi_says() -> None:
    """A host file may give hosts different numbers of slots."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        assert variables({**OMPI, name: "3", "MASTER_PORT": "1"}, JOB, "n1")["LOCAL_WORLD_SIZE"] == "3"
        assert variables({**OMPI, name: "some", "MASTER_PORT": "1"}, JOB, "n1")["LOCAL_WORLD_SIZE"] == "4"


def test_a_first_host_that_nobody_knows_is_one_clear_error(tmp_path: Path) -> None:
    JOB.write(str(tmp_path / "job.json"))
    command = [sys.executable, "-m", "allpull.observe.rank.mpi", str(tmp_path / "job.json"), "m"]
    environ = {**os.environ, **OMPI, "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 68
    assert "cannot resolve no-such-host.invalid" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("content", "fault"), [(None, "cannot read the host file"), ("# none\n", "names no host")])
def test_a_host_file_that_cannot_be_used_is_one_clear_error(tmp_path: Path, content: str | None, fault: str) -> None:
    hosts = tmp_path / "hosts"
    if content is not None:
        hosts.write_text(content)
    with pytest.raises(BadInput, match=fault):
        first_host(str(hosts), {})


@pytest.mark.mpi
def test_what_is_planned_is_what_would_be_submitted() -> None:
    """The port too, which is a free one."""
    try:
        find_mpirun()
    except MissingPart as error:
        pytest.skip(error.message)
    launcher = Mpi("")
    assert launcher.plan(job_of(2)) == launcher.plan(job_of(2))
