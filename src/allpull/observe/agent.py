"""Start the ranks of one host with torch's elastic agent, and write down how each ended.

``python -m allpull.observe.agent JOB.json``. torchrun is a command line over the same agent; calling it from here
keeps what torchrun throws away: the exit code of every rank, and a rendezvous that listens on one interface only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from allpull.observe.host import describe_host
from allpull.observe.interface import interface_of, own_address
from allpull.observe.meeting import listen
from allpull.observe.rank import HOST_VARIABLE, end_with_parent
from allpull.rundir import layout
from allpull.rundir.write import whole_json

LOOPBACK = "127.0.0.1"
BACKEND = "allpull"
RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
PORT_TAKEN = 98  # our exit code for it: the number of EADDRINUSE on Linux


class Place:
    """This host among the hosts of the job, its name in the records, and where host 0 listens."""

    def __init__(self, *, index: int, hosts: int, master: str, port: int, name: str) -> None:
        self.index = index
        self.hosts = hosts
        self.master = master
        self.port = port
        self.name = name


class FixedHosts(RendezvousHandler):
    """The rendezvous of a job whose hosts are known: host 0 listens on one interface, the others call it there.

    torch's own handlers listen on every interface, where anyone who can reach the port may join or stop the job.
    """

    def __init__(self, place: Place, listener: Optional[socket.socket], nonce: str) -> None:
        self._place = place
        self._listener = listener
        self._nonce = nonce
        self._store: Optional[TCPStore] = None

    def get_backend(self) -> str:
        """The name that it is registered under."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in this store too, so no second port is opened."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A store, and our place among the hosts.

        Ranks that are started again get a new store: in the old one Gloo would find the addresses of the dead.
        """
        place = self._place
        if self._store is not None:
            self._listener = listen(place.master, 0)
        self._store = self._open()
        meeting = RendezvousStoreInfo(place.master, self._store.port)
        return RendezvousInfo(PrefixStore(self._nonce, self._store), place.index, place.hosts, meeting)

    def _open(self) -> TCPStore:
        place = self._place
        if self._listener is None:
            return TCPStore(place.master, place.port, timeout=RENDEZVOUS_TIMEOUT, wait_for_workers=False)
        port, descriptor = self._listener.getsockname()[1], self._listener.detach()  # the store owns the socket now
        return TCPStore(
            place.master,
            port,
            is_master=True,
            timeout=RENDEZVOUS_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )

    def is_closed(self) -> bool:
        """It ends with the job."""
        return False

    def set_closed(self) -> None:
        """Nothing to close before the job ends."""

    def num_nodes_waiting(self) -> int:
        """No host joins later."""
        return 0

    def get_run_id(self) -> str:
        """The nonce of the job."""
        return self._nonce

    def shutdown(self) -> bool:
        """Nothing is left to shut down."""
        return True


def main(job_file: str, place: Place) -> int:
    """Run this host's part of the job of ``job_file``; the exit code is that of the first rank that failed."""
    end_with_parent(signal.SIGTERM)
    with open(job_file, encoding="utf-8") as file:
        job: Dict[str, Any] = json.load(file)
    listener = None
    if place.index == 0:
        try:
            listener = listen(place.master, place.port)
        except OSError as error:
            sys.stderr.write(f"cannot listen on {place.master} port {place.port}: {error.strerror}\n")
            return PORT_TAKEN
    choose_interface(job["interface"], place.master)
    os.environ[HOST_VARIABLE] = place.name
    directory = job["directory"]
    whole_json(os.path.join(directory, layout.host_file(place.name)), describe_host(directory, host=place.name))
    sidecar = start_sidecar(job, place.name) if job["counters"] else None
    try:
        ended = run_ranks(job, place, listener, job_file)
    finally:
        if sidecar is not None:
            stop(sidecar)
    whole_json(os.path.join(directory, layout.ended_file(place.name)), {"host": place.name, **ended})
    return int(ended["code"])


