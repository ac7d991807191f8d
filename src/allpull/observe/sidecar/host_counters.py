"""Read the counters of a host as a whole: CPUs, memory, load and network. Needs psutil."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import psutil

from ...kernel import Tree

MAX_NICS = 64
IB_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count 32-bit words (InfiniBand PMA PortCounters)


def sources() -> List[str]:
    """The sources of the numbers."""
    return [f"psutil {psutil.__version__}", "switches: main thread of each process"]


def look() -> Dict[str, Any]:
    """The host's part of ``schema.counters.CounterSample``; what this system does not report is left out."""
    counters: Dict[str, Any] = {}
    for part in (_cpu, _memory, _load, _network):
        try:
            counters.update(part())
        except (OSError, ValueError, AttributeError, psutil.Error):
            continue  # a container may hide parts of /proc
    return counters


def _cpu() -> Dict[str, Any]:
    cpu = psutil.cpu_times()._asdict()
    idle_s = cpu["idle"] + cpu.get("iowait", 0.0)
    # Linux counts guests in user and nice too; stolen time is not idle time.
    busy_s = sum(cpu.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return {"cpu_ns": round(busy_s * 1e9), "idle_ns": round(idle_s * 1e9)}


def _memory() -> Dict[str, Any]:
    memory = psutil.virtual_memory()
    return {"memory_used_bytes": memory.total - memory.available}


def _load() -> Dict[str, Any]:
    return {"load_1min": os.getloadavg()[0]}


def _network() -> Dict[str, Any]:
    """Bytes of every network interface, and of InfiniBand ports, whose RDMA traffic interfaces do not count."""
    nics = {
        name: {"received_bytes": counts.bytes_recv, "sent_bytes": counts.bytes_sent}
        for name, counts in sorted(psutil.net_io_counters(pernic=True).items())
    }
    return {"nics": dict(list({**infiniband(Tree()), **nics}.items())[:MAX_NICS])}


def infiniband(tree: Tree) -> Dict[str, Dict[str, int]]:
    """Bytes of every InfiniBand port below ``tree``, by device and port."""
    ports = {}
    for device in tree.names("sys/class/infiniband"):
        for port in tree.names(f"sys/class/infiniband/{device}/ports"):
            folder = f"sys/class/infiniband/{device}/ports/{port}/counters"
            texts = [tree.text(f"{folder}/port_{way}_data") or "" for way in ("rcv", "xmit")]
            if all(word.isdecimal() for word in texts):
                received, sent = (int(word) * IB_WORD_BYTES for word in texts)
                ports[f"{device}/{port}"] = {"received_bytes": received, "sent_bytes": sent}
    return ports
