"""Start the ranks of one host with torch's elastic agent, and write down how each ended.

``python -m allpull.observe.agent JOB.json``. torchrun is a command line over the same agent; calling it from here
keeps what torchrun throws away: the exit code of every rank, and a rendezvous that listens on one interface only.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from allpull.observe import clock_pings
from allpull.observe.agent.elastic import elastic_agent
from allpull.observe.agent.log import speak_into
from allpull.observe.agent.rendezvous import Apart, FixedHosts, Place, first_line
from allpull.observe.host import describe_host
from allpull.observe.identity import HOST_VARIABLE
from allpull.observe.interface import interface_of, no_way, own_address
from allpull.observe.process import end_with_parent, leave
from allpull.observe.sidecar import start as sidecar
from allpull.observe.store import listen
from allpull.observe.versions import versions
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import whole_json

LOOPBACK = "127.0.0.1"
NO_HOST = 68  # our exit code where the first host cannot be found: EX_NOHOST of sysexits.h
PORT_TAKEN = 98  # our exit code for it: the number of EADDRINUSE on Linux
LOST = 124  # and for a host that is gone, as launch.ssh has it


def main(job_file: str, place: Place) -> int:
    """Run this host's part of the job of ``job_file``; the exit code is that of the first rank that failed."""
    end_with_parent(signal.SIGTERM)
    job = JobFile.read(job_file)
    try:
        choose_interface(job.interface, place.master)
    except OSError as error:
        return give_up(job, place, NO_HOST, no_way(place.master, error))
    listener = None
    if place.index == 0:
        try:
            listener = listen(place.master, place.port)
        except OSError as error:
            reason = f"cannot listen on {place.master} port {place.port}: {error.strerror}"
            return give_up(job, place, PORT_TAKEN, reason)
    if job.command:
        speak_into(os.path.join(job.directory, layout.LOGS, f"torch-{layout.slug(place.name)}.log"))
    os.environ[HOST_VARIABLE] = place.name
    record = describe_host(job.directory, host=place.name)
    whole_json(os.path.join(job.directory, layout.host_file(place.name)), record)
    counting = sidecar.start(job, place.name, watch=os.getpid(), clock=clock_part(job, place))
    try:
        ended = run_ranks(job, place, listener, job_file)
    finally:
        sidecar.stop(counting)
    say_ended(job, place, ended)
    return int(ended["code"])


def say_ended(job: JobFile, place: Place, ended: Dict[str, Any]) -> None:
    """Write down how this host's ranks ended, and what they ran with."""
    path = os.path.join(job.directory, layout.ended_file(place.name))
    whole_json(path, {"host": place.name, "index": place.index, "versions": versions(), **ended})


def give_up(job: JobFile, place: Place, code: int, reason: str) -> int:
    """Say why this host cannot take part; the exit ``code``."""
    sys.stderr.write(f"{reason}\n")
    say_ended(job, place, {"code": code, "reason": f"host {place.name}: {reason}", "failures": []})
    return code


def warned(number: int, _: object) -> NoReturn:
    """Hand a warning to torch's agent, which passes it on and waits for its ranks.

    Once is enough: a second one would end the wait. So does torch's own handler, which since 2.10 takes the signals of
    TORCHELASTIC_SIGNALS_TO_HANDLE, and is not asked to take this one.
    """
    signal.signal(number, signal.SIG_IGN)
    raise SignalException(f"warned by signal {number}", signal.Signals(number))


def choose_interface(asked: str, master: str) -> None:
    """Let Gloo use the interface that was asked for, else the user's own choice, else the one that leads to host 0.

    Left alone, Gloo takes the one that this host's own name resolves to, which need not lead anywhere.
    """
    if asked:
        os.environ["GLOO_SOCKET_IFNAME"] = asked
    interface = interface_of(own_address(master))
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def run_ranks(job: JobFile, place: Place, listener: Optional[socket.socket], job_file: str) -> Dict[str, Any]:
    """Start this host's ranks, wait for them, and tell how they ended: ``code``, ``stopped_by`` and ``failures``.

    ``reason`` is there where hosts lost each other; ``failures`` are then those for which a restart was called.
    """
    hosts = FixedHosts(place, listener, job.nonce, job.directory)
    command = ["-m", "allpull.observe.rank", job_file, job.module]
    if job.command:
        command = ["-m", "allpull.observe.rank.command", job_file]
    ranks = job.ranks // place.hosts
    with tempfile.TemporaryDirectory(prefix="allpull-elastic-") as logs:  # else the agent leaves a folder behind
        agent = elastic_agent(command, ranks, hosts, restarts=job.max_restarts, logs=logs)
        try:
            signal.signal(signal.SIGUSR1, warned)
            result = agent.run()
            if result.is_failed():
                hosts.failed()
        except SignalException as stopped:
            return {"code": 128 + int(stopped.sigval), "stopped_by": int(stopped.sigval), "failures": []}
        except (Apart, DistError) as error:
            reason = f"the hosts of the job lost each other: {first_line(error)}"
            sys.stderr.write(f"{reason}\n")
            failures = told(agent.failures)
            return {"code": exit_code(failures) if failures else LOST, "reason": reason, "failures": failures}
        finally:
            hosts.shutdown()
    failures = told(result.failures)
    return {"code": exit_code(failures) if result.is_failed() else 0, "failures": failures}


def told(failures: Mapping[int, ProcessFailure]) -> List[Dict[str, int]]:
    """The ranks that failed, as they are written down."""
    return [
        {"rank": rank, "pid": failure.pid, "exit_code": failure.exitcode} for rank, failure in sorted(failures.items())
    ]


def exit_code(failures: List[Dict[str, int]]) -> int:
    """What a shell would see: the first code that is not a victim's; 128 + n for signal n; 1 where nobody failed."""
    codes = [failure["exit_code"] for failure in failures]
    own = [code for code in codes if code != -signal.SIGTERM] or codes or [1]
    return own[0] if own[0] > 0 else 128 - own[0]


def clock_part(job: JobFile, place: Place) -> clock_pings.Part:
    """The part of this host in comparing clocks: where there are several, the others ask host 0."""
    if place.hosts == 1 or not job.counters:
        return clock_pings.NONE
    if place.index > 0:
        return clock_pings.ASK
    return clock_pings.serve(job.directory, host=place.name, address=place.master)


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
    leave(main(*read_arguments(sys.argv[1:])))  # a thread may wait for a host that is gone, and will not be joined
