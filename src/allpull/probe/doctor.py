"""Find what on this machine would distort a measurement, and what to do about it.

Pure: ``examine`` judges a record of facts, which ``machine_facts`` reads. A fact that the system does not report gives
the state "unknown", never "ok".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from allpull.probe.machine_facts import Facts
from allpull.schema.probed import Check
from allpull.units import counted, show_bytes

State = Literal["ok", "warn", "bad", "unknown"]
Verdict = tuple[State, str, str]
"""State, finding, and what to do (empty if nothing)."""

MIB, GIB = 1 << 20, 1 << 30
BUSY_LOAD = 0.5  # half a busy process: it slows one rank, and every rank waits for that one
CROWDED_SHARE = 0.5  # of the cores: no rank has a core to itself any more
STOLEN_SHARE = 0.01  # of CPU time: more than on an idle machine
SMALL_SHM_BYTES, SHM_BYTES = 64 * MIB, 1 * GIB  # Docker's default; some batches of images per loader worker
LOW_SPACE_BYTES, SPACE_BYTES = 100 * MIB, 2 * GIB  # the records of one rank may take a GiB
LOW_MEMORY_BYTES, MEMORY_BYTES = 512 * MIB, 2 * GIB  # a rank with torch takes about half a GiB before it trains
SWAPPED_BYTES = 64 * MIB  # less is usual: idle services leave that much
FEW_FILES, FILES = 256, 1024  # macOS's and Linux's defaults; each loader worker takes several
OLDEST_TORCH = (2, 4)

# Read in user space through the vDSO, or one instruction: tens of nanoseconds.
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "tod"})
# Read by a system call and a bus access: a microsecond and more, one reader at a time.
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
SELF_TUNING = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})  # their powersave still speeds up
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "virtiofs"})
PARALLEL_FILE_SYSTEMS = frozenset({"lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "pvfs2", "fuse.glusterfs"})
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


def examine(facts: Facts) -> list[Check]:
    """A verdict on each fact that decides whether measurements here can be trusted."""
    checks = []
    for name, judge in CHECKS.items():
        state, finding, advice = judge(facts)
        checks.append(Check(name=name, state=state, found=finding, advice=advice))
    return checks


def _load(facts: Facts) -> Verdict:
    load, cores = facts.load_1min, facts.cores
    if load is None:
        return "unknown", "the system does not report its load", "check with `top` that nothing else computes here"
    finding = f"load {load:.2f}" + (f" on {cores:g} CPUs" if cores else "")
    advice = "check with `top` what else runs here, end it, and wait a minute before measuring"
    if cores and load >= max(BUSY_LOAD, CROWDED_SHARE * cores):
        return "bad", finding, advice
    return ("warn", finding, advice) if load >= BUSY_LOAD else ("ok", finding, "")


def _cores(facts: Facts) -> Verdict:
    usable, logical, quota = facts.usable_cpus, facts.logical_cpus, facts.quota_cpus
    visible = usable or logical
    if visible is None:
        return "unknown", "the system does not report its CPUs", "set launch.ranks and launch.threads yourself"
    finding = f"{visible} of {logical} CPUs usable" if logical and visible < logical else counted(visible, "CPU")
    if quota is not None and quota < visible:
        most = max(1, int(quota))
        advice = (
            f"use at most {most} rank{'s' if most != 1 else ''} of one thread, or raise the limit "
            "(docker run --cpus, Kubernetes limits.cpu): threads beyond it are paused for tens of milliseconds"
        )
        return ("bad" if quota < 1 else "warn"), f"{finding}, with a quota of {quota:g} CPUs' time", advice
    if visible == 1:
        return "warn", finding, "ranks take turns here: train on one rank, or request more CPUs (--cpus-per-task)"
    return "ok", finding, ""


def _smt(facts: Facts) -> Verdict:
    logical, physical = facts.logical_cpus, facts.physical_cores
    if logical is None or physical is None:
        return "unknown", "the system does not report its cores", "see `lscpu`: Thread(s) per core"
    if physical < logical:
        advice = (
            f"keep ranks × threads at {physical} or fewer: two on one core each get little more than half of its speed"
        )
        return "warn", f"{logical} logical CPUs on {physical} cores", advice
    return "ok", f"{physical} cores, one thread each", ""


def _omp(facts: Facts) -> Verdict:
    text = facts.omp_num_threads
    if text is None:
        return "ok", "not set", ""
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:,[0-9,\s]*)?", text)
    if match is None or int(match.group(1)) == 0:
        return "bad", f"OMP_NUM_THREADS={text[:40]!r} is not a count", "unset OMP_NUM_THREADS"
    threads, finding = int(match.group(1)), f"OMP_NUM_THREADS={int(match.group(1))}"
    if facts.cores is not None and threads > facts.cores:
        return (
            "bad",
            f"{finding} on {facts.cores:g} CPUs",
            "unset it, or set it to CPUs ÷ ranks: threads beyond that wait",
        )
    return "ok", finding, ""


def _clock(facts: Facts) -> Verdict:
    source = facts.clock_source
    if source is None:
        return "unknown", "the system does not name its clock source", ""
    if source in SLOW_CLOCKS:
        advice = (
            "each reading costs microseconds; see why with `dmesg | grep -i clocksource`, and boot with "
            "tsc=reliable clocksource=tsc if the CPU has a constant TSC"
        )
        return "bad", source, advice
    if source in FAST_CLOCKS:
        return "ok", source, ""
    return "warn", source, "not known to be fast; /sys/devices/system/clocksource/ lists the alternatives"


def _governor(facts: Facts) -> Verdict:
    if not facts.governors:
        return "unknown", "CPU frequency is not visible here", "repeat runs, and check their spread"
    finding = ", ".join(sorted(facts.governors)) + (f" ({facts.frequency_driver})" if facts.frequency_driver else "")
    if facts.governors == {"performance"}:
        return "ok", finding, ""
    slow = "powersave" in facts.governors and facts.frequency_driver not in SELF_TUNING
    return ("bad" if slow else "warn"), finding, "`sudo cpupower frequency-set -g performance` while measuring"


def _turbo(facts: Facts) -> Verdict:
    if facts.turbo is None:
        return "unknown", "not visible here", "a one-rank reference may run at a higher clock than many ranks do"
    if facts.turbo:
        advice = (
            "one busy core is clocked higher than all of them, so scaling looks worse than it is; turn it off while "
            "measuring: echo 1 to /sys/devices/system/cpu/intel_pstate/no_turbo, or 0 to …/cpufreq/boost"
        )
        return "warn", "on", advice
    return "ok", "off", ""


def _shm(facts: Facts) -> Verdict:
    size = facts.shm_free_bytes
    if size is None:
        return "unknown", "there is no /dev/shm", "loader workers may need `file_system` as torch's sharing strategy"
    advice = (
        "loader workers pass batches through it: docker run --shm-size=8g (or --ipc=host); mount -o remount,size=8G"
    )
    state: State = "bad" if size <= SMALL_SHM_BYTES else "warn" if size < SHM_BYTES else "ok"
    return state, f"{show_bytes(size)} free", advice if state != "ok" else ""


def _space(facts: Facts) -> Verdict:
    free = facts.free_bytes
    if free is None:
        return "unknown", "the run directory cannot be checked", "check that its parent exists and is yours"
    advice = "free some, choose another folder with --out, or lower observe.budget"
    state: State = "bad" if free < LOW_SPACE_BYTES else "warn" if free < SPACE_BYTES else "ok"
    return state, f"{show_bytes(free)} free", advice if state != "ok" else ""


def _file_system(facts: Facts) -> Verdict:
    kind = facts.file_system
    if kind is None:
        return "unknown", "the system does not name it", ""
    if kind in NETWORK_FILE_SYSTEMS:
        return "warn", f"{kind}, over a network", "write records to a local disk (--out), and copy them afterwards"
    if kind in MEMORY_FILE_SYSTEMS:
        return (
            "warn",
            f"{kind}, in memory",
            "records take memory from the ranks and are lost with it; use a disk (--out)",
        )
    if kind in PARALLEL_FILE_SYSTEMS:
        return "ok", f"{kind}, shared with other jobs", "their load is in your reading times: repeat at another hour"
    return "ok", kind, ""


def _run_folder(facts: Facts) -> Verdict:
    place = facts.exchangeable
    if place is None:
        return "unknown", "who may write there cannot be checked", ""
    if place:
        advice = "choose another folder with --out, or take that right away: chmod o-w, or +t to keep what others made"
        return "warn", f"any user may exchange what is in {place}", advice
    return "ok", "not everybody may exchange its runs", ""


def _memory(facts: Facts) -> Verdict:
    free = facts.memory_available_bytes
    if free is None:
        return "unknown", "the system does not report it", ""
    advice = "end the processes that use it, or use fewer ranks: each takes about half a GiB before it trains"
    state: State = "bad" if free < LOW_MEMORY_BYTES else "warn" if free < MEMORY_BYTES else "ok"
    return state, f"{show_bytes(free)} available", advice if state != "ok" else ""


def _swap(facts: Facts) -> Verdict:
    used = facts.swap_used_bytes
    if used is None:
        return "unknown", "the system does not report it", ""
    if used >= SWAPPED_BYTES:
        advice = (
            "a step that waits for it takes milliseconds longer; free memory, then `sudo swapoff -a && sudo swapon -a`"
        )
        return "warn", f"{show_bytes(used)} swapped out", advice
    return "ok", "not in use" if used == 0 else f"{show_bytes(used)} swapped out", ""


def _open_files(facts: Facts) -> Verdict:
    limit = facts.open_files
    if limit is None:
        return "unknown", "the system does not report it", ""
    state: State = "bad" if limit < FEW_FILES else "warn" if limit < FILES else "ok"
    return (
        state,
        f"{limit:,}",
        "`ulimit -n 4096` before starting: loader workers take several each" if state != "ok" else "",
    )


def _machine(facts: Facts) -> Verdict:
    kind = {None: "not known whether virtual", True: "a virtual machine", False: "a physical machine"}[facts.hypervisor]
    finding = kind + (f", in a container ({facts.container})" if facts.container else "")
    stolen = facts.stolen_share
    if stolen is not None and stolen >= STOLEN_SHARE:
        advice = "other guests of the hardware take that time; use a dedicated machine for published figures"
        return "bad", f"{finding}; {stolen:.1%} of CPU time stolen since boot", advice
    if facts.hypervisor is None:
        return "unknown", finding, ""
    if facts.hypervisor:
        return (
            "warn",
            finding,
            "neighbours share its memory bandwidth invisibly: repeat each run, and report the spread",
        )
    return "ok", finding, ""


def _python(facts: Facts) -> Verdict:
    return "ok", facts.python, ""


def _numpy(facts: Facts) -> Verdict:
    version = facts.versions.get("numpy")
    return ("ok", version, "") if version else ("bad", "not installed", "pip install numpy")


def _torch(facts: Facts) -> Verdict:
    version = facts.versions.get("torch")
    if version is None:
        advice = "training needs it: pip install torch --index-url https://download.pytorch.org/whl/cpu; reports do not"
        return "warn", "not installed", advice
    match = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    if match is None or (int(match.group(1)), int(match.group(2))) < OLDEST_TORCH:
        return "bad", version, f"allpull needs torch {'.'.join(map(str, OLDEST_TORCH))} or newer"
    if facts.torch_trouble:
        return (
            "bad",
            f"{version}: {facts.torch_trouble}",
            "reinstall torch for this Python; ranks meet through its gloo",
        )
    return "ok", version + (", imports, has gloo" if facts.torch_trouble == "" else ""), ""


CHECKS: dict[str, Callable[[Facts], Verdict]] = {
    "load": _load,
    "cores": _cores,
    "hyper-threading": _smt,
    "OpenMP threads": _omp,
    "clock source": _clock,
    "CPU frequency": _governor,
    "turbo": _turbo,
    "shared memory": _shm,
    "disk space": _space,
    "file system": _file_system,
    "run folder": _run_folder,
    "memory": _memory,
    "swap": _swap,
    "open files": _open_files,
    "machine": _machine,
    "Python": _python,
    "numpy": _numpy,
    "torch": _torch,
}
"""Name → verdict on facts, in the order of display."""
