"""Whether this machine has the memory for the ranks that a job would start on it."""

from __future__ import annotations

import psutil

from allpull.errors import BadInput
from allpull.launch.job import Job
from allpull.units import show_bytes

RANK_BYTES = 140 << 20  # private memory of a process that has imported torch 2.13 for CPUs; model and data are extra


def check_memory(job: Job) -> None:
    """Check that this host has the memory to start the ranks of ``job``, if all of them run here.

    A command of the user's is not checked: it may need less.

    Raises:
        BadInput: it does not.
    """
    ranks = job.spec.launch.ranks
    available = psutil.virtual_memory().available
    if job.spec.launch.hosts > 1 or job.program is not None or ranks * RANK_BYTES <= available:
        return
    needed = f"{ranks:,} ranks need at least {show_bytes(ranks * RANK_BYTES)} of memory on this host"
    raise BadInput(
        f"{needed}; {show_bytes(available)} are free",
        hint=f"up to {max(1, available // RANK_BYTES)} may fit; several hosts hold more: launcher ssh:HOSTS or slurm",
    )
