"""Sample the counters of a host and its ranks into ``counters/<host>.jsonl``: one process per host.

``python -m allpull.observe.sidecar --run DIR --host NAME --watch PID --interval-s S``. ``rank_registry`` knows the
ranks, ``process_tree``, ``host_counters``, ``tcp_links`` and ``gpus`` read counters, and ``clock_pings`` compares the
clock of this host with another's. It ends when PID does, or on SIGTERM.

``process_tree`` and ``host_counters`` need psutil. Where it is not installed, as in some users' environments, the
header says so, and clocks are compared all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ...kernel import Tree, WatchedProcess
from ...rundir import layout
from ...rundir.write import Appender, private_folder, whole_json
from .. import clock_pings
from ..host import describe_host
from ..interface import own_address
from .gpus import find_gpus
from .rank_registry import RankRegistry

SCHEMA = "allpull.counters/1.6"
NO_PSUTIL = "psutil is not installed there"
NICENESS = 10  # the ranks go first
POLL_S = 0.2  # how soon the end of PID, or a signal, is noticed
LAST_PINGS_S = 1.0  # a job that has ended waits no longer for the sidecar
BUDGET = 1 << 30  # bytes
LOOPBACK = ("127.", "::1")

Reader = Callable[[], Dict[str, Any]]
Clock = Union[clock_pings.Server, clock_pings.Asker]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Sample until the watched process ends or a signal arrives; the exit code is 1 if the file cannot be written."""
    options = _options(arguments)
    is_stopped, watched = _end_by_signal(), WatchedProcess(options.watch)
    _be_nice()
    _describe(options.run, options.host)
    path = os.path.join(options.run, layout.counters_file(options.host))
    try:
        private_folder(os.path.dirname(path))
    except OSError as error:
        _say(f"no counters: {error.strerror or error}")
        return 1
    appender = Appender(path, options.budget, on_trouble=lambda reason: _say(f"counters end: {reason}"), on_thin=_thin)
    interval_ns = int(options.interval_s * 1e9)
    readers, sources, no_counters = _readers(options)
    _write(appender, _header(options.host, interval_ns, sources, no_counters), keep=True)
    clock = _start_clock(options, os.environ.get(clock_pings.NONCE_VARIABLE, "")) if appender.is_open else None
    if readers or clock is not None:
        _sample_until(appender, interval_ns, readers, clock, lambda: is_stopped() or not watched.is_alive())
    if options.clock == "auto" and isinstance(clock, clock_pings.Server):
        clock_pings.withdraw_server(options.run)  # another attempt may run on other hosts
    sound = appender.is_open
    appender.close()
    return 0 if sound else 1


def _sample_until(
    appender: Appender, interval_ns: int, readers: List[Reader], clock: Optional[Clock], over: Callable[[], bool]
) -> None:
    """Take a sample now, then every ``interval_ns``, and a last one when ``over()``."""
    _write(appender, _sample(readers))
    due_ns = time.monotonic_ns() + interval_ns
    ended = False
    while appender.is_open and not ended:
        ended = _wait(due_ns, over)
        if ended and clock is not None:
            clock.finish(LAST_PINGS_S)
        pings = clock.news() if isinstance(clock, clock_pings.Asker) else {}
        if readers or pings or ended:
            mark = {"last": True} if ended else {}  # without it a reader could not see that the end of the file is lost
            _write(appender, {**_sample(readers), **pings, **mark}, keep=ended or bool(pings))
        due_ns = max(due_ns + interval_ns, time.monotonic_ns())


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m allpull.observe.sidecar", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument("--host", required=True, help="name of this host in the records")
    parser.add_argument("--watch", required=True, type=int, help="end with this process; ranks are its descendants")
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between samples")
    parser.add_argument(
        "--budget", type=int, default=BUDGET, help="bytes of the file, beyond which samples are thinned out"
    )
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument(
        "--serve-clock", type=int, metavar="FD", help="answer other hosts' pings on this listening socket"
    )
    clock.add_argument("--ask-clock", action="store_true", help=f"ping the host that {layout.CLOCK} names")
    clock.add_argument("--clock", choices=("auto",), help="serve pings if no other host does yet")
    parser.add_argument("--clock-every-s", type=float, default=60.0, help="seconds between bursts of pings")
    options = parser.parse_args(arguments)
    for name in ("interval_s", "clock_every_s"):
        if not 0.01 <= getattr(options, name) <= 86400:
            parser.error(f"--{name.replace('_', '-')} takes 0.01 to 86400 seconds")
    return options


