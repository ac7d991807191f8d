"""Hosts to launch on, as fixtures: ``services`` makes them, and a machine that has no such thing skips."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests and benchmarks import ``services``, which stands beside us

import services


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.SshHosts]:
    """Two servers on loopback ports that see no run."""
    try:
        with services.ssh_hosts(hidden=tmp_path_factory.getbasetemp()) as hosts:
            yield hosts
    except services.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.SlurmCluster]:
    """Slurm with hosts n1 and n2, which Slurm's commands find by our own environment."""
    try:
        with services.slurm_cluster(tmp_path_factory.mktemp("slurm")) as found, pytest.MonkeyPatch.context() as patch:
            for name, value in found.environment.items():
                patch.setenv(name, value)
            yield found
    except services.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two hosts with two slots each, for mpirun."""
    try:
        hosts = services.mpi_hosts(tmp_path)
    except services.Unavailable as reason:
        pytest.skip(str(reason))
    for name, value in hosts.environment.items():
        monkeypatch.setenv(name, value)
    return hosts.hostfile
