"""A probe is set up as a training is: where it runs, on how many hosts, with which options of their queue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allpull.errors import AllpullError
from allpull.jobs.probing import ProbeRequest
from allpull.jobs.probing import specification as checked

pytestmark = pytest.mark.torch

INSIDE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}


def specification(name, ranks, launcher, sets):
    return checked(ProbeRequest(name=name, ranks=ranks, launcher=launcher, sets=sets))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "PBS_")):
            monkeypatch.delenv(name)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in INSIDE.items():
        monkeypatch.setenv(name, value)


def test_outside_of_everything_it_is_two_ranks_here():
    launch = specification("clock", None, None, []).launch
    assert (launch.launcher, launch.ranks, launch.hosts) == ("local", 2, 1)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("launcher", [None, "slurm", "mpi"])
def test_inside_an_allocation_it_takes_all_hosts(launcher):
    launch = specification("clock", None, launcher, []).launch
    assert (launch.launcher, launch.ranks, launch.hosts) == (launcher or "slurm", 3, 3)
    assert specification("clock", 6, launcher, []).launch.ranks == 6
    assert specification("clock", None, launcher, ["launch.hosts=2"]).launch.hosts == 2


def test_options_of_queue_and_hosts_are_taken(tmp_path: Path):
    sets = ["launch.hosts=4", "slurm.partition=gpu", "slurm.account=phys"]
    spec = specification("allreduce", None, "slurm", sets)
    assert (spec.launch.ranks, spec.slurm.partition, spec.slurm.account) == (4, "gpu", "phys")
    assert specification("clock", None, "ssh:n[1-5]", ["ssh.python=/p"]).launch.ranks == 5
    assert specification("clock", None, "ssh:n[1-5]", ["ssh.python=/p"]).ssh.python == "/p"
    assert specification("clock", None, None, ['launch.launcher="slurm"', "launch.ranks=6"]).launch.launcher == "slurm"
    (tmp_path / "hosts").write_text("n1\nn2\nn3\n")
    launch = specification("clock", None, f"mpi:{tmp_path}/hosts", []).launch
    assert (launch.ranks, launch.hosts) == (3, 3)


@pytest.mark.parametrize(
    ("launcher", "sets", "fault"),
    [
        (None, ["train.epochs=3"], "train.epochs: this probe does not use it"),
        ("slurm", ["slurm.array=0-4"], "slurm.array: this probe does not use it"),
        ("slurm", ["slurm.partiton=gpu"], "partition"),
        ("slrum", [], "did you mean 'slurm'"),
        ("mpi", ["launch.max_restarts=1"], "launch.max_restarts has no effect"),
        ("slurm", ["launch.hosts=3", "launch.ranks=4"], "cannot be divided evenly"),
        ("ssh:n1,n1", [], "named twice"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(launcher, sets, fault):
    with pytest.raises(AllpullError, match=fault):
        specification("clock", None, launcher, sets)
