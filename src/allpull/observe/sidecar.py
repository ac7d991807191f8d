"""Sample the counters of a host and its ranks into ``counters/<host>.jsonl``: one process a host, beside the ranks.

``python -m allpull.observe.sidecar --run DIR --host NAME --watch PID --interval-s S``. Ranks are the descendants
of PID with RANK in the environment that they were started with, each with its own descendants (loader workers).
It ends when PID does, or on SIGTERM.

It and ``family`` are the modules of ``observe`` that need psutil: they run in allpull's own Python, never inside a
rank.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import psutil

from allpull.observe.family import Family
from allpull.observe.kernel import Tree
from allpull.rundir import layout
from allpull.rundir.write import Appender, private_folder

SCHEMA = "allpull.counters/1.0"
NICENESS = 10  # the ranks go first
LOOK_S = 0.2  # how soon the end of PID, or a signal, is noticed
BUDGET = 1 << 30  # bytes
MAX_NICS = 64
IB_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count 32-bit words (InfiniBand PMA PortCounters)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Sample until the watched process or a signal ends it; the exit code is 1 where the file could not be written."""
    options = _options(arguments)
    asked = _ask_by_signal()
    _be_nice()
    family, interval_ns = Family(options.watch), int(options.interval_s * 1e9)
    path = os.path.join(options.run, layout.counters_file(options.host))
    try:
        private_folder(os.path.dirname(path))
    except OSError as error:
        _say(f"no counters: {error.strerror or error}")
        return 1
    appender = Appender(path, options.budget, on_trouble=lambda reason: _say(f"counters end: {reason}"), on_thin=_thin)
    _write(appender, _header(options.host, interval_ns), keep=True)
    _write(appender, _sample(family))
    due_ns = time.monotonic_ns() + interval_ns
    ended = False
    while appender.is_open and not ended:
        ended = _wait(due_ns, lambda: asked() or not family.alive())
        _write(appender, _sample(family), keep=ended)
        due_ns = max(due_ns + interval_ns, time.monotonic_ns())
    sound = appender.is_open
    appender.close()
    return 0 if sound else 1


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m allpull.observe.sidecar", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument("--host", required=True, help="name of this host in the records")
    parser.add_argument("--watch", required=True, type=int, help="process whose descendants are the ranks")
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--budget", type=int, default=BUDGET, help="bytes of the file, over which samples thin out")
    options = parser.parse_args(arguments)
    if not 0.01 <= options.interval_s <= 86400:
        parser.error("--interval-s takes 0.01 to 86400 seconds")
    return options


def _ask_by_signal() -> Callable[[], bool]:
    """Take SIGTERM and SIGHUP as a request to end; Ctrl-C is for the launcher, which then ends us in its order."""
    received: List[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: received.append(which))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return lambda: bool(received)


def _be_nice() -> None:
    try:
        os.nice(NICENESS)
    except OSError:
        pass  # no harm: it sleeps nearly always


def _wait(due_ns: int, over: Callable[[], bool]) -> bool:
    """Sleep until ``due_ns``, in naps; true as soon as it is over."""
    while not over():
        left_s = (due_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return False
        time.sleep(min(left_s, LOOK_S))
    return True


def _write(appender: Appender, record: Dict[str, Any], *, keep: bool = False) -> None:
    now_ns = time.monotonic_ns()
    appender.add(json.dumps(record, separators=(",", ":")), now_ns, keep=keep)
    appender.flush(now_ns)


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"allpull sidecar: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody is left to tell


def _thin(keep_one_in: int) -> None:
    _say(f"the counters file nears its budget: one sample in {keep_one_in} is kept from now on")


def _header(host: str, interval_ns: int) -> Dict[str, Any]:
    before_ns = time.monotonic_ns()
    realtime_ns = time.time_ns()
    return {
        "schema": SCHEMA,
        "host": host,
        "boot_id": Tree().text("proc/sys/kernel/random/boot_id"),
        "clock": {"monotonic_ns": (before_ns + time.monotonic_ns()) // 2, "realtime_ns": realtime_ns},
        "interval_ns": interval_ns,
        "sources": [f"psutil {psutil.__version__}", "switches: main thread of each process"],
    }


def _sample(family: Family) -> Dict[str, Any]:
    """``schema.counters.CounterSample`` in plain values; what this system does not say is left out."""
    sample: Dict[str, Any] = {"t_ns": time.monotonic_ns()}
    for look in (_cpu, _memory, _load, _network):
        try:
            sample.update(look())
        except (OSError, ValueError, AttributeError, psutil.Error):
            continue  # a container may hide parts of /proc
    sample["ranks"] = family.ranks()
    return sample


def _cpu() -> Dict[str, Any]:
    cpu = psutil.cpu_times()._asdict()
    idle_s = cpu["idle"] + cpu.get("iowait", 0.0)
    # Linux counts guests in user and nice too; time that the hypervisor stole was no idle time of ours.
    busy_s = sum(cpu.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return {"cpu_ns": round(busy_s * 1e9), "idle_ns": round(idle_s * 1e9)}


def _memory() -> Dict[str, Any]:
    memory = psutil.virtual_memory()
    return {"memory_used_bytes": memory.total - memory.available}


def _load() -> Dict[str, Any]:
    return {"load_1min": os.getloadavg()[0]}


def _network() -> Dict[str, Any]:
    """Bytes of every network interface, and of InfiniBand ports, whose RDMA traffic interfaces do not see."""
    tree = Tree()
    nics = {
        name: {"received_bytes": counts.bytes_recv, "sent_bytes": counts.bytes_sent}
        for name, counts in sorted(psutil.net_io_counters(pernic=True).items())
    }
    for device in tree.names("sys/class/infiniband"):
        for port in tree.names(f"sys/class/infiniband/{device}/ports"):
            folder = f"sys/class/infiniband/{device}/ports/{port}/counters"
            words = [tree.text(f"{folder}/port_{way}_data") or "" for way in ("rcv", "xmit")]
            if all(word.isdecimal() for word in words):
                received, sent = (int(word) * IB_WORD_BYTES for word in words)
                nics[f"{device}/{port}"] = {"received_bytes": received, "sent_bytes": sent}
    return {"nics": dict(list(nics.items())[:MAX_NICS])}


if __name__ == "__main__":
    sys.exit(main())
