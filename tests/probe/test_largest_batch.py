"""The largest batch is found in few trials, each below the limit, and what ends the search is told apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from tests.conftest import allpull

from allpull.kernel import Tree, memory_left
from allpull.probe.largest_batch import RESOLUTION, is_memory_fault, patient, search

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("fitting", [2, 3, 31, 208, 256, 1000])
def test_the_search_ends_close_below_what_does_not_fit(fitting: int) -> None:
    """208 is the batch of HAL, 256 that of CLAIX, each on 16 GB."""
    tried: list[int] = []
    peaks, too_large = search(lambda batch: (tried.append(batch), batch if batch <= fitting else None)[1])
    assert too_large is not None
    assert max(peaks) <= fitting < too_large
    assert too_large - max(peaks) <= max(1, max(peaks) // RESOLUTION)
    assert len(tried) == len(set(tried)) < 20


def test_where_all_fit_or_only_one_sample_does() -> None:
    assert search(lambda batch: batch, most=64)[1] is None
    assert search(lambda batch: 1 if batch == 1 else None) == ({1: 1}, 2)
    assert search(lambda _: None) == ({}, 1)


def test_a_batch_that_would_take_minutes_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 100.0])
    monkeypatch.setattr("allpull.probe.largest_batch.time.perf_counter", lambda: next(moments))
    reasons: list[str] = []
    tried = patient(lambda batch: batch, reasons)
    assert tried(2) == 2
    assert tried(4) is None
    assert reasons == ["batches of 4 were not tried: a step would take some 200 s"]


def test_only_want_of_memory_ends_the_search_without_a_reason() -> None:
    assert is_memory_fault(MemoryError())
    assert is_memory_fault(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_memory_fault(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert is_memory_fault(RuntimeError("std::bad_alloc"))
    assert not is_memory_fault(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_control_groups_limit_the_memory(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/job/step\n",
        "proc/self/mountinfo": "30 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/job/memory.max": "1000\n",
        "sys/fs/cgroup/job/memory.current": "400\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/memory.current": "300\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_left(Tree(tmp_path)) == 600
    (tmp_path / "sys/fs/cgroup/job/memory.max").unlink()
    assert memory_left(Tree(tmp_path)) is None


@pytest.mark.slow
@pytest.mark.ranks
def test_a_small_limit_on_cpus_is_never_passed(tmp_path: Path) -> None:
    """A real search: what fits stays below the limit, and twice the limit holds a larger batch."""
    words = ["probe", "compute", "resnet8", "--size", "32", "--channels", "3", "--classes", "10", "--batch", "2"]
    words += ["--precision", "fp32", "--for", "0.05s", "--threads", "1", "--json", "--out", str(tmp_path)]
    done = allpull(*words, "--largest-batch", "--memory-limit", "700MiB")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["largest"]
    assert found["limit_bytes"] == 700 << 20
    assert found["peak_bytes"] <= found["limit_bytes"]
    assert found["batch"] < found["too_large"] <= found["batch"] * (1 + 2 / RESOLUTION) + 1
    images = 3 * 32 * 32 * 4
    assert found["bytes_per_sample"] > images
    refused = allpull(*words, "--memory-limit", "700MiB")
    assert refused.returncode == 2
    assert "--largest-batch" in refused.stderr
    little = allpull(*words, "--largest-batch", "--memory-limit", "1MiB")
    assert little.returncode != 0
    assert "alone" in little.stderr
