"""Who a rank is: its numbers, from the variables of whatever started it. Standard library only."""

from __future__ import annotations

import os
import socket
from typing import Mapping, Optional, Tuple

HOST_VARIABLE = "ALLPULL_HOST"  # the name of this host in the records, where its agent was given one

STARTERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # OpenMPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),  # horovodrun with Gloo
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),  # srun
)
"""Variables of rank, ranks and local rank, by what starts ranks; the first that are all there count."""


class Identity:
    """Who this rank is: its numbers, and the name of its host."""

    def __init__(self, *, rank: int, local_rank: int, ranks: int, host: str) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.ranks = ranks
        self.host = host


def identity() -> Identity:
    """Who this rank is, from the variables of whatever started it; alone where there are none."""
    rank, ranks, local_rank = numbers(os.environ)
    return Identity(rank=rank, local_rank=local_rank, ranks=ranks, host=host_name())


def host_name() -> str:
    """The name of this host in the records."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def numbers(environ: Mapping[str, str]) -> Tuple[int, int, int]:
    """Rank, ranks and local rank, by the first starter of the table that is complete; (0, 1, 0) where none is."""
    return started_as(environ) or (0, 1, 0)


def started_as(environ: Mapping[str, str]) -> Optional[Tuple[int, int, int]]:
    """As ``numbers``; None where none is.

    Slurm's are believed in a task of srun only: the script of a job has them too, and is not a rank.
    """
    for names in STARTERS:
        values = [environ.get(name, "") for name in names]
        if all(value.isdecimal() and value.isascii() for value in values) and (
            names[0] != "SLURM_PROCID" or "SLURM_STEP_ID" in environ
        ):
            rank, ranks, local_rank = (int(value) for value in values)
            return rank, ranks, local_rank
    return None
