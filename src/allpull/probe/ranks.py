"""What a probe's ranks share: who they are, their process group, and rank 0's answer on disk."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from allpull.rundir.write import private_folder, whole_json

ANSWER = "probes/{name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The ranks of a probe, in one process group, on the device that collectives use."""

    rank: int
    ranks: int
    device: torch.device

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` of all ranks, stacked: shape (ranks, *values.shape)."""
        if self.ranks == 1:
            return values[None]
        slots = [torch.empty_like(values, device=self.device) for _ in range(self.ranks)]
        dist.all_gather(slots, values.to(self.device))
        return torch.stack(slots).cpu()


def meet(threads: int) -> Meeting:
    """Join the ranks: NCCL where each has a device, else Gloo."""
    torch.set_num_threads(threads)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    return Meeting(rank=rank, ranks=ranks, device=device)


def read_job(job_file: str) -> dict[str, Any]:
    """The job file."""
    job: dict[str, Any] = json.loads(Path(job_file).read_text(encoding="utf-8"))
    return job


def answer(job: dict[str, Any], name: str, content: dict[str, Any]) -> None:
    """Write what the probe called ``name`` found into the run directory, all at once."""
    path = Path(job["directory"]) / ANSWER.format(name=name)
    private_folder(str(path.parent))
    whole_json(str(path), content)


def part() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