def choose_interface(asked: str, master: str) -> None:
    """Let Gloo use the interface that was asked for, else the user's own choice, else the one that leads to host 0.

    Left alone, Gloo takes the one that this host's own name resolves to, which need not lead anywhere.
    """
    if asked:
        os.environ["GLOO_SOCKET_IFNAME"] = asked
    interface = interface_of(own_address(master))
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def run_ranks(job: Dict[str, Any], place: Place, listener: Optional[socket.socket], job_file: str) -> Dict[str, Any]:
    """Start this host's ranks, wait for them, and tell how they ended: ``code``, ``stopped_by`` and ``failures``."""

    def rendezvous(_: RendezvousParameters) -> RendezvousHandler:
        return FixedHosts(place, listener, job["nonce"])

    rendezvous_handler_registry.register(BACKEND, rendezvous)
    command = ["-m", "allpull.observe.rank", job_file, job["module"]]
    try:
        with tempfile.TemporaryDirectory(prefix="allpull-elastic-") as logs:  # else the agent leaves a folder behind
            elastic_launch(launch_config(job, place, logs), sys.executable)(*command)
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "pid": failure.pid, "exit_code": failure.exitcode}
            for rank, failure in sorted(error.failures.items())
        ]
        return {"code": exit_code([failure["exit_code"] for failure in failures]), "failures": failures}
    except SignalException as stopped:
        return {"code": 128 + int(stopped.sigval), "stopped_by": int(stopped.sigval), "failures": []}
    return {"code": 0, "failures": []}


def launch_config(job: Dict[str, Any], place: Place, logs: str) -> LaunchConfig:
    """What torch's agent is told: this host's share of the ranks, and how often they are started again.

    Only where all ranks are here: another host's agent would not count our restart, and its ranks look for ours
    under another number.
    """
    return LaunchConfig(
        min_nodes=place.hosts,
        max_nodes=place.hosts,
        nproc_per_node=job["ranks"] // place.hosts,
        run_id=job["nonce"],
        rdzv_backend=BACKEND,
        rdzv_endpoint=place.master,
        local_addr=place.master if place.index == 0 else None,
        max_restarts=job["max_restarts"] if place.hosts == 1 else 0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )


def exit_code(codes: List[int]) -> int:
    """What a shell would see: the first code that is not a victim's; 128 + n for signal n."""
    own = [code for code in codes if code != -signal.SIGTERM] or codes
    return own[0] if own[0] > 0 else 128 - own[0]


def start_sidecar(job: Dict[str, Any], host: str) -> "subprocess.Popen[bytes]":
    """Start the process that samples the counters of this host; it watches us and our descendants."""
    arguments = ["--run", job["directory"], "--host", host, "--watch", str(os.getpid())]
    arguments += ["--interval-s", str(job["counter_interval_s"]), "--budget", str(job["budget"])]
    return subprocess.Popen([sys.executable, "-m", "allpull.observe.sidecar", *arguments])


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a helper: politely, then not."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_arguments(arguments: List[str]) -> Tuple[str, Place]:
    """The job file and this host's place; without options the only host of its job, on the loopback interface."""
    parser = argparse.ArgumentParser(prog="python -m allpull.observe.agent")
    parser.add_argument("job_file")
    parser.add_argument("--host-index", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--master", default=LOOPBACK, help="address of host 0, on the interface to listen on")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default=socket.gethostname(), help="name of this host in the records")
    parser.add_argument("--from-slurm", action="store_true", help="place and name are those of this task of srun")
    given = parser.parse_args(arguments)
    if given.from_slurm:
        given.host_index, given.hosts = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_STEP_NUM_NODES"])
        given.name = os.environ["SLURMD_NODENAME"]
    place = Place(index=given.host_index, hosts=given.hosts, master=given.master, port=given.port, name=given.name)
    return given.job_file, place


if __name__ == "__main__":
    sys.exit(main(*read_arguments(sys.argv[1:])))
