"""A machine is asked for no more ranks than its memory can begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from allpull.errors import BadInput
from allpull.launch.job import Job, prospect
from allpull.launch.local import Local
from allpull.launch.memory_check import RANK_BYTES, check_memory
from allpull.schema.spec import LaunchSpec, RunSpec


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """A function that makes a job, on a machine with memory for seven and a half ranks."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(7.5 * RANK_BYTES)))

    def make(ranks: int, hosts: int = 1, program: list[str] | None = None) -> Job:
        spec = RunSpec(launch=LaunchSpec(ranks=ranks, hosts=hosts))
        return prospect(spec, kind="train", module="m", program=program, command=["x"], out=Path("/runs"))

    return make


def test_as_many_as_fit_are_let_through_and_one_more_is_not(job: Callable[..., Job]) -> None:
    check_memory(job(7))
    with pytest.raises(BadInput, match=r"8 ranks need at least .* on this host") as caught:
        check_memory(job(8))
    assert "up to 7 may fit" in caught.value.hint
    with pytest.raises(BadInput, match="8 ranks need"):
        Local().plan(job(8))


def test_ranks_of_other_hosts_and_of_programs_that_may_be_small_are_not_judged(job: Callable[..., Job]) -> None:
    check_memory(job(8, hosts=2))
    check_memory(job(8, program=["a.py"]))


@pytest.mark.slow
def test_a_rank_takes_no_less_than_is_reckoned_with() -> None:
    """Else ranks that fit would be refused: the memory that only this process has, with torch in it."""
    pytest.importorskip("torch")
    says = "import torch, torch.distributed, psutil; print(psutil.Process().memory_full_info().uss)"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.9 * RANK_BYTES
