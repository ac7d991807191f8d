"""What the ranks of all probes share: their process group, and the result file that rank 0 writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from allpull import marks
from allpull.backend import join, ranks_store
from allpull.errors import AllpullError
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import private_folder, whole_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeGroup:
    """The ranks of a probe, in one process group, on the device that collectives use."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def ranks_per_host(self) -> int:
        """Ranks of each host; those of one host follow each other."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def first_here(self) -> bool:
        """Whether this is the first rank of its host."""
        return self.rank % self.ranks_per_host == 0

    def wait(self) -> None:
        """Wait for every rank at a barrier."""
        if self.ranks > 1:
            dist.barrier()

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` of all ranks, stacked: shape (ranks, *values.shape)."""
        if self.ranks == 1:
            return values[None]
        slots = [torch.empty_like(values, device=self.device) for _ in range(self.ranks)]
        dist.all_gather(slots, values.to(self.device))
        return torch.stack(slots).cpu()


def join_group(threads: int, backend: str = "") -> ProbeGroup:
    """Join the process group with ``backend`` as ``parallel.backend``; without ``backend`` on CPUs, over Gloo.

    Raises:
        AllpullError: they cannot do so (``allpull.backend``).
    """
    torch.set_num_threads(threads)
    if backend:
        place = join(backend)
        if place.remark:
            marks.remark(place.remark)
        return ProbeGroup(rank=place.rank, ranks=place.ranks, device=place.device)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo", store=ranks_store(), rank=rank, world_size=ranks)
    return ProbeGroup(rank=rank, ranks=ranks, device=torch.device("cpu"))


def rank_counts(ranks: int, ranks_per_host: int) -> list[int]:
    """How many of ``ranks`` work at once in successive measurements: 1, 2, 4 …, those of one host, all.

    >>> rank_counts(12, 3)
    [1, 2, 3, 4, 8, 12]
    """
    powers = [1 << power for power in range(ranks.bit_length()) if 1 << power < ranks]
    return sorted({*powers, min(ranks, ranks_per_host), ranks})


def run(probe: Callable[[str], None]) -> None:
    """Run one rank of a probe; an error that the user can fix ends it with one message.

    Raises:
        SystemExit: as the launcher expects it of ranks that failed.
    """
    try:
        probe(sys.argv[1])
    except AllpullError as error:
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        raise SystemExit(error.exit_code) from error


def write_result(job: JobFile, name: str, content: dict[str, Any]) -> None:
    """Write the result of probe ``name`` into the run directory, all at once."""
    path = Path(job.directory) / layout.probe_file(name)
    private_folder(str(path.parent))
    whole_json(str(path), content)


def leave_group() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
