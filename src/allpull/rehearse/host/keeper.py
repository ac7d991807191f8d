"""The process that holds a virtual cluster for its job: makes the network, starts ranks, changes links, cleans up.

``python -m allpull.rehearse.host.keeper ORDER.json --ready FD``. It is a separate process so that allpull stays in the
machine's network, and so that the cluster is removed if allpull is killed. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from allpull.errors import AllpullError, MissingPart
from allpull.rehearse.host import network, ownership
from allpull.rehearse.host.frame_delay import relay, tap
from allpull.rehearse.host.namespaces import bind, enter_private_namespaces, fresh_folder, inside, new_net
from allpull.rehearse.host.order import RANK_PLACEHOLDER, Order, load
from allpull.rehearse.host.reports import Reports
from allpull.rehearse.host.truth import FirstSteps, Moments
from allpull.rundir import layout
from allpull.rundir.write import whole_file

FORK_SERVER = "allpull.rehearse.ranks.fork_server"
ETC_HOSTS = Path("/etc/hosts")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  a mount point, not a file of ours
TICK_S = 0.05  # how soon a change that is due, or an end, is noticed
FORK_SERVER_EXTRA_S = 5.0  # the fork server gives its ranks the grace time, and then writes its last records
NO_NAMESPACES = (
    "run it as root, or let users make namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0); allpull rehearse --unshaped runs the same ranks without them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The virtual network: a descriptor of each host's namespace, and the process that delays frames, if any."""

    nets: tuple[int, ...]
    relay_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServer:
    """The process that starts the ranks, and the reports of its hosts.

    Closing ``go`` starts all ranks, and closing ``zero`` starts the time of planned kills.
    """

    process: subprocess.Popen[bytes]
    reports: Reports
    go: int
    zero: int


class Stop:
    """Counts the requests to end."""

    def __init__(self) -> None:
        self.requests = 0
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._count)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # allpull passes Ctrl-C on

    def _count(self, _: int, __: FrameType | None) -> None:
        self.requests += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of an order file on its cluster; the exit code is the fork server's."""
    parser = argparse.ArgumentParser(prog="python -m allpull.rehearse.host.keeper")
    parser.add_argument("order", type=Path)
    parser.add_argument(
        "--ready", type=int, required=True, help="descriptor that gets a message when the hosts are ready"
    )
    options = parser.parse_args(arguments)
    order = load(options.order)
    ownership.end_with_parent(order.owner_pid, signal.SIGTERM)
    stop = Stop()
    try:
        world = make(order)
    except AllpullError as error:
        _report(options.ready, {"error": error.message, "hint": error.hint, "missing": isinstance(error, MissingPart)})
        return error.exit_code
    ownership.end_with_parent(order.owner_pid, signal.SIGTERM)  # again: the kernel forgets it with a change of user
    fork_server = start_fork_server(options.order, world)
    _report(options.ready, {"hosts": len(world.nets)})
    try:
        code = watch(order, world, fork_server, stop)
    finally:
        ownership.end_all(order.cluster)
        ownership.release(Path(order.state_file))
    return code


def _report(descriptor: int, message: dict[str, object]) -> None:
    with suppress(OSError):  # the launcher has ended
        os.write(descriptor, json.dumps(message).encode() + b"\n")
    os.close(descriptor)


def make(order: Order) -> World:
    """Make hosts, links and names, in namespaces that live as long as the processes in them.

    Raises:
        MissingPart: the kernel does not allow namespaces, or cannot delay packets.
        AllpullError: a command failed.
    """
    try:
        enter_private_namespaces()
        nets = tuple(new_net() for _ in order.hosts)
    except OSError as error:
        raise MissingPart(f"this system does not let us make namespaces ({error})", hint=NO_NAMESPACES) from error
    relay_pid = None
    cables: network.Cables = "plain"
    if order.topology.latency_s > 0:
        cables = "netem" if network.has_netem() else "relay"
    if cables == "relay":
        relay_pid = start_relay(nets, order.topology.latency_s)
    network.run(network.plan(order.topology, cables), nets)
    network.choose_congestion_control(nets)
    network.limit_tcp_retries(nets)
    _name_hosts(order)
    with suppress(OSError):  # what ranks leave in shared memory then ends with the cluster
        fresh_folder(SHARED_MEMORY)
    return World(nets=nets, relay_pid=relay_pid)


def start_relay(nets: Sequence[int], latency_s: float) -> int:
    """Make the TAP devices of all hosts and start the process that forwards frames between them; returns its id.

    Raises:
        MissingPart: the TUN driver cannot be used.
    """
    cables = []
    try:
        for host, net in enumerate(nets):
            with inside(net):
                at_host = tap(network.INTERFACE)
            cables.append((at_host, tap(f"h{host}")))
    except OSError as error:
        raise MissingPart(
            f"latency needs the kernel's netem (module sch_netem) or /dev/net/tun; neither can be used here ({error})",
            hint="load the module, or leave latency out of the cluster file",
        ) from error
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        ownership.end_with_parent(keeper, signal.SIGKILL)
        relay(cables, latency_s)
    for at_host, at_switch in cables:
        os.close(at_host)
        os.close(at_switch)
    return pid


