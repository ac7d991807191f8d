"""Planted facts get the verdicts that they deserve, and advice that can be followed."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.probe import machine_facts
from allpull.probe.doctor import CHECKS, examine
from allpull.probe.machine_facts import Facts, read_facts, try_torch
from allpull.schema.base import tag
from allpull.schema.host import Cpu, HostRecord
from allpull.schema.probed import Check, DoctorResult

GIB = 1 << 30

QUIET: dict[str, Any] = {
    "load_1min": 0.05,
    "logical_cpus": 8,
    "physical_cores": 8,
    "usable_cpus": 8,
    "clock_source": "tsc",
    "governors": frozenset({"performance"}),
    "turbo": False,
    "shm_free_bytes": 16 * GIB,
    "file_system": "ext4",
    "exchangeable": "",
    "free_bytes": 500 * GIB,
    "memory_available_bytes": 60 * GIB,
    "swap_used_bytes": 0,
    "open_files": 65536,
    "hypervisor": False,
    "stolen_share": 0.0,
    "python": "CPython 3.12.1",
    "versions": {"numpy": "2.1.0", "torch": "2.5.1+cpu"},
    "torch_trouble": "",
}


def check(name: str, **planted: Any) -> Check:
    (found,) = [one for one in examine(Facts(**QUIET | planted)) if one.name == name]
    return found


def test_a_quiet_machine_is_fit() -> None:
    assert [(one.name, one.state) for one in examine(Facts(**QUIET))] == [(name, "ok") for name in CHECKS]


def test_a_machine_that_says_nothing_is_unknown_never_ok() -> None:
    states = {one.name: one.state for one in examine(Facts(python="CPython 3.12.1", versions={}))}
    unknown = {name for name, state in states.items() if state == "unknown"}
    assert unknown == set(CHECKS) - {"OpenMP threads", "Python", "numpy", "torch"}
    assert (states["numpy"], states["torch"]) == ("bad", "warn")


@pytest.mark.parametrize(
    ("name", "planted", "state", "words"),
    [
        ("load", {"load_1min": 0.49}, "ok", ""),
        ("load", {"load_1min": 0.5}, "warn", "top"),
        ("load", {"load_1min": 4.0}, "bad", "top"),
        ("load", {"load_1min": 0.6, "usable_cpus": 1}, "bad", "top"),
        ("cores", {"usable_cpus": 4}, "ok", ""),
        ("cores", {"usable_cpus": 1}, "warn", "more CPUs"),
        ("cores", {"quota_cpus": 2.5}, "warn", "at most 2 ranks"),
        ("cores", {"quota_cpus": 0.5}, "bad", "at most 1 rank of"),
        ("cores", {"quota_cpus": 8.0}, "ok", ""),
        ("cores", {"quota_cpus": 2.0, "usable_cpus": 2}, "ok", ""),
        ("hyper-threading", {"physical_cores": 4}, "warn", "at 4 or fewer"),
        ("hyper-threading", {"physical_cores": None}, "unknown", "lscpu"),
        ("OpenMP threads", {"omp_num_threads": "1"}, "ok", ""),
        ("OpenMP threads", {"omp_num_threads": "8,2"}, "ok", ""),
        ("OpenMP threads", {"omp_num_threads": "9"}, "bad", "unset"),
        ("OpenMP threads", {"omp_num_threads": "3", "quota_cpus": 2.0}, "bad", "unset"),
        ("OpenMP threads", {"omp_num_threads": "many"}, "bad", "unset"),
        ("OpenMP threads", {"omp_num_threads": "0"}, "bad", "unset"),
        ("clock source", {"clock_source": "kvm-clock"}, "ok", ""),
        ("clock source", {"clock_source": "arch_sys_counter"}, "ok", ""),
        ("clock source", {"clock_source": "hpet"}, "bad", "tsc=reliable"),
        ("clock source", {"clock_source": "acpi_pm"}, "bad", "dmesg"),
        ("clock source", {"clock_source": "sundial"}, "warn", "not known"),
        ("CPU frequency", {"governors": frozenset({"schedutil"})}, "warn", "cpupower"),
        ("CPU frequency", {"governors": frozenset({"performance", "ondemand"})}, "warn", "cpupower"),
        (
            "CPU frequency",
            {"governors": frozenset({"powersave"}), "frequency_driver": "acpi-cpufreq"},
            "bad",
            "cpupower",
        ),
        (
            "CPU frequency",
            {"governors": frozenset({"powersave"}), "frequency_driver": "intel_pstate"},
            "warn",
            "cpupower",
        ),
        ("turbo", {"turbo": True}, "warn", "no_turbo"),
        ("shared memory", {"shm_free_bytes": 64 << 20}, "bad", "--shm-size"),
        ("shared memory", {"shm_free_bytes": 65 << 20}, "warn", "--shm-size"),
        ("shared memory", {"shm_free_bytes": GIB}, "ok", ""),
        ("disk space", {"free_bytes": 0}, "bad", "--out"),
        ("disk space", {"free_bytes": GIB}, "warn", "observe.budget"),
        ("run folder", {"exchangeable": "/scratch"}, "warn", "chmod o-w"),
        ("file system", {"file_system": "nfs4"}, "warn", "local disk"),
        ("file system", {"file_system": "tmpfs"}, "warn", "lost"),
        ("file system", {"file_system": "lustre"}, "ok", "repeat"),
        ("memory", {"memory_available_bytes": 400 << 20}, "bad", "fewer ranks"),
        ("memory", {"memory_available_bytes": GIB}, "warn", "fewer ranks"),
        ("swap", {"swap_used_bytes": 1 << 20}, "ok", ""),
        ("swap", {"swap_used_bytes": GIB}, "warn", "swapoff"),
        ("open files", {"open_files": 255}, "bad", "ulimit -n"),
        ("open files", {"open_files": 1023}, "warn", "ulimit -n"),
        ("open files", {"open_files": 1024}, "ok", ""),
        ("machine", {"hypervisor": True}, "warn", "repeat"),
        ("machine", {"hypervisor": True, "stolen_share": 0.02}, "bad", "dedicated"),
        ("machine", {"container": "Docker"}, "ok", ""),
        ("numpy", {"versions": {"numpy": None, "torch": "2.5"}}, "bad", "pip install numpy"),
        ("torch", {"versions": {"numpy": "2", "torch": None}}, "warn", "pip install torch"),
        ("torch", {"versions": {"numpy": "2", "torch": "2.3.1"}}, "bad", "2.4 or newer"),
        ("torch", {"versions": {"numpy": "2", "torch": "2.10.0"}}, "ok", ""),
        ("torch", {"torch_trouble": "built without gloo"}, "bad", "reinstall"),
        ("torch", {"torch_trouble": None}, "ok", ""),
    ],
)
def test_a_planted_fact_gets_its_verdict(name: str, planted: dict[str, Any], state: str, words: str) -> None:
    found = check(name, **planted)
    assert found.state == state
    assert words in found.advice
    assert bool(found.advice) == bool(words)
    changed = {one.name for one in examine(Facts(**QUIET | planted)) if one.state != "ok"}
    assert changed <= {name, "cores"}  # a fact spoils its own verdict only; fewer cores are a fault of their own


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SIZES = maybe(st.integers(0, 1 << 50))
WORDS = maybe(st.text(max_size=12))
ANY_FACTS = st.builds(
    Facts,
    load_1min=maybe(st.floats(0, 1e6)),
    logical_cpus=maybe(st.integers(1, 1024)),
    physical_cores=maybe(st.integers(1, 1024)),
    usable_cpus=maybe(st.integers(1, 1024)),
    quota_cpus=maybe(st.floats(0.01, 1024)),
    omp_num_threads=WORDS,
    clock_source=WORDS,
    governors=maybe(st.frozensets(st.sampled_from(["performance", "powersave", "ondemand"]))),
    frequency_driver=WORDS,
    turbo=maybe(st.booleans()),
    shm_free_bytes=SIZES,
    file_system=WORDS,
    exchangeable=WORDS,
    free_bytes=SIZES,
    memory_available_bytes=SIZES,
    swap_used_bytes=SIZES,
    open_files=maybe(st.integers(0, sys.maxsize)),
    hypervisor=maybe(st.booleans()),
    stolen_share=maybe(st.floats(0, 1)),
    container=WORDS,
    python=st.text(max_size=12),
    versions=st.dictionaries(st.sampled_from(["numpy", "torch"]), WORDS),
    torch_trouble=WORDS,
)


@given(ANY_FACTS)
def test_whatever_is_wrong_comes_with_advice(facts: Facts) -> None:
    checks = examine(facts)
    assert [one.name for one in checks] == list(CHECKS)
    assert all(one.advice for one in checks if one.state in {"warn", "bad"})
    answer = json.loads(DoctorResult(schema=tag("doctor"), checks=checks).model_dump_json(by_alias=True))
    assert list(answer) == ["schema", "checks"]
    assert answer["schema"] == tag("doctor")
    assert all(set(one) == {"name", "state", "found", "advice"} for one in answer["checks"])


HOST = HostRecord(
    schema="allpull.host/1.1",
    host="node1",
    os="Example Linux",
    kernel="Linux 6",
    cpu=Cpu(architecture="x86_64", logical=16, physical=8, usable=4, quota=3.5),
    file_system="xfs",
    clock_source="tsc",
    load_1min=0.25,
    fingerprint="00",
)


def plant(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def facts_of(root: Path, environment: dict[str, str] | None = None) -> Facts:
    return read_facts(HOST, root / "runs" / "not" / "yet", environment=environment or {}, root=root)


def test_facts_of_the_host_are_taken_over(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert (facts.logical_cpus, facts.physical_cores, facts.usable_cpus, facts.quota_cpus) == (16, 8, 4, 3.5)
    assert (facts.load_1min, facts.clock_source, facts.file_system, facts.cores) == (0.25, "tsc", "xfs", 3.5)


def test_a_folder_that_everybody_may_write_to_is_named_unless_it_has_the_sticky_bit(tmp_path: Path) -> None:
    (tmp_path / "shared" / "mine").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "shared" / "mine")
    for mode, expected in ((0o775, ""), (0o777, str(tmp_path / "shared")), (0o1777, "")):
        (tmp_path / "shared").chmod(mode)
        assert read_facts(HOST, tmp_path / "link" / "runs", root=tmp_path).exchangeable == expected


def test_an_empty_tree_says_nothing(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.governors is facts.frequency_driver is facts.turbo is facts.shm_free_bytes is None
    assert facts.hypervisor is facts.container is facts.omp_num_threads is facts.torch_trouble is None


def test_free_space_is_that_above_a_directory_to_be_made(tmp_path: Path) -> None:
    free = facts_of(tmp_path).free_bytes
    state = os.statvfs(tmp_path)
    assert free is not None
    assert free <= state.f_blocks * state.f_frsize


def test_frequency_and_turbo_are_read_where_linux_keeps_them(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    files = {
        f"{cpu}/cpufreq/policy0/scaling_governor": "performance\n",
        f"{cpu}/cpufreq/policy1/scaling_governor": "powersave\n",
        f"{cpu}/cpufreq/policy0/scaling_driver": "intel_pstate\n",
        f"{cpu}/intel_pstate/no_turbo": "0\n",
    }
    facts = facts_of(plant(tmp_path, files))
    assert facts.governors == {"performance", "powersave"}
    assert (facts.frequency_driver, facts.turbo) == ("intel_pstate", True)
    assert facts_of(plant(tmp_path, {f"{cpu}/intel_pstate/no_turbo": "1"})).turbo is False
    (tmp_path / cpu / "intel_pstate" / "no_turbo").unlink()
    assert facts_of(plant(tmp_path, {f"{cpu}/cpufreq/boost": "1"})).turbo is True


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_memory_is_what_the_control_group_leaves(tmp_path: Path, limit: str, used: str) -> None:
    group = "sys/fs/cgroup"
    facts = facts_of(plant(tmp_path, {f"{group}/{limit}": "3000000\n", f"{group}/{used}": "1000000\n"}))
    assert facts.memory_available_bytes == 2_000_000
    unlimited = facts_of(plant(tmp_path, {f"{group}/{limit}": "max\n"})).memory_available_bytes
    assert unlimited is not None
    assert unlimited > 2_000_000


def test_virtual_machines_and_containers_are_told(tmp_path: Path) -> None:
    assert facts_of(plant(tmp_path, {"proc/cpuinfo": "flags\t: fpu avx2\n"})).hypervisor is False
    assert facts_of(plant(tmp_path, {"proc/cpuinfo": "flags\t: fpu hypervisor avx2\n"})).hypervisor is True
    assert facts_of(tmp_path, {"APPTAINER_CONTAINER": "/x.sif"}).container == "Apptainer"
    assert facts_of(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).container == "Kubernetes"
    assert facts_of(plant(tmp_path, {".dockerenv": ""})).container == "Docker"


def test_versions_come_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(tmp_path)
    assert facts.versions["numpy"] == metadata.version("numpy")

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine_facts.metadata, "version", missing)
    assert read_facts(HOST, tmp_path, torch_timeout_s=5).versions == {"numpy": None, "torch": None}


def fake_python(folder: Path, script: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return str(program)


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("exit 0", ""),
        ("echo 'Traceback' >&2; echo 'OSError: libgomp.so.1' >&2; exit 1", "OSError: libgomp.so.1"),
        ("printf 'a\\033[2Jb' >&2; exit 1", "a�[2Jb"),
        ("kill -SEGV $$", "importing it ended with code -11"),
        ("exec sleep 60", "importing it took more than 0.3 s"),
    ],
)
def test_a_trial_of_torch_says_what_went_wrong(tmp_path: Path, script: str, trouble: str) -> None:
    timeout_s = 0.3 if "sleep" in script else 30
    assert try_torch(timeout_s, fake_python(tmp_path, script)) == trouble


def test_a_python_that_is_not_there_is_trouble(tmp_path: Path) -> None:
    assert try_torch(1, str(tmp_path / "none")).startswith("Python cannot be started")


@pytest.mark.slow
@pytest.mark.torch
def test_torch_of_this_environment_can_serve_ranks() -> None:
    pytest.importorskip("torch")
    assert try_torch(120) == ""
