"""Launcher and hosts of a job: as named, or as found in the surrounding batch job."""

from __future__ import annotations

import pytest

from allpull.errors import BadInput
from allpull.jobs.placement import place_ranks
from allpull.schema.spec import LaunchSpec, RunSpec

pytestmark = pytest.mark.torch

INSIDE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_a_launcher_that_was_named_is_left_alone():
    spec = RunSpec(launch=LaunchSpec(launcher="local", ranks=3))
    assert place_ranks(spec, INSIDE) == spec


def test_a_launcher_that_was_named_takes_all_hosts_that_it_has(tmp_path):
    """`--launcher slurm` in an allocation of two hosts left one of them idle, and mpi with a host file too."""
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=2\n")
    for launcher, environ in (("slurm", INSIDE), (f"mpi:{tmp_path}/hosts", {}), ("mpi", INSIDE)):
        asked = RunSpec(launch=LaunchSpec(launcher=launcher, ranks=4))
        launch = place_ranks(asked, environ).launch
        assert (launch.launcher, launch.hosts) == (launcher, 2)
        assert place_ranks(asked, environ, ["train.epochs=1", " launch.hosts = 1"]).launch.hosts == 1
    assert place_ranks(RunSpec(launch=LaunchSpec(launcher="slurm", ranks=4)), {}).launch.hosts == 1


def test_what_is_found_fills_in_launcher_and_hosts():
    launch = place_ranks(RunSpec(launch=LaunchSpec(ranks=4)), INSIDE).launch
    assert (launch.launcher, launch.hosts) == ("slurm", 2)
    launch = place_ranks(RunSpec(launch=LaunchSpec(ranks=4, hosts=4)), INSIDE).launch
    assert (launch.launcher, launch.hosts) == ("slurm", 4)
    assert place_ranks(RunSpec(), {}).launch.launcher == "local"


@pytest.mark.parametrize("launcher", ["auto", "slurm"])
def test_ranks_that_are_already_parallel_are_refused(launcher):
    with pytest.raises(BadInput, match="started 4 times by mpirun"):
        place_ranks(RunSpec(launch=LaunchSpec(launcher=launcher)), {"OMPI_COMM_WORLD_SIZE": "4"})


def test_ranks_that_cannot_be_divided_over_the_hosts_found_are_refused():
    with pytest.raises(BadInput, match="1 rank cannot be divided evenly over 2 hosts"):
        place_ranks(RunSpec(), INSIDE)
