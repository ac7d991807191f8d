"""Describe the machine that ranks run on, from /proc and /sys. Standard library only.

What a system does not report is None; macOS reports none of it. Only the name of the system, the processor family and
the CPU count come from the interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
import subprocess
from typing import Any, Dict, List, Optional, Set, Tuple

from ..kernel import Tree, cpu_list, cpu_quota, number

SCHEMA = "allpull.host/1.6"  # schema.base.tag("host"), which needs pydantic: a rank has none
MAX_NAME = 200  # characters
MAX_NICS = 64  # a host of containers has hundreds of virtual ones
SMI_TIMEOUT_S = 5.0  # nvidia-smi wakes sleeping devices, which takes seconds
GIB = 1 << 30

VECTOR = (
    *("sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2", "sme"),  # Arm
    *("altivec", "vsx", "mma"),  # POWER
)
"""Flags of the instruction sets by which matrix libraries choose their kernels."""


def describe_host(record_dir: str, *, host: Optional[str] = None, root: str = "/") -> Dict[str, Any]:
    """This machine as a ``schema.host.HostRecord`` in plain values; never raises.

    ``record_dir`` is where records go (its file system is named), ``host`` the name of the machine in the records
    (None: its host name), ``root`` the parent of /proc and /sys, for tests.
    """
    tree = Tree(root)
    system = platform.uname()
    cpu = _cpu(tree, system.machine)
    gpus, driver = _gpus(tree)
    memory_bytes = _memory_bytes(tree)
    same = [cpu[key] for key in ("model", "architecture", "logical", "physical", "vector")]
    # Equal machines differ by a few pages that the kernel reserves, hence whole GiB.
    same += [gpus, driver, None if memory_bytes is None else -(-memory_bytes // GIB), system.system, system.release]
    return {
        "schema": SCHEMA,
        "host": host or socket.gethostname() or "localhost",
        "boot_id": tree.text("proc/sys/kernel/random/boot_id"),
        "os": _os_name(tree) or system.system or "unknown",
        "kernel": f"{system.system} {system.release}".strip() or "unknown",
        "cpu": cpu,
        "gpus": gpus,
        "driver": driver,
        "memory_bytes": memory_bytes,
        "nics": _nics(tree),
        "file_system": _file_system(tree, record_dir),
        "clock_source": tree.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "load_1min": tree.number("proc/loadavg"),
        "topology": (os.environ.get("SLURM_TOPOLOGY_ADDR") or "")[:MAX_NAME] or None,  # srun(1): "s0.s4.node7"
        "fingerprint": hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16],
    }


def _os_name(tree: Tree) -> Optional[str]:
    """Name of the distribution (os-release(5))."""
    match = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+)", tree.read("etc/os-release"), re.MULTILINE)
    return match.group(1)[:MAX_NAME] if match else None


def _cpu(tree: Tree, machine: str) -> Dict[str, Any]:
    info = tree.fields("proc/cpuinfo")
    online = cpu_list(tree.text("sys/devices/system/cpu/online") or "")
    flags = set((info.get("flags") or info.get("Features") or "").split()) | _power_flags(info)
    return {
        "model": _cpu_model(info),
        "architecture": machine or "unknown",
        "logical": len(online) or os.cpu_count(),
        "physical": _physical_cores(tree, online),
        "usable": _usable_cpus(tree, online),
        "quota": cpu_quota(tree),
        "vector": [flag for flag in VECTOR if flag in flags],
    }


def _cpu_model(info: Dict[str, str]) -> Optional[str]:
    for key in ("model name", "cpu model", "cpu", "Hardware"):
        if info.get(key):
            return info[key][:MAX_NAME]
    if "CPU implementer" in info:  # Arm servers give numbers only
        return f"Arm implementer {info['CPU implementer']} part {info.get('CPU part', '?')}"[:MAX_NAME]
    return None


def _power_flags(info: Dict[str, str]) -> Set[str]:
    """POWER reports no flags: VSX came with POWER7, MMA with POWER10."""
    match = re.match(r"POWER(\d{1,2})", info.get("cpu", ""))
    generation = int(match.group(1)) if match else 0
    return {name for name, first in (("altivec", 6), ("vsx", 7), ("mma", 10)) if generation >= first}


def _physical_cores(tree: Tree, online: Set[int]) -> Optional[int]:
    """Distinct groups of logical CPUs that share a core."""
    cores = set()
    for cpu in online:
        siblings = tree.text(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        if siblings is None:
            return None
        cores.add(frozenset(cpu_list(siblings)))
    return len(cores) or None


def _usable_cpus(tree: Tree, online: Set[int]) -> Optional[int]:
    """The CPU affinity of this process; the kernel's list may include CPUs that are not plugged in."""
    allowed = cpu_list(tree.fields("proc/self/status").get("Cpus_allowed_list", ""))
    return len(allowed & online if online else allowed) or None


def _memory_bytes(tree: Tree) -> Optional[int]:
    kib = number(tree.fields("proc/meminfo").get("MemTotal"))
    return None if kib is None else int(kib) * 1024


def _file_system(tree: Tree, path: str) -> Optional[str]:
    """Type of the file system that holds ``path``: the longest mount point above it, the newest of equals."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):
        return None
    above = [mount for mount in tree.mounts() if (real + "/").startswith(mount.point.rstrip("/") + "/")]
    above.sort(key=lambda mount: len(mount.point))  # stable, so the newest of equals stays last
    return above[-1].kind[:MAX_NAME] if above else None


def _nics(tree: Tree) -> List[Dict[str, Any]]:
    """Network interfaces that are not down, then ports of InfiniBand devices, such as ``mlx5_0/1``."""
    nics: List[Dict[str, Any]] = []
    for name in tree.names("sys/class/net"):
        folder = f"sys/class/net/{name}"
        if name != "lo" and tree.text(f"{folder}/operstate") not in (None, "down"):
            megabits = tree.number(f"{folder}/speed")  # -1 or an error: the driver does not report it
            speed = None if megabits is None or megabits <= 0 else int(megabits * 10**6)
            nics.append({"name": name[:MAX_NAME], "bits_per_s": speed})
    for device in tree.names("sys/class/infiniband"):
        for port in tree.names(f"sys/class/infiniband/{device}/ports"):
            folder = f"sys/class/infiniband/{device}/ports/{port}"
            if "ACTIVE" in (tree.text(f"{folder}/state") or ""):
                gigabits = tree.number(f"{folder}/rate")  # such as "100 Gb/sec (4X EDR)"
                speed = None if gigabits is None else int(gigabits * 10**9)
                nics.append({"name": f"{device}/{port}"[:MAX_NAME], "bits_per_s": speed})
    return nics[:MAX_NICS]


def _gpus(tree: Tree) -> Tuple[List[str], Optional[str]]:
    """Names of NVIDIA devices and the version of their driver."""
    folder = "proc/driver/nvidia"
    models = [tree.fields(f"{folder}/gpus/{bus}/information").get("Model") for bus in tree.names(f"{folder}/gpus")]
    names = [model[:MAX_NAME] for model in models if model]
    version = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", tree.text(f"{folder}/version") or "")
    if names or tree.root != "/":
        return names, version.group(0) if version else None
    return _ask_nvidia_smi()


def _ask_nvidia_smi() -> Tuple[List[str], Optional[str]]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return [], None
    rows = [line.rpartition(",") for line in done.stdout.decode(errors="replace").splitlines() if "," in line]
    driver = rows[0][2].strip()[:MAX_NAME] if rows else None
    return [name.strip()[:MAX_NAME] for name, _, _ in rows], driver
