"""What is said of a host is what its kernel says, and None where it says nothing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.kernel import MAX_BYTES, Tree, cpu_list
from allpull.observe import host as host_module
from allpull.observe.host import describe_host
from allpull.schema.base import tag
from allpull.schema.host import HostRecord

CPUINFO = "processor\t: {0}\nmodel name\t: Example CPU @ 2.10GHz\nflags\t\t: fpu sse4_2 avx avx2 fma avx512f\n\n"
MOUNTS_V2 = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    "40 22 0:40 / /work\\040space rw - lustre mgs@o2ib:/scratch rw,flock\n"
)


def plant(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def machine(cores: int, threads_per_core: int) -> dict[str, str]:
    """A machine as Linux numbers it: first threads of all cores, then the second ones."""
    logical = cores * threads_per_core
    files = {
        "proc/cpuinfo": "".join(CPUINFO.format(cpu) for cpu in range(logical)),
        "proc/meminfo": "MemTotal:       65812345 kB\nMemFree:        123 kB\n",
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-{logical - 1}\n",
        "proc/loadavg": "1.25 0.80 0.41 2/345 6789\n",
        "proc/sys/kernel/random/boot_id": "6f1d7c9e-0000-4000-8000-3a5b2c1d0e0f\n",
        "sys/devices/system/cpu/online": f"0-{logical - 1}\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
    }
    for cpu in range(logical):
        siblings = ",".join(str(cpu % cores + cores * thread) for thread in range(threads_per_core))
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{siblings}\n"
    return files


def describe(root: Path, files: dict[str, str], record_dir: str = "/", **options: Any) -> HostRecord:
    described = describe_host(record_dir, root=plant(root, files), **options)
    return HostRecord.model_validate_json(json.dumps(described), strict=True)


def test_this_machine_is_a_valid_record(tmp_path: Path) -> None:
    described = describe_host(str(tmp_path))
    record = HostRecord.model_validate_json(json.dumps(described))
    assert described["schema"] == tag("host")
    assert set(described) == {"schema", *(set(HostRecord.model_fields) - {"schema_"})}
    assert record.cpu.logical == os.cpu_count()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_this_machine_agrees_with_other_sources(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    record = HostRecord.model_validate(describe_host(str(tmp_path)))
    assert record.cpu.usable == len(os.sched_getaffinity(0))
    assert record.memory_bytes == psutil.virtual_memory().total
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    assert record.boot_id == (boot_id.read_text().strip() if boot_id.exists() else None)
    kinds = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    assert record.file_system in kinds.values()


def test_affinity_is_that_of_this_process(tmp_path: Path) -> None:
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs to leave one")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert describe_host(str(tmp_path))["cpu"]["usable"] == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_system_that_says_nothing_gives_none(tmp_path: Path) -> None:
    record = describe(tmp_path, {})
    assert record.cpu.model is None
    assert record.cpu.physical is record.cpu.usable is record.cpu.quota is None
    assert record.cpu.vector == record.gpus == record.nics == []
    assert record.memory_bytes is record.boot_id is record.clock_source is record.load_1min is None
    assert record.file_system is record.driver is None
    assert record.cpu.logical == os.cpu_count()
    assert record.host


def test_facts_are_read_where_linux_keeps_them(tmp_path: Path) -> None:
    record = describe(tmp_path, machine(4, 1) | {"etc/os-release": 'NAME="X"\nPRETTY_NAME="Example Linux 9"\n'})
    assert record.cpu.model == "Example CPU @ 2.10GHz"
    assert record.cpu.vector == ["sse4_2", "avx", "avx2", "fma", "avx512f"]
    assert record.memory_bytes == 65812345 * 1024
    assert record.load_1min == 1.25
    assert record.clock_source == "hpet"
    assert record.boot_id == "6f1d7c9e-0000-4000-8000-3a5b2c1d0e0f"
    assert record.os == "Example Linux 9"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 1), (4, 2), (3, 4)])
def test_smt_is_fewer_cores_than_cpus(tmp_path: Path, cores: int, threads: int) -> None:
    cpu = describe(tmp_path, machine(cores, threads)).cpu
    assert (cpu.logical, cpu.physical, cpu.usable) == (cores * threads, cores, cores * threads)


def test_an_offline_cpu_counts_for_nothing(tmp_path: Path) -> None:
    files = machine(4, 1) | {
        "sys/devices/system/cpu/online": "0-1,3",
        "proc/self/status": "Cpus_allowed_list:\t0-127\n",
    }
    cpu = describe(tmp_path, files).cpu
    assert (cpu.logical, cpu.physical, cpu.usable) == (3, 3, 3)


def test_affinity_leaves_a_part(tmp_path: Path) -> None:
    files = machine(8, 2) | {"proc/self/status": "Cpus_allowed_list:\t0,2-3,15\n"}
    assert describe(tmp_path, files).cpu.usable == 4


@pytest.mark.parametrize(
    ("ours", "above", "quota"),
    [
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "400000 100000", 4.0),
        ("800000 100000", "200000 100000", 2.0),
        ("max 100000", "max 100000", None),
        ("50000 25000", "", 2.0),
        ("junk", "0 0", None),
    ],
)
def test_quota_of_cgroup_v2_is_the_least_on_the_way_up(
    tmp_path: Path, ours: str, above: str, quota: float | None
) -> None:
    files = machine(8, 1) | {
        "proc/self/mountinfo": MOUNTS_V2,
        "proc/self/cgroup": "0::/job.slice/step_0\n",
        "sys/fs/cgroup/job.slice/step_0/cpu.max": f"{ours}\n",
        "sys/fs/cgroup/job.slice/cpu.max": f"{above}\n",
    }
    assert describe(tmp_path, files).cpu.quota == quota


@pytest.mark.parametrize(("limit", "quota"), [("250000", 2.5), ("-1", None)])
def test_quota_of_cgroup_v1_in_a_container(tmp_path: Path, limit: str, quota: float | None) -> None:
    # The container sees its own group as the top of the mount, while /proc tells the path on the host.
    files = {
        "proc/self/mountinfo": (
            "31 23 0:28 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            "32 23 0:29 /docker/ab /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
        ),
        "proc/self/cgroup": "5:cpuset:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": limit,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert describe(tmp_path, files).cpu.quota == quota


def test_the_record_directory_stands_on_the_deepest_newest_mount(tmp_path: Path) -> None:
    mounts = MOUNTS_V2 + "41 22 0:41 / /workshop rw - nfs4 server:/w rw\n50 22 0:50 / /workshop rw - tmpfs tmpfs rw\n"
    for path, kind in {"/work space/runs": "lustre", "/work": "ext4", "/workshop/x": "tmpfs", "/": "ext4"}.items():
        assert describe(tmp_path, {"proc/self/mountinfo": mounts}, path).file_system == kind


def test_network_interfaces_say_their_speed_where_known(tmp_path: Path) -> None:
    net, infiniband = "sys/class/net", "sys/class/infiniband/mlx5_0/ports"
    files = {
        f"{net}/lo/operstate": "unknown",
        f"{net}/eth0/operstate": "up",
        f"{net}/eth0/speed": "25000\n",
        f"{net}/virtio/operstate": "unknown",
        f"{net}/virtio/speed": "-1\n",
        f"{net}/eth1/operstate": "down",
        f"{infiniband}/1/state": "4: ACTIVE",
        f"{infiniband}/1/rate": "100 Gb/sec (4X EDR)",
        f"{infiniband}/2/state": "1: DOWN",
        f"{net}/bonding_masters": "",
    }
    speeds = {nic.name: nic.bits_per_s for nic in describe(tmp_path, files).nics}
    assert speeds == {"eth0": 25_000_000_000, "virtio": None, "mlx5_0/1": 100_000_000_000}


def test_gpus_are_those_that_the_driver_lists(tmp_path: Path) -> None:
    nvidia = "proc/driver/nvidia"
    files = {
        f"{nvidia}/gpus/0000:17:00.0/information": "Model: \t\t Tesla V100-SXM2-32GB\nIRQ:   \t\t 64\n",
        f"{nvidia}/gpus/0000:65:00.0/information": "Model: \t\t Tesla V100-SXM2-32GB\n",
        f"{nvidia}/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n",
    }
    record = describe(tmp_path, files)
    assert record.gpus == ["Tesla V100-SXM2-32GB"] * 2
    assert record.driver == "535.104.05"


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ('echo "NVIDIA H100, PCIe, 550.1"; echo "NVIDIA A100, 550.1"', (["NVIDIA H100, PCIe", "NVIDIA A100"], "550.1")),
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", ([], None)),
        ("exec sleep 60", ([], None)),
        ("exit 0", ([], None)),
    ],
)
def test_nvidia_smi_is_asked_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: tuple[list[str], str | None]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host_module, "SMI_TIMEOUT_S", 0.5)
    assert host_module._ask_nvidia_smi() == answer


def test_processors_that_are_not_x86(tmp_path: Path) -> None:
    arm = "processor\t: 0\nFeatures\t: fp asimd asimddp sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    cpu = describe(tmp_path / "arm", {"proc/cpuinfo": arm}).cpu
    assert (cpu.model, cpu.vector) == ("Arm implementer 0x41 part 0xd40", ["asimd", "asimddp", "bf16", "sve"])
    power = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800MHz\n"
    cpu = describe(tmp_path / "power", {"proc/cpuinfo": power}).cpu
    assert (cpu.model, cpu.vector) == ("POWER9, altivec supported", ["altivec", "vsx"])


def test_equal_machines_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    one = machine(4, 2)
    busy_twin = one | {
        "proc/loadavg": "9.0 9.0 9.0 1/1 1",
        "proc/sys/kernel/random/boot_id": "another",
        "proc/meminfo": "MemTotal:       65812001 kB\n",
        "proc/self/status": "Cpus_allowed_list:\t0\n",
    }
    more_memory = one | {"proc/meminfo": "MemTotal:       131812001 kB\n"}
    no_smt = machine(8, 1)
    prints = [
        describe(tmp_path / str(number), files, host=f"node{number}").fingerprint
        for number, files in enumerate((one, busy_twin, more_memory, no_smt))
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_an_endless_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert MAX_BYTES <= len(Tree(str(tmp_path)).read("endless")) < 2 * MAX_BYTES


JUNK = st.text(st.characters(codec="utf-8"), max_size=60)
SOURCES = st.sampled_from(
    [
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/loadavg",
        "proc/self/status",
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/driver/nvidia/version",
        "sys/devices/system/cpu/online",
        "sys/class/net/eth0/speed",
        "sys/class/net/eth0/operstate",
        "etc/os-release",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(SOURCES, JUNK))
def test_junk_in_any_source_still_gives_a_valid_record(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> None:
    describe(tmp_path_factory.mktemp("junk"), files)


@given(st.sets(st.integers(0, 500), max_size=20))
def test_a_cpu_list_names_what_it_was_made_of(cpus: set[int]) -> None:
    assert cpu_list(",".join(str(cpu) for cpu in sorted(cpus))) == cpus
