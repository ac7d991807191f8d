"""What a measurement on this machine depends on, for ``doctor`` to judge: files, limits, versions, a trial of torch.

A fact that the system does not report is None. torch is looked up without importing it; the trial imports it in a
separate process.
"""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from allpull.schema.host import HostRecord

MAX_TEXT = 200  # characters of a failed trial's message
READ_BYTES = 1 << 20

TRIAL = """
import torch.distributed as distributed
if not distributed.is_available():
    raise SystemExit("built without torch.distributed")
if not distributed.is_gloo_available():
    raise SystemExit("built without gloo")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a machine; None where it does not report one."""

    load_1min: float | None = None
    logical_cpus: int | None = None
    physical_cores: int | None = None
    usable_cpus: int | None = None  # by affinity
    quota_cpus: float | None = None  # None: no limit
    omp_num_threads: str | None = None  # None: the variable is not set
    clock_source: str | None = None
    governors: frozenset[str] | None = None
    frequency_driver: str | None = None
    turbo: bool | None = None
    shm_free_bytes: int | None = None  # in /dev/shm
    file_system: str | None = None  # of the run directory
    free_bytes: int | None = None  # there
    exchangeable: str | None = None  # folder on its path in which any user may rename what others made; empty: none
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    open_files: int | None = None  # soft limit
    hypervisor: bool | None = None
    stolen_share: float | None = None  # of CPU time since boot
    container: str | None = None
    python: str
    versions: Mapping[str, str | None]  # of numpy and torch; None: not installed
    torch_trouble: str | None = None  # None: not tried; empty: it works

    @property
    def cores(self) -> float | None:
        """CPUs that ranks can keep busy."""
        known = [count for count in (self.usable_cpus or self.logical_cpus, self.quota_cpus) if count is not None]
        return min(known, default=None)


def read_facts(
    host: HostRecord,
    run_dir: Path,
    *,
    torch_timeout_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Facts:
    """The facts of this machine: those of ``host`` (``observe.host.describe_host``), and what is read here.

    ``run_dir`` is where records would go; it need not exist yet. ``torch_timeout_s``: try to import torch for that
    long (None: do not try). ``root`` is the parent of proc, sys and dev.
    """
    memory = psutil.virtual_memory()
    versions = {name: _version(name) for name in ("numpy", "torch")}
    tried = torch_timeout_s is not None and versions["torch"] is not None
    cpufreq = root / "sys/devices/system/cpu/cpufreq"
    return Facts(
        load_1min=host.load_1min,
        logical_cpus=host.cpu.logical,
        physical_cores=host.cpu.physical,
        usable_cpus=host.cpu.usable,
        quota_cpus=host.cpu.quota,
        omp_num_threads=environment.get("OMP_NUM_THREADS"),
        clock_source=host.clock_source,
        governors=_each(cpufreq, "scaling_governor"),
        frequency_driver=next(iter(sorted(_each(cpufreq, "scaling_driver") or ())), None),
        turbo=_turbo(root),
        shm_free_bytes=_free_bytes(root / "dev/shm"),
        file_system=host.file_system,
        free_bytes=_free_bytes(_nearest(run_dir)),
        exchangeable=_exchangeable(_nearest(run_dir)),
        memory_available_bytes=min([memory.available, *_group_memory_bytes(root)]),
        swap_used_bytes=_swap_used_bytes(),
        open_files=_open_files(),
        hypervisor=_hypervisor(root),
        stolen_share=_stolen_share(),
        container=_container(root, environment),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions=versions,
        torch_trouble=try_torch(torch_timeout_s) if tried and torch_timeout_s is not None else None,
    )


def try_torch(timeout_s: float, python: str = sys.executable) -> str:
    """Why torch cannot run ranks here; empty if it can."""
    command = [python, "-c", TRIAL]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return f"importing it took more than {timeout_s:g} s"
    except (OSError, ValueError) as error:
        return f"Python cannot be started: {error}"[:MAX_TEXT]
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = lines[-1] if lines else f"importing it ended with code {done.returncode}"
    return "".join(character if character.isprintable() else "�" for character in message[:MAX_TEXT])


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(READ_BYTES).decode("utf-8", "replace").strip() or None
    except (OSError, ValueError):
        return None


def _each(cpufreq: Path, name: str) -> frozenset[str] | None:
    """The values of ``name`` in the cpufreq policies of all CPUs."""
    texts = {_text(path) for path in sorted(cpufreq.glob(f"policy*/{name}"))}
    return frozenset(text for text in texts if text) or None


def _turbo(root: Path) -> bool | None:
    """Whether CPUs may exceed their base clock (kernel documentation: admin-guide/pm/intel_pstate, cpufreq)."""
    no_turbo = _text(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    boost = _text(root / "sys/devices/system/cpu/cpufreq/boost")
    if no_turbo in {"0", "1"}:
        return no_turbo == "0"
    return boost == "1" if boost in {"0", "1"} else None


def _nearest(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    try:
        whole = path.absolute()
        return next((folder for folder in (whole, *whole.parents) if folder.is_dir()), whole)
    except (OSError, ValueError):
        return path


def _exchangeable(folder: Path) -> str | None:
    """The nearest folder from ``folder`` upwards that everybody may write to without the sticky bit; empty: none."""
    try:
        whole = folder.resolve(strict=True)
        modes = {place: place.stat().st_mode for place in (whole, *whole.parents)}
    except (OSError, RuntimeError, ValueError):
        return None
    return next((str(place) for place, mode in modes.items() if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), "")


def _free_bytes(folder: Path) -> int | None:
    """Bytes that this user may still write there."""
    try:
        state = os.statvfs(folder)
    except (OSError, ValueError, AttributeError):
        return None
    return state.f_bavail * state.f_frsize


def _group_memory_bytes(root: Path) -> list[int]:
    """Free memory of the control group, in either version; empty if there is no limit."""
    left = []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = (_text(root / "sys/fs/cgroup" / name) or "" for name in (limit, used))
        if most.isdecimal() and now.isdecimal():
            left.append(max(0, int(most) - int(now)))
    return left


def _swap_used_bytes() -> int | None:
    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError, psutil.Error):
        return None


def _open_files() -> int | None:
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _hypervisor(root: Path) -> bool | None:
    """Whether this is a guest, from a CPU flag of x86; other processors report nothing."""
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, flags = line.partition(":")
        if key.strip() == "flags":
            return "hypervisor" in flags.split()
    return None


def _stolen_share() -> float | None:
    times = psutil.cpu_times()._asdict()
    total = sum(
        times.get(name, 0.0) for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    )
    return times["steal"] / total if "steal" in times and total > 0 else None


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "Apptainer"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes"
    marks = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
    return next((name for mark, name in marks.items() if (root / mark).exists()), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
