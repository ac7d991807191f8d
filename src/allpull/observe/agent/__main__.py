"""Start the ranks of one host with torch's elastic agent, and record how each ended.

``python -m allpull.observe.agent JOB.json``. torchrun is a command line over the same agent; calling the agent from
here adds what torchrun lacks: the exit code of every rank, and a rendezvous that listens on one interface only.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from allpull.observe import clock_pings, scratch
from allpull.observe.agent.elastic import elastic_agent
from allpull.observe.agent.rendezvous import FixedHosts, HostsDisconnected, JobHost, first_line
from allpull.observe.host import describe_host
from allpull.observe.identity import HOST_VARIABLE
from allpull.observe.interface import interface_of, no_way, own_address
from allpull.observe.out_of_memory import OomKills
from allpull.observe.process import end_with_parent, leave
from allpull.observe.sidecar import start as sidecar
from allpull.observe.store import listen
from allpull.observe.versions import versions
from allpull.rundir import layout
from allpull.rundir.job_file import SECRETS_VARIABLE, JobFile
from allpull.rundir.write import no_follow, whole_json

LOOPBACK = "127.0.0.1"
OUR_PROGRAMS = "allpull."  # they meet by ``backend.ranks_store``
NO_SECRETS = 66  # our exit code where the job file is not whole: EX_NOINPUT of sysexits.h
NO_HOST = 68  # our exit code where the first host cannot be found: EX_NOHOST of sysexits.h
MIN_FILES = 24  # with fewer, torch's store tries to connect for two minutes
FEW_FILES = 71  # our exit code where they are not allowed: EX_OSERR
PORT_TAKEN = 98  # our exit code where the port is in use: EADDRINUSE on Linux
LOST = 124  # our exit code where a host is gone, as in launch.ssh


def main(job_file: str, place: JobHost) -> int:
    """Run the ranks of this host; returns the exit code of the first rank that failed, or 0."""
    end_with_parent(signal.SIGTERM)
    job = JobFile.read(job_file)
    if job.masked:
        reason = f"the secrets that {job_file} masks did not reach this host: start the job again with allpull"
        return give_up(job, place, NO_SECRETS, reason)
    try:
        choose_interface(job.interface, place.master)
    except OSError as error:
        return give_up(job, place, NO_HOST, no_way(place.master, error))
    listener = None
    if not meets_in_files(job, place):
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed < MIN_FILES:
            reason = f"only {allowed} open files are allowed (ulimit -n); torch's agent needs {MIN_FILES}"
            return give_up(job, place, FEW_FILES, reason)
        try:
            listener = listen(place.master, place.port) if place.index == 0 else None
        except OSError as error:
            reason = f"cannot listen on {place.master} port {place.port}: {error.strerror}"
            return give_up(job, place, PORT_TAKEN, reason)
    if job.command:
        redirect_log(os.path.join(job.directory, layout.torch_log(place.name)))
    os.environ[HOST_VARIABLE] = place.name
    out_of_memory = OomKills()
    record = describe_host(job.directory, host=place.name)
    whole_json(os.path.join(job.directory, layout.host_file(place.name)), record)
    counting = sidecar.start(job, place.name, watch=os.getpid(), clock=clock_part(job, place))
    try:
        ended = run_ranks(job, place, listener, job_file)
    finally:
        sidecar.stop(counting)
    if ended["code"]:
        ended.setdefault("reason", out_of_memory.sentence(place.name))
    write_ending(job, place, ended)
    return int(ended["code"])


def meets_in_files(job: JobFile, place: JobHost) -> bool:
    """Whether ranks meet in a file: ours on a single host. Other programs expect the port that torchrun has."""
    return place.hosts == 1 and job.module.startswith(OUR_PROGRAMS) and not job.command


def redirect_log(path: str) -> None:
    """Append Python's stderr and the output of every logger of this process to ``path``; children keep their own.

    This keeps messages of torch's agent out of the output of the program that it runs. A handler whose stream cannot
    be set stays as it is: that of ``logging.lastResort`` and of dill, which torch imports, reads ``sys.stderr`` anyway.

    Raises:
        OSError: ``path`` cannot be written.
    """
    spoken = (sys.stdout, sys.stderr)
    log = open(  # noqa: SIM115  until we end
        path, "a", buffering=1, encoding="utf-8", errors="backslashreplace", opener=no_follow
    )
    for handler in _handlers():
        with contextlib.suppress(Exception):  # no handler of a library may end the job
            if isinstance(handler, logging.StreamHandler) and handler.stream in spoken:
                handler.setStream(log)
    sys.stderr = log


def _handlers() -> Iterator[logging.Handler]:
    """The handlers of all loggers: each module of torch has its own."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from list(logger.handlers)


def write_ending(job: JobFile, place: JobHost, ended: Dict[str, Any]) -> None:
    """Record how the ranks of this host ended, and the versions that they ran with."""
    path = os.path.join(job.directory, layout.ended_file(place.name))
    record = {"host": place.name, "index": place.index, "versions": versions(), **ended}
    try:
        whole_json(path, record)
    except OSError as error:  # a full or read-only disk, which may be what ended the ranks
        with contextlib.suppress(OSError):  # the log is on the same disk
            sys.stderr.write(f"cannot write {path}: {error.strerror}\n")
        whole_json(os.path.join(scratch.make(job.directory, place.name), scratch.ENDING), record)


def give_up(job: JobFile, place: JobHost, code: int, reason: str) -> int:
    """Record and print why this host cannot take part; returns ``code``."""
    sys.stderr.write(f"{reason}\n")
    write_ending(job, place, {"code": code, "reason": f"host {place.name}: {reason}", "failures": []})
    return code


