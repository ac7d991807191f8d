"""Time all-reduces of several sizes: one rank of ``allpull probe allreduce``.

For each size every rank repeats the same all-reduce, each after a barrier, and records how long it was blocked. A
repetition takes as long as on the slowest rank: rank 0 of a ring returns before its last message has arrived, so its
own time is too short. ``analyse.collectives`` computes rates and fits.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from allpull.probe.ranks import ProbeGroup, join_group, leave_group, run, write_result
from allpull.rundir.job_file import JobFile

WARMUP = 3  # the first builds connections, the next two fill caches and buffers
LEAST, MOST = 7, 200  # repetitions: enough for a median, and no more than a figure needs
SECONDS_PER_SIZE = 2.0


def main(job_file: str) -> None:
    """Measure all sizes of the job; rank 0 writes ``probes/allreduce.json``."""
    job = JobFile.read(job_file)
    spec = job.spec
    group = join_group(spec["launch"]["threads"], spec["parallel"]["backend"])
    times_s = {size: repetitions(group, size) for size in job.options["sizes"]}
    if group.rank == 0:
        results = [{"size_bytes": size, "times_s": times} for size, times in times_s.items()]
        how = {"ranks": group.ranks, "backend": dist.get_backend(), "device": group.device.type}
        write_result(job, "allreduce", {"schema": "allpull.allreduce/1.0", **how, "results": results})
    leave_group()


def repetitions(group: ProbeGroup, size: int) -> list[float]:
    """Seconds of each repetition of one all-reduce of ``size`` bytes: the maximum over ranks."""
    data = torch.zeros(max(1, size // 4), dtype=torch.float32, device=group.device)
    first = [once(group, data) for _ in range(WARMUP)]
    # all ranks must agree on how many follow, so the slowest warm-up of all decides
    typical_s = float(group.gather(torch.tensor([min(first)], dtype=torch.float64)).max())
    count = min(MOST, max(LEAST, int(SECONDS_PER_SIZE / max(typical_s, 1e-9))))
    own = torch.tensor([once(group, data) for _ in range(count)], dtype=torch.float64)
    slowest: list[float] = group.gather(own).max(dim=0).values.tolist()
    return slowest


def once(group: ProbeGroup, data: torch.Tensor) -> float:
    """Seconds for which one all-reduce of ``data`` blocks this rank, from a common start."""
    if group.ranks > 1:
        dist.barrier()
    start = time.perf_counter()
    if group.ranks > 1:
        dist.all_reduce(data)
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    run(main)
