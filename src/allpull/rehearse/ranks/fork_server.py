"""Start the ranks of a virtual cluster: import torch once, fork a process for each host, and its ranks from that.

``python -m allpull.rehearse.ranks.fork_server ORDER.json --nets FD,FD… --reports FD --go FD --zero FD --parent
PID``. Each host process enters its network namespace, sets its host name, reports that it is ready, and, when all
are, forks its ranks, which run ``allpull.observe.rank`` as under any launcher. Eight ranks thus cost one import.
Only a host whose wall clock is wrong is a new program, executed under libfaketime.

The kernel ties children to their parents: when a process dies, its descendants are killed.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGUSR1
from typing import NoReturn

from allpull.observe import clock_pings
from allpull.observe.rank.command import become
from allpull.observe.sidecar import start as sidecar
from allpull.rehearse.host import fake_clock, ownership
from allpull.rehearse.host.namespaces import UTS, enter_net, unshare
from allpull.rehearse.host.network import INTERFACE, address, rank_variables
from allpull.rehearse.host.order import RANK_PLACEHOLDER, HostOrder, Order, load
from allpull.rehearse.host.reports import send
from allpull.rehearse.ranks.children import Bell, Ended, Kills, attend
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import whole_json

HOST_EXTRA_S = 2.0  # a host gives its ranks the grace time, and then records how they ended
RANK_AFTERMATH_S = 0.5  # from the first failed rank to ending the others: the cause may still be being reported
HOST_AFTERMATH_S = 1.0  # the same between hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """Descriptors from the keeper: the hosts' network namespaces, and where a host reports.

    The other end of ``go`` closes when all hosts are ready, that of ``zero`` at the moment from which kills count.
    """

    nets: tuple[int, ...]
    reports: int
    go: int
    zero: int

    def options(self) -> list[str]:
        """The descriptors as command-line arguments of ``main``."""
        pairs = {"nets": ",".join(map(str, self.nets)), "reports": self.reports, "go": self.go, "zero": self.zero}
        return [word for name, value in pairs.items() for word in (f"--{name}", str(value))]

    def close(self) -> None:
        """Close all of them in this process."""
        for descriptor in (*self.nets, self.reports, self.go, self.zero):
            os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fork server, or with ``--host`` one of its hosts; returns an exit code, also in the forked hosts."""
    parser = argparse.ArgumentParser(prog="python -m allpull.rehearse.ranks.fork_server")
    parser.add_argument("order", type=Path)
    parser.add_argument("--nets", required=True, help="descriptors of the hosts' network namespaces")
    parser.add_argument("--reports", type=int, required=True, help="descriptor on which a host reports")
    parser.add_argument("--go", type=int, required=True, help="descriptor that ends when all hosts are ready")
    parser.add_argument("--zero", type=int, required=True, help="descriptor that ends when the time of kills begins")
    parser.add_argument("--parent", type=int, required=True, help="process with which this one ends")
    parser.add_argument("--host", type=int, help="run only this host")
    options = parser.parse_args(arguments)
    ownership.end_with_parent(options.parent, SIGKILL)
    order = load(options.order)
    nets = tuple(map(int, options.nets.split(",")))
    wires = Wires(nets=nets, reports=options.reports, go=options.go, zero=options.zero)
    if options.host is None:
        return be_fork_server(order, options.order, wires)
    wrong = fake_clock.adapt_process(os.environ)
    import_once()
    return be_host(order, options.host, wires, sidecar_environ=wrong)


def import_once() -> None:
    """Import what every rank needs, before forking."""
    import torch._dynamo  # the first DDP of a process imports it: 800 modules  # noqa: PLC0415
    import torch.distributed  # noqa: PLC0415
    import torch.nn.parallel  # noqa: F401, PLC0415

    import allpull.observe.rank  # noqa: F401, PLC0415

    gc.collect()
    gc.freeze()  # keep shared pages shared: collecting garbage in a rank would copy every page that it visits


def be_fork_server(order: Order, order_file: Path, wires: Wires) -> int:
    """Start all hosts and wait until the last has ended.

    Returns the exit code of the first that failed; 128 + n if signal n ended the job; 0 if none failed.
    """
    own_clocks = {index: host for index, host in enumerate(order.hosts) if host.has_own_clock}
    hosts = {execute_host(host, index, order_file, wires): index for index, host in own_clocks.items()}
    import_once()
    bell = Bell()
    fork_server = os.getpid()
    for index in range(len(order.hosts)):
        if index in own_clocks:
            continue
        pid = os.fork()
        if pid == 0:
            bell.leave_to_parent()
            ownership.end_with_parent(fork_server, SIGKILL)
            return be_host(order, index, wires, sidecar_environ=dict(os.environ))
        hosts[pid] = index
    wires.close()
    ended = attend(hosts, bell, grace_s=order.grace_s + HOST_EXTRA_S, aftermath_s=HOST_AFTERMATH_S)
    return ended.code


def execute_host(host: HostOrder, index: int, order_file: Path, wires: Wires) -> int:
    """Start a host with a wrong wall clock as a separate program; returns its process id."""
    library = fake_clock.library()
    assert library is not None  # the launcher has checked
    variables = fake_clock.environment(library, host.clock_offset_s, host.clock_drift_ppm, fake_clock.reading()[1])
    command = [sys.executable, "-m", "allpull.rehearse.ranks.fork_server", str(order_file), "--host", str(index)]
    command += [*wires.options(), "--parent", str(os.getpid())]
    pid = os.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, **variables})  # noqa: S606  no shell is wanted
    return pid


