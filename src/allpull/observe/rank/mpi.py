"""Become one rank under mpirun, without an agent: find its identity, do the agent's part, execute the rank.

``python -m allpull.observe.rank.mpi JOB.json [MODULE]``; without MODULE the rank runs the job's command. The variables
that torch reads are set before the rank is executed, so that its children and the sidecar see them too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Dict, Mapping, NoReturn, Optional

from allpull.observe import clock_pings
from allpull.observe.host import describe_host
from allpull.observe.identity import HOST_VARIABLE, numbers
from allpull.observe.interface import interface_of, no_way, own_address
from allpull.observe.process import SERVE_VARIABLE, end_with_parent
from allpull.observe.rank.command import become
from allpull.observe.sidecar.start import start_detached
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import whole_json

LOOPBACK = "127.0.0.1"
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # OpenMPI; MPICH and Intel MPI
NO_HOST = 68  # our exit code where the first host cannot be found: EX_NOHOST of sysexits.h


def main(job_file: str, module: Optional[str] = None) -> NoReturn:
    """Become rank ``numbers(os.environ)`` of the job in ``job_file``."""
    end_with_parent(signal.SIGTERM)
    job = JobFile.read(job_file)
    host = os.environ.get(HOST_VARIABLE) or socket.gethostname()
    try:
        os.environ.update(variables(os.environ, job, host))
    except OSError as error:
        sys.stderr.write(f"{no_way(os.environ.get('MASTER_ADDR', LOOPBACK), error)}\n")
        sys.exit(NO_HOST)
    if os.environ["LOCAL_RANK"] == "0":
        describe(job, host)
    if module is None:
        if os.environ.pop(SERVE_VARIABLE, None):
            start_store(job.directory)
        become(job_file)
    os.execv(sys.executable, [sys.executable, "-m", "allpull.observe.rank", job_file, module])  # noqa: S606


def variables(environ: Mapping[str, str], job: JobFile, host: str) -> Dict[str, str]:
    """The variables that torch, Gloo and our own rank read, derived from ``environ``.

    Rank 0 serves the store of the process group on the interface of MASTER_ADDR only; torch would listen on all.

    Raises:
        KeyError: no MASTER_PORT.
        OSError: the address of the first host cannot be resolved, or there is no route.
    """
    rank, ranks, local_rank = numbers(environ)
    master = environ.get("MASTER_ADDR", LOOPBACK)
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": local_ranks(environ) or str(ranks // job.spec["launch"]["hosts"]),
        "MASTER_ADDR": master,
        "MASTER_PORT": environ["MASTER_PORT"],
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch then connects to the store and starts none
        "TORCHELASTIC_RESTART_COUNT": "0",
        HOST_VARIABLE: host,
    }
    chosen = job.interface or environ.get("GLOO_SOCKET_IFNAME") or interface_of(own_address(master))
    if chosen:
        environment["GLOO_SOCKET_IFNAME"] = chosen
    if rank == 0:
        environment[SERVE_VARIABLE] = "1"
    return environment


def local_ranks(environ: Mapping[str, str]) -> str:
    """The number of ranks on this host, from variables of MPI; empty if there are none."""
    counts = (environ.get(name, "") for name in LOCAL_RANKS)
    return next((number for number in counts if number.isdecimal() and number.isascii() and number != "0"), "")


def describe(job: JobFile, host: str) -> None:
    """Describe this host and start its sidecar, which watches our parent: it started all ranks of the host."""
    whole_json(os.path.join(job.directory, layout.host_file(host)), describe_host(job.directory, host=host))
    clock = clock_pings.AUTO if job.spec["launch"]["hosts"] > 1 else clock_pings.NONE
    start_detached(job, host, watch=os.getppid(), clock=clock)


def start_store(directory: str) -> None:
    """Start a process that serves the store of the process group on rank 0's host, for a wrapped command."""
    where = [os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]]
    command = [sys.executable, "-m", "allpull.observe.store", *where]
    with open(os.path.join(directory, layout.STORE_LOG), "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
