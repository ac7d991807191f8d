"""What launchers need to start ranks, for real and on this machine alone: OpenSSH servers, a Slurm, hosts of an MPI.

Plain context managers, because tests and benchmarks both use them: ``conftest`` wraps them as fixtures. Each leaves
nothing running and says in words where it cannot be had. Nothing here needs systemd, munge or another machine.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

PATIENCE_S = 120.0  # two cores that others use too
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SLURM_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol", "sinfo")


class Unavailable(Exception):
    """A service cannot be had on this machine; the message says why."""


@dataclass(frozen=True, kw_only=True)
class SshHosts:
    """Names that ssh knows, and the folder that puts an ``ssh`` with their configuration on the PATH."""

    names: tuple[str, ...]
    path: Path
    folder: Path
    servers: tuple[subprocess.Popen[bytes], ...]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach them."""
        return {"PATH": f"{self.path}:{os.environ['PATH']}"}

    @property
    def programs(self) -> Path:
        """A folder that is first on the PATH of these hosts."""
        return self.folder / "programs"

    def processes(self) -> list[psutil.Process]:
        """Agents, ranks and sidecars of jobs on these hosts that run now; other tests have hosts of their own."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            ours = any(word.startswith("allpull.observe.") for word in words)
            if ours and any(word.startswith(f"{self.folder}/") for word in words):
                found.append(process)
        return found

    def left(self) -> list[str]:
        """What stands in the hosts' scratch folders."""
        listing = [[str(self.path / "ssh"), name, 'ls "$TMPDIR"'] for name in self.names]
        return [name for one in listing for name in subprocess.check_output(one, text=True).split()]


@contextmanager
def ssh_hosts(hidden: Path) -> Iterator[SshHosts]:
    """Two servers on loopback ports, throw-away keys; each has a folder for scratch of its own.

    Neither sees what is in ``hidden``, so that runs in there are on no file system that hosts share.

    Raises:
        Unavailable: OpenSSH or rsync is missing, or we are not root.
    """
    missing = [tool for tool in ("ssh", "ssh-keygen", "unshare", "mount", "rsync") if shutil.which(tool) is None]
    if missing or not Path(SSHD).exists():
        raise Unavailable(f"not installed: {', '.join(missing) or 'openssh-server'}")
    if os.geteuid() != 0:
        raise Unavailable("needs root, to give each server folders of its own")
    folder = Path(tempfile.mkdtemp(prefix="allpull-test-ssh-", dir="/var/tmp"))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        yield _serve(folder, servers, hidden)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        for process in psutil.process_iter(["cmdline"]):  # what a failed test left running
            if any(str(folder) in word for word in process.info["cmdline"] or []):
                process.kill()
        shutil.rmtree(folder)


def _serve(folder: Path, servers: list[subprocess.Popen[bytes]], hidden: Path) -> SshHosts:
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    (folder / "scratch").mkdir()
    (folder / "programs").mkdir()
    known, config = [], []
    names = ("node1", "node2")
    ports = free_ports(len(names))
    for name, port in zip(names, ports, strict=True):
        server_config = folder / f"{name}.sshd"
        server_config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"SetEnv TMPDIR={folder}/scratch PATH={folder}/programs:/usr/local/bin:/usr/bin:/bin\n"
            "StrictModes no\nUsePAM no\nPidFile none\n"
            "PasswordAuthentication no\nPermitRootLogin yes\n"
        )
        mounts = [f"mount -t tmpfs -o mode=1777 tmpfs {place}" for place in (hidden, folder / "scratch")]
        private = " && ".join([*mounts, f"exec {SSHD} -D -f {server_config}"])
        servers.append(subprocess.Popen(["unshare", "-m", "sh", "-c", private], stderr=subprocess.DEVNULL))
        known.append(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
        config.append(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n")
    (folder / "known").write_text("".join(known))
    config.append(f"Host wrongkey\n  HostName 127.0.0.1\n  Port {ports[0]}\n")
    config.append(f"  User root\n  IdentityFile {folder}/host\nHost nobody\n  HostName 127.0.0.1\n  Port 9\n")
    config.append(f"Host *\n  UserKnownHostsFile {folder}/known\n  IdentitiesOnly yes\n")
    (folder / "config").write_text("".join(config))
    (folder / "bin").mkdir()
    wrapper = folder / "bin/ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    for name in names:
        until(partial(_answers, wrapper, name), f"the sshd of {name} did not come up")
    return SshHosts(names=names, path=folder / "bin", folder=folder, servers=tuple(servers))


def _answers(ssh: Path, name: str) -> bool:
    command = [str(ssh), "-o", "BatchMode=yes", name, "true"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A running Slurm of two hosts, n1 and n2; ``folder`` holds its configuration, state and logs."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs so that Slurm's commands find this Slurm."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def run(self, *command: str, check: bool = True) -> str:
        """What ``command`` says on stdout; unless told otherwise it must succeed."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def state(self, number: str) -> str:
        """State and reason of one job."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T %r")


SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port0}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
FirstJobId={first_job}
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=8
PartitionName=debug Nodes=ALL Default=YES State=UP MaxTime=60
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Slurm with hosts n1 and n2; all of it is ended by the process ids that were noted when it was started.

    Raises:
        Unavailable: one of Slurm's programs is missing.
    """
    missing = [name for name in SLURM_PROGRAMS if shutil.which(name) is None and not Path(f"/usr/sbin/{name}").exists()]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (Debian: slurm-wlm)")
    for name in ("state", "n1", "n2", "tmp-n1", "tmp-n2"):
        (folder / name).mkdir()
    ports = {f"port{number}": port for number, port in enumerate(free_ports(3))}
    first_job = 1 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])  # ports follow from it
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(host=host, user=user, folder=folder, first_job=first_job, **ports)
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    cluster = SlurmCluster(folder=folder)
    environment = {**os.environ, **cluster.environment}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name, *options in (["slurmctld"], ["slurmd", "-N", "n1"], ["slurmd", "-N", "n2"]):
            program = shutil.which(name, path=environment["PATH"]) or name
            with (folder / "daemons.log").open("ab") as log:
                command = [program, "-D", *options]
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment))
        until(lambda: cluster.run("sinfo", "-h", "-o", "%t %D", check=False) == "idle 2", "Slurm did not come up")
        try:
            yield cluster
        finally:
            cluster.run("scancel", "--full", f"--user={getpass.getuser()}")
            until(lambda: not cluster.run("squeue", "--noheader"), "jobs do not end")
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(60)


@dataclass(frozen=True, kw_only=True)
class MpiHosts:
    """A host file for mpirun: this machine, and once more under the name of elsewhere; two slots each."""

    hostfile: Path
    environment: dict[str, str]


def mpi_hosts(folder: Path) -> MpiHosts:
    """Two hosts for OpenMPI, the second reached by a stand-in for ssh that runs OpenMPI's daemon on this machine.

    Raises:
        Unavailable: there is no mpirun.
    """
    if shutil.which("mpirun") is None:
        raise Unavailable("not installed: mpirun (Debian: openmpi-bin)")
    agent = folder / "agent"
    agent.write_text('#!/bin/sh\nhost=$1; shift\nALLPULL_HOST=$host exec sh -c "$*"\n')
    agent.chmod(0o755)
    path = folder / "host file"
    path.write_text("localhost slots=2\nelsewhere slots=2\n")
    return MpiHosts(hostfile=path, environment={"OMPI_MCA_plm_rsh_agent": str(agent)})


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(happened: Callable[[], object], otherwise: str) -> None:
    """Wait for ``happened``; after ``PATIENCE_S`` seconds fail with ``otherwise``."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