def be_host(order: Order, index: int, wires: Wires, *, sidecar_environ: dict[str, str]) -> int:
    """Run host ``index``: its network, name, ranks and records.

    Returns the exit code of its first failed rank; 128 + n if signal n ended the host; 0 if no rank failed.
    """
    host, here = order.hosts[index], os.getpid()
    enter_net(wires.nets[index])
    unshare(UTS)
    socket.sethostname(host.name)
    job = JobFile.read(order.job_file)
    _describe(host, order.directory)
    if host.has_own_clock:
        monotonic_ns, ahead_ns = fake_clock.ahead(sidecar_environ)
        clock = {"host": host.name, "monotonic_ns": monotonic_ns, "ahead_ns": ahead_ns}
        send(wires.reports, clock={**clock, "drift_ppm": host.clock_drift_ppm})
    send(wires.reports, ready=index)
    os.read(wires.go, 1)
    bell = Bell()
    rank_variable = _initial_rank()
    ranks: dict[int, int] = {}
    for local_rank, rank in enumerate(host.ranks):
        pid = os.fork()
        if pid == 0:
            bell.leave_to_parent()
            wires.close()
            ownership.end_with_parent(here, SIGKILL)
            end_as_program(lambda: be_rank(order, host, local_rank, rank_variable, sidecar_environ))  # noqa: B023  called at once
        ranks[pid] = rank
    counting = _start_sidecar(job, order, index, sidecar_environ)
    ended = attend(
        ranks,
        bell,
        grace_s=order.grace_s,
        aftermath_s=RANK_AFTERMATH_S,
        kills=Kills(_planned_kills(order, ranks), wires.zero, lambda rank: _tell_killed(wires, rank)),
        on_failure=_tell_fork_server,
    )
    sidecar.stop(counting)
    _write_ending(order, host.name, ended)
    return ended.code


def be_rank(
    order: Order, host: HostOrder, local_rank: int, rank_variable: int | None, program_environ: Mapping[str, str]
) -> None:
    """Run one rank: set torchrun's variables, then observe the job's module, or replace this process by the command.

    ``program_environ`` holds the variables that give a newly executed program this host's clock.
    """
    from allpull.observe.rank.__main__ import main as observed  # noqa: PLC0415  imports torch

    rank = host.ranks[local_rank]
    if rank_variable is not None:
        ctypes.memmove(rank_variable, f"{rank:0{len(RANK_PLACEHOLDER)}d}".encode(), len(RANK_PLACEHOLDER))
    os.environ.update(
        rank_variables(rank, local_rank, order.ranks, len(host.ranks), order.port), ALLPULL_HOST=host.name
    )
    if not order.module:
        os.environ.update(fake_clock.program_variables(program_environ, order.directory))
        become(order.job_file)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all ranks would draw the same numbers; ``random`` reseeds itself
    observed(order.job_file, order.module)


def end_as_program(program: Callable[[], None]) -> NoReturn:
    """Run ``program`` and end this forked process as Python would: threads joined, exit functions called.

    Only memory is not freed object by object, as that would copy all shared pages just to discard them.
    """
    code = 0
    try:
        program()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            sys.stderr.write(f"{stop.code}\n")
    except BaseException:  # noqa: BLE001  whatever it is, it ends the program
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does after a fork
    atexit._run_exitfuncs()
    leave(code)


def leave(code: int) -> NoReturn:
    """End this process at once, after flushing its output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _initial_rank() -> int | None:
    """The address of RANK's placeholder in the environment that this program was executed with; None: absent.

    The sidecar identifies ranks by this variable in /proc/PID/environ, which shows that memory and no later ``setenv``.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    pointer: int | None = libc.getenv(b"RANK")
    return pointer if pointer is not None and ctypes.string_at(pointer) == RANK_PLACEHOLDER.encode() else None


def _describe(host: HostOrder, directory: str) -> None:
    from allpull.observe.host import describe_host  # noqa: PLC0415

    record = describe_host(directory, host=host.name)
    record["nics"] = [{"name": INTERFACE, "bits_per_s": host.link_bits_per_s}]
    whole_json(f"{directory}/{layout.host_file(host.name)}", record)


def _planned_kills(order: Order, ranks: dict[int, int]) -> list[tuple[float, int]]:
    pids = {rank: pid for pid, rank in ranks.items()}
    return [(item.at_s, pids[item.number]) for item in order.changes if item.kind == "kill" and item.number in pids]


def _tell_killed(wires: Wires, rank: int) -> None:
    send(wires.reports, killed=rank, monotonic_ns=time.monotonic_ns())


def _tell_fork_server() -> None:
    os.kill(os.getppid(), SIGUSR1)  # it ends the other hosts, even while a rank of ours is still ending


def _start_sidecar(job: JobFile, order: Order, index: int, environ: dict[str, str]) -> subprocess.Popen[bytes] | None:
    host, part = order.hosts[index].name, clock_pings.NONE
    if job.counters and len(order.hosts) > 1:
        part = clock_pings.ASK if index else clock_pings.serving_role(order.directory, host=host, address=address(0))
    through = ["allpull.rehearse.host.fake_clock"] if "FAKETIME" in environ else []
    return sidecar.start(job, host, watch=os.getpid(), clock=part, environ=environ, through=through)


def _write_ending(order: Order, host: str, ended: Ended) -> None:
    failures = [{"rank": one.name, "pid": one.pid, "exit_code": one.exit_code} for one in ended.failures]
    ending = {"host": host, "code": ended.code, "failures": failures}
    if ended.stopped_by is not None:
        ending["stopped_by"] = ended.stopped_by
    whole_json(f"{order.directory}/{layout.ended_file(host)}", ending)


if __name__ == "__main__":
    leave(main())
