"""Run a job with mpirun: every rank is a process of MPI, so that MPI inside the program works too.

OpenMPI, and the MPICH family with its ``mpiexec`` (MPICH, Intel MPI). Ranks get their number from MPI's
variables (``observe.rank.mpi``). ``--launcher mpi`` is this host, or the hosts of a Slurm or PBS job that we are in;
``mpi:HOSTFILE`` names others. All hosts must share the run directory.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from allpull.errors import BadInput, MissingPart
from allpull.launch import container
from allpull.launch.echo import STDERR, Log
from allpull.launch.host_endings import HostEnding, endings_from_ranks
from allpull.launch.hostfile import entries
from allpull.launch.hostlist import expand
from allpull.launch.job import RECORDED_VARIABLES, Job, environment, with_secrets
from allpull.launch.memory_check import check_memory
from allpull.launch.ports import check_port, choose_port
from allpull.launch.process_tree import ProcessTree
from allpull.launch.running import Running
from allpull.launch.shell_script import python_of, shell_script
from allpull.rundir import layout
from allpull.rundir.read.lenient import log_tail

CANCEL_EXTRA_S = 5.0
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "ALLPULL_RESUME")
"""Variables that other hosts need besides those that are recorded."""

_CODE = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code: +(\d+)")  # OpenMPI
_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where mpirun starts ranks: ``program`` is its path, ``flavour`` openmpi or hydra, ``master`` rank 0's host."""

    program: str
    flavour: str
    hostfile: str
    master: str
    port: int


class Mpi:
    """The launcher of a machine that has mpirun; ``hostfile`` may be empty."""

    def __init__(self, hostfile: str = "") -> None:
        self._hostfile = hostfile
        self._port = 0  # chosen once, so that the plan is what is submitted

    def plan(self, job: Job) -> str:
        """The mpirun command, with what it adds to the environment."""
        check_memory(job)
        site = self._site(job)
        shown = variables(replace(job, secrets=""), site, {})
        return shell_script(job, shown, command(job, site))

    def submit(self, job: Job) -> MpiJob:
        """Start ``job`` under mpirun.

        Raises:
            MissingPart: there is no mpirun here, or not the container's runtime.
            BadInput: the host file cannot be read, no hosts are named, or the ranks do not fit in memory.
        """
        check_memory(job)
        inside = container.check(job.spec.container)
        check_port(job.spec.launch.port)
        return MpiJob(job, self._site(job), inside)

    def _site(self, job: Job) -> Site:
        program, flavour = find_mpirun()
        hosts = job.spec.launch.hosts
        self._port = job.spec.launch.port or self._port or choose_port(one_host=hosts == 1)
        return Site(
            program=program,
            flavour=flavour,
            hostfile=str(Path(self._hostfile).resolve()) if self._hostfile else "",
            master="127.0.0.1" if hosts == 1 and not self._hostfile else first_host(self._hostfile, os.environ),
            port=self._port,
        )


class MpiJob(Running):
    """A job that mpirun runs; ``inside`` has the versions in its container, if it has one."""

    def __init__(self, job: Job, site: Site, inside: Mapping[str, str | None]) -> None:
        self._job = job
        self._inside = inside
        log = job.directory / layout.MPIRUN_LOG
        shown = () if job.program is None else ("stdout",)
        self.output = [Log(path=log, stream=STDERR)] if shown else []
        variables_of_rank = variables(job, site, os.environ)
        self._mpirun = ProcessTree(command(job, site), log=log, environment=variables_of_rank, shown=shown)

    def poll(self) -> list[HostEnding] | None:
        """How each host ended, or None while mpirun runs."""
        code = self._mpirun.poll()
        if code is None:
            return None
        log = "\n".join(log_tail(self._job.directory, layout.MPIRUN_LOG, lines=200))
        ended = endings_from_ranks(
            self._job.directory,
            self._job.spec.launch.ranks,
            code,
            first=blamed(log),
            log_tail=log_tail(self._job.directory, layout.MPIRUN_LOG),
        )
        return [replace(host, versions=self._inside) for host in ended]

    def cancel(self, grace_s: float) -> None:
        """Ask mpirun to end its ranks; a little after ``grace_s`` seconds, kill what is left here."""
        self._mpirun.cancel(grace_s + CANCEL_EXTRA_S if grace_s > 0 else 0)

    def warn(self) -> bool:
        """Have the ranks write a checkpoint and stop: mpirun passes the signal on to all of them."""
        self._mpirun.signal(signal.SIGUSR1)
        return True