def _readers(options: argparse.Namespace) -> Tuple[List[Reader], List[str], Optional[str]]:
    """The functions that read the parts of each sample, their sources, and why ranks are not counted, if so."""
    readers: List[Reader] = []
    sources: List[str] = []
    no_counters = None
    try:
        from . import host_counters  # noqa: PLC0415  needs psutil
        from .process_tree import ProcessTree  # noqa: PLC0415  as above
        from .tcp_links import Links  # noqa: PLC0415  of the processes that tree finds
    except ImportError:
        no_counters = NO_PSUTIL
    else:
        tree = ProcessTree(options.watch, RankRegistry(options.run, options.host))
        readers += [host_counters.look, lambda: {"ranks": tree.ranks()}, Links(tree.pids).look]
        sources += host_counters.sources()
    gpus = find_gpus()
    if gpus is not None and gpus.sources():
        readers.append(lambda: {"gpus": gpus.look()})
        sources += gpus.sources()
    return readers, sources, no_counters


def _start_clock(options: argparse.Namespace, nonce: str) -> Optional[Clock]:
    """Start this host's part in comparing clocks; None: it has none, or cannot take it."""
    if not nonce:
        return None
    asks, listener = options.ask_clock, None
    try:
        if options.serve_clock is not None:
            listener = socket.socket(fileno=options.serve_clock)
        elif options.clock == "auto":
            master = os.environ.get("MASTER_ADDR")
            asks = not master or not own_address(master).startswith(LOOPBACK)  # else all ranks are on this host
            listener = _claim(options.run, options.host, master or socket.gethostname()) if asks else None
    except OSError as error:
        _say(f"clocks are not compared: {error.strerror or error}")
        return None
    if listener is not None:
        return clock_pings.Server(listener, nonce)
    if asks:
        return clock_pings.Asker(options.run, host=options.host, nonce=nonce, every_s=options.clock_every_s)
    return None


def _claim(run: str, host: str, towards: str) -> Optional[socket.socket]:
    """A listening socket on the route ``towards`` another host, if this host is the first to claim the server role.

    An address published by this host itself is left over from an earlier attempt.

    Raises:
        OSError: this host has no such address, or the run directory cannot be written.
    """
    place = clock_pings.server_address(run)
    address = own_address(towards)
    if (place is not None and place["host"] != host) or address.startswith(LOOPBACK):
        return None
    listener = clock_pings.listen(address)
    ours = {"address": address, "port": listener.getsockname()[1], "host": host}
    if place is not None:
        clock_pings.publish_server(run, ours)
    elif not clock_pings.claim_server(run, ours):
        listener.close()
        return None
    return listener


def _end_by_signal() -> Callable[[], bool]:
    """Take SIGTERM and SIGHUP as a request to end; Ctrl-C is for the launcher, which then ends us in its own order."""
    received: List[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: received.append(which))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a warning, which is for the ranks
    return lambda: bool(received)


def _be_nice() -> None:
    try:
        os.nice(NICENESS)
    except OSError:
        pass  # harmless: it sleeps most of the time


def _wait(due_ns: int, over: Callable[[], bool]) -> bool:
    """Sleep until ``due_ns``; True as soon as ``over()``."""
    while not over():
        left_s = (due_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return False
        time.sleep(min(left_s, POLL_S))
    return True


def _write(appender: Appender, record: Dict[str, Any], *, keep: bool = False) -> None:
    now_ns = time.monotonic_ns()
    appender.add(json.dumps(record, separators=(",", ":")), now_ns, keep=keep)
    appender.flush(now_ns)


def _describe(run: str, host: str) -> None:
    """Describe this host if no agent has: a command that starts its own ranks has no agents."""
    path = os.path.join(run, layout.host_file(host))
    if os.path.exists(path):
        return
    try:
        private_folder(os.path.dirname(path))
        whole_json(path, describe_host(run, host=host))
    except OSError as error:
        _say(f"this host is not described: {error.strerror or error}")


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"allpull sidecar: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # stderr is closed


def _thin(keep_one_in: int) -> None:
    _say(f"the counters file nears its budget: one sample in {keep_one_in} is kept from now on")


def _header(host: str, interval_ns: int, sources: List[str], no_counters: Optional[str]) -> Dict[str, Any]:
    before_ns = time.monotonic_ns()
    realtime_ns = time.time_ns()
    return {
        "schema": SCHEMA,
        "host": host,
        "boot_id": Tree().text("proc/sys/kernel/random/boot_id"),
        "clock": {"monotonic_ns": (before_ns + time.monotonic_ns()) // 2, "realtime_ns": realtime_ns},
        "interval_ns": interval_ns,
        "sources": sources,
        "no_counters": no_counters,
        "marks_last": True,
    }


def _sample(readers: List[Reader]) -> Dict[str, Any]:
    """``schema.counters.CounterSample`` in plain values."""
    sample: Dict[str, Any] = {"t_ns": time.monotonic_ns()}
    for look in readers:
        sample.update(look())
    return sample


if __name__ == "__main__":
    sys.exit(main())