def _name_hosts(order: Order) -> None:
    """Let every host find the others by name."""
    lines = ["127.0.0.1 localhost"]
    for index, host in enumerate(order.hosts):
        # torch's store looks up its clients by the IPv6 form of the address, and without one waits for a name server
        lines += [f"{network.address(index)} {host.name}", f"::ffff:{network.address(index)} {host.name}"]
    path = Path(order.directory) / layout.CLUSTER_HOSTS
    whole_file(str(path), "\n".join(lines) + "\n")
    if ETC_HOSTS.exists():  # without it, hosts are reached by address only
        bind(path, ETC_HOSTS)


def start_fork_server(order_file: Path, world: World) -> ForkServer:
    """Start the process that starts the ranks."""
    reports, report = os.pipe()
    go, own_go = os.pipe()
    zero, own_zero = os.pipe()
    command = [sys.executable, "-m", FORK_SERVER, str(order_file), "--parent", str(os.getpid())]
    command += ["--nets", ",".join(map(str, world.nets))]
    command += ["--reports", str(report), "--go", str(go), "--zero", str(zero)]
    theirs = (report, go, zero)
    process = subprocess.Popen(command, pass_fds=(*world.nets, *theirs), env=fork_server_environment(os.environ))
    for descriptor in theirs:
        os.close(descriptor)
    return ForkServer(process=process, reports=Reports(reports), go=own_go, zero=own_zero)


def fork_server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without another launcher's variables of ranks, and with a placeholder for RANK."""
    foreign = ("TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    kept = {name: value for name, value in environ.items() if not name.startswith(foreign)}
    return {**kept, "RANK": RANK_PLACEHOLDER}


def watch(order: Order, world: World, fork_server: ForkServer, stop: Stop) -> int:
    """Wait for the fork server, make changes when due, and pass on a request to end.

    Returns its exit code; 128 + n if signal n ended it.
    """
    course = Course(order, world, fork_server)
    while fork_server.process.poll() is None:
        if stop.requests or _has_ended(world.relay_pid):
            _end(order, fork_server.process, stop)
            break
        course.advance()
        time.sleep(TICK_S)
    code = fork_server.process.wait()
    course.read_reports()
    return 128 - code if code < 0 else code


class Course:
    """The course of a rehearsal: all hosts are ready, ranks start, all end their first step, changes are made in turn.

    With ``order.zero`` "start", changes count from the start of the ranks.
    """

    def __init__(self, order: Order, world: World, fork_server: ForkServer) -> None:
        self._order, self._world, self._fork_server = order, world, fork_server
        self._todo = sorted((change for change in order.changes if change.kind != "kill"), key=lambda one: one.at_s)
        self._kills = {change.number: change for change in order.changes if change.kind == "kill"}
        self._moments = Moments(Path(order.truth_file))
        self._first_steps = FirstSteps(order.directory, order.ranks)
        self._ready_hosts: set[int] = set()
        self._started = False
        self._zero_s: float | None = None

    def advance(self) -> None:
        """Do what is due: at most one stage or change."""
        self.read_reports()
        if not self._started:
            if len(self._ready_hosts) == len(self._order.hosts):
                os.close(self._fork_server.go)  # every host notices at once, and starts its ranks
                self._started = True
        elif self._zero_s is None:
            if self._order.zero == "start" or self._first_steps.are_made():
                os.close(self._fork_server.zero)
                self._zero_s = self._moments.begin(self._order.zero)
        elif self._todo and time.monotonic() - self._zero_s >= self._todo[0].at_s:
            change = self._todo.pop(0)
            network.run(network.batches_of(change, self._order.topology), self._world.nets)
            self._moments.add(change, time.monotonic_ns())

    def read_reports(self) -> None:
        """Process what hosts have reported since the last call."""
        for report in self._fork_server.reports.read():
            if "ready" in report:
                self._ready_hosts.add(report["ready"])
            elif "clock" in report:
                self._moments.add_clock(report["clock"])
            elif "killed" in report:
                self._moments.add(self._kills[report["killed"]], report["monotonic_ns"])


def _has_ended(relay_pid: int | None) -> bool:
    """Whether the process that delays frames has ended, and with it every link; then it says so on stderr."""
    if relay_pid is None or os.waitpid(relay_pid, os.WNOHANG) == (0, 0):
        return False
    sys.stderr.write("the process that delays frames between hosts has ended\n")
    return True


def _end(order: Order, fork_server: subprocess.Popen[bytes], stop: Stop) -> None:
    """End the fork server by SIGTERM, then kill what is left of the cluster.

    It waits for the grace time, but not once allpull is dead or requests the end again.
    """
    fork_server.terminate()
    deadline = time.monotonic() + order.grace_s + FORK_SERVER_EXTRA_S
    while fork_server.poll() is None and time.monotonic() < deadline:
        if stop.requests > 1 or os.getppid() != order.owner_pid:
            break
        time.sleep(TICK_S)
    ownership.end_all(order.cluster)


if __name__ == "__main__":
    sys.exit(main())