def command(job: Job, site: Site) -> list[str]:
    """The mpirun command of ``job``."""
    launch = job.spec.launch
    rank = [*python_of(job), "-m", "allpull.observe.rank.mpi", str(job.file)]
    rank += [job.module] if job.program is None else []
    if site.flavour == "hydra":
        hosts = ["-f", site.hostfile] if site.hostfile else []
        return [site.program, *hosts, "-n", str(launch.ranks), "-ppn", str(launch.ranks // launch.hosts), *rank]
    options = ["--hostfile", site.hostfile] if site.hostfile else []
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if not site.hostfile and launch.ranks // launch.hosts > (psutil.cpu_count(logical=False) or 1):
        options.append("--oversubscribe")  # by default OpenMPI has one slot per core
    if launch.hosts > 1 or site.hostfile:
        options += ["--map-by", f"ppr:{launch.ranks // launch.hosts}:node"]
    # OpenMPI would bind small jobs to a core each, where a rank's threads and loader workers disturb it
    options += ["--bind-to", "none"]
    options += [word for name in sorted(exported(job, site)) for word in ("-x", name)]
    return [site.program, "-np", str(launch.ranks), *options, *rank]


def variables(job: Job, site: Site, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpirun: ``inherited``, with the threads and the rendezvous address of the ranks."""
    ours = {**environment(job.spec, inherited), "MASTER_ADDR": site.master, "MASTER_PORT": str(site.port)}
    return with_secrets(job, ours) if job.secrets else ours


def exported(job: Job, site: Site) -> set[str]:
    """Names of the variables that OpenMPI passes to other hosts (-x)."""
    all_variables = variables(job, site, os.environ)
    added = variables(job, site, {})
    parallel_start = ("SLURM_", "OMPI_", "PMI_", "PMIX_")  # variables of the parallel start that we run in
    return {
        name
        for name in all_variables
        if name in added
        or name in PASSED_ON
        or (name.startswith(RECORDED_VARIABLES) and not name.startswith(parallel_start))
    }


def find_mpirun() -> tuple[str, str]:
    """The program that starts MPI processes here, and its flavour: openmpi or hydra.

    Raises:
        MissingPart: there is none, or its flavour is unknown.
    """
    version_text = ""
    for program in ("mpirun", "mpiexec"):
        try:
            answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        version_text = (answer.stdout + answer.stderr).strip()
        if flavour := flavour_of(version_text):
            return program, flavour
    first = version_text.splitlines()[0][:200] if version_text else "no mpirun or mpiexec on this machine"
    raise MissingPart(
        f"launcher mpi: {first}", hint="install or load OpenMPI, MPICH or Intel MPI, or use another launcher"
    )


def flavour_of(version: str) -> str | None:
    """The flavour of an mpirun from its ``--version``.

    >>> flavour_of("mpirun (Open MPI) 4.1.4"), flavour_of("HYDRA build details:\\n Version: 4.0.2")
    ('openmpi', 'hydra')
    """
    if "Open MPI" in version or "OpenRTE" in version:
        return "openmpi"
    return "hydra" if re.search(r"HYDRA|Intel\(R\) MPI|MPICH", version) else None


def hosts_of(hostfile: str, environ: Mapping[str, str]) -> list[str]:
    """The hosts of ``hostfile``, each once, in order; else those of the Slurm or PBS job that we run in; else none.

    Raises:
        BadInput: the file cannot be read or names no host.
    """
    if not hostfile and environ.get("SLURM_JOB_NODELIST"):
        return expand(environ["SLURM_JOB_NODELIST"])
    path = hostfile or environ.get("PBS_NODEFILE", "")
    if not path:
        return []
    names = (entry.partition(":")[0] for entry in entries(path))  # hydra writes host:slots
    # other hosts have a localhost of their own
    hosts = list(dict.fromkeys(socket.gethostname() if name == "localhost" else name for name in names if name))
    if not hosts:
        raise BadInput(f"the host file {path} names no host", hint="a host a line, such as node1 slots=2")
    return hosts


def first_host(hostfile: str, environ: Mapping[str, str]) -> str:
    """The host of rank 0.

    Raises:
        BadInput: as ``hosts_of``, or no hosts are named.
    """
    hosts = hosts_of(hostfile, environ)
    if not hosts:
        raise BadInput("launcher mpi: nothing says which hosts there are", hint="name them: launcher mpi:HOSTFILE")
    return hosts[0]


def blamed(log: str) -> tuple[int, int] | None:
    """Rank and exit code (negative: signal) of the process that failed first, by OpenMPI's log.

    >>> blamed("mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).")
    (1, -9)
    """
    if match := _SIGNAL.search(log):
        return int(match.group(1)), -int(match.group(2))
    if match := _CODE.search(log):
        return int(match.group(1)), int(match.group(2))
    return None