def warned(number: int, _: object) -> NoReturn:
    """Pass a warning signal to torch's agent, which forwards it and waits for its ranks.

    Only the first: a second one would end the wait. (torch's own handler takes signals of
    TORCHELASTIC_SIGNALS_TO_HANDLE since 2.10; we do not list this one there.)
    """
    signal.signal(number, signal.SIG_IGN)
    raise SignalException(f"warned by signal {number}", signal.Signals(number))


def ignore_endings() -> None:
    """Ignore signals that end this process: its ranks have ended, and it still records how.

    The end of a connection sends two, a hangup and the death of our parent.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def choose_interface(interface: str, master: str) -> None:
    """Have Gloo use ``interface``, else the one in the environment, else the one with the route to host 0.

    By itself Gloo takes the interface that the host name resolves to, which may have no route to other hosts.
    """
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    routed = interface_of(own_address(master))
    if routed is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", routed)


def run_ranks(job: JobFile, place: JobHost, listener: Optional[socket.socket], job_file: str) -> Dict[str, Any]:
    """Start the ranks of this host and wait for them; returns ``code``, ``stopped_by``, ``failures`` and ``finished``.

    If hosts lost contact, ``reason`` says so, and ``failures`` are those that led to the restart.
    """
    folder = scratch.make(job.directory, place.name)  # for torch's agent too: it would leave its own behind
    files = folder if meets_in_files(job, place) else ""
    hosts = FixedHosts(place, listener, job.nonce, job.directory, files=files)
    command = ["-m", "allpull.observe.rank", job_file, job.module]
    if job.command:
        command = ["-m", "allpull.observe.rank.command", job_file]
    ranks = job.ranks // place.hosts
    try:
        agent = elastic_agent(command, ranks, hosts, restarts=job.max_restarts, logs=folder)
        try:
            signal.signal(signal.SIGUSR1, warned)
            result = agent.run()
            if result.is_failed():
                hosts.failed()
        except SignalException as stopped:
            return {"code": 128 + int(stopped.sigval), "stopped_by": int(stopped.sigval), "failures": []}
        except (HostsDisconnected, DistError) as error:
            reason = f"the hosts of the job lost each other: {first_line(error)}"
            sys.stderr.write(f"{reason}\n")
            failures = failure_records(agent.failures, agent.by_themselves)
            return {"code": exit_code(failures) if failures else LOST, "reason": reason, "failures": failures}
        finally:
            ignore_endings()
            hosts.shutdown()
    finally:
        scratch.remove(folder)
    failures = failure_records(result.failures, agent.by_themselves)
    return {
        "code": exit_code(failures) if result.is_failed() else 0,
        "failures": failures,
        "finished": agent.finished,
    }


def failure_records(failures: Mapping[int, ProcessFailure], by_themselves: Sequence[int]) -> List[Dict[str, Any]]:
    """The failed ranks, in plain values; ``raised`` is the exception that a rank of ours left to the agent.

    ``was_ended``: it is not one of those that ended ``by_themselves``, None: that is not known of any.
    """
    return [
        {
            "rank": rank,
            "pid": failure.pid,
            "exit_code": failure.exitcode,
            "was_ended": rank not in by_themselves if by_themselves else None,
            "raised": failure.error_file_data.get(scratch.RAISED)
            if isinstance(failure.error_file_data, dict)
            else None,
        }
        for rank, failure in sorted(failures.items())
    ]


def exit_code(failures: List[Dict[str, Any]]) -> int:
    """The exit code for a shell: the first that is not from our SIGTERM; 128 + n for signal n; 1 without failures."""
    codes = [failure["exit_code"] for failure in failures]
    own = [code for code in codes if code != -signal.SIGTERM] or codes or [1]
    code: int = own[0]
    return code if code > 0 else 128 - code


def clock_part(job: JobFile, place: JobHost) -> clock_pings.ClockRole:
    """This host's part in comparing clocks: if there are several hosts, the others query host 0."""
    if place.hosts == 1 or not job.counters:
        return clock_pings.NONE
    if place.index > 0:
        return clock_pings.ASK
    return clock_pings.serving_role(job.directory, host=place.name, address=place.master)


def read_arguments(arguments: List[str]) -> Tuple[str, JobHost]:
    """The job file and this host; without options it is the only host of its job, on the loopback interface."""
    parser = argparse.ArgumentParser(prog="python -m allpull.observe.agent")
    parser.add_argument("job_file")
    parser.add_argument("--host-index", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--master", default=LOOPBACK, help="address of host 0, on the interface to listen on")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default=socket.gethostname(), help="name of this host in the records")
    parser.add_argument("--secrets", default="", help="file with what the job file masks; it is read and removed")
    parser.add_argument("--from-slurm", action="store_true", help="take index and name from this task of srun")
    given = parser.parse_args(arguments)
    if given.secrets:
        take_secrets(given.secrets)
    if given.from_slurm:
        given.host_index, given.hosts = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_STEP_NUM_NODES"])
        given.name = os.environ["SLURMD_NODENAME"]
    place = JobHost(index=given.host_index, hosts=given.hosts, master=given.master, port=given.port, name=given.name)
    return given.job_file, place


def take_secrets(path: str) -> None:
    """Move the secrets of the job from a file into the environment, where the processes of the job find them.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        os.environ[SECRETS_VARIABLE] = file.read()
    os.unlink(path)


if __name__ == "__main__":
    # without joining threads, one of which may wait for a host that is gone; a log that is full ends no training
    leave(main(*read_arguments(sys.argv[1:])), needs_output=False)
