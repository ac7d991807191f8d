"""Which torch `make demo` installs: a wheel that pip is configured to find, else the CPU build, or CUDA for a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def environment(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", root / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *, present: str | None, works: str) -> list[str]:
    """The calls of pip that lead to a torch, where only the one that holds ``works`` succeeds."""
    calls = list[str]()
    versions = iter([present, "2.13.0+cpu"])

    def pip(_python: str, *arguments: str, is_attempt: bool = False) -> bool:
        calls.append(" ".join(arguments))
        return works in calls[-1]

    monkeypatch.setattr(module, "pip", pip)
    monkeypatch.setattr(module, "torch_version", lambda _python: next(versions))
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    module.install_torch("python")
    return calls


def test_a_torch_that_is_there_is_kept(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed(environment, monkeypatch, present="2.9.1", works="") == []


def test_a_local_wheel_needs_no_index(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (call,) = installed(environment, monkeypatch, present=None, works="--no-index")
    assert "torch==" in call


@pytest.mark.parametrize("gpu", [False, True])
def test_without_a_gpu_torch_comes_from_the_index_of_cpu_builds(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.setattr(environment, "has_gpu", lambda: gpu)
    _, call = installed(environment, monkeypatch, present=None, works="no call at all")
    assert ("--index-url https://download.pytorch.org/whl/cpu" in call) is not gpu


def test_a_gpu_is_one_that_nvidia_smi_lists(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not environment.has_gpu()
    smi = tmp_path / "nvidia-smi"
    for output, code, expected in (("GPU 0: H100", 0, True), ("No devices found", 0, False), ("GPU lost", 6, False)):
        smi.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
        smi.chmod(0o755)
        assert environment.has_gpu() is expected
