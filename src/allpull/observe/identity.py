"""The identity of a rank: its numbers, from the variables that its launcher sets. Standard library only."""

from __future__ import annotations

import os
import socket
from typing import Mapping, Optional, Tuple

HOST_VARIABLE = "ALLPULL_HOST"  # the name of this host in the records, if its agent was given one

STARTERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # OpenMPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),  # horovodrun with Gloo
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),  # srun
)
"""Variables of rank, world size and local rank, by launcher; the first complete row counts."""


class Identity:
    """A rank: its numbers, and the name of its host."""

    def __init__(self, *, rank: int, local_rank: int, ranks: int, host: str) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.ranks = ranks
        self.host = host


def identity() -> Identity:
    """The identity of this rank, from the variables of its launcher; the only rank where there are none."""
    rank, ranks, local_rank = numbers(os.environ)
    return Identity(rank=rank, local_rank=local_rank, ranks=ranks, host=host_name())


def host_name() -> str:
    """The name of this host in the records."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def numbers(environ: Mapping[str, str]) -> Tuple[int, int, int]:
    """Rank, world size and local rank, from the first complete row of ``STARTERS``; (0, 1, 0) if none is complete."""
    return started_as(environ) or (0, 1, 0)


def started_as(environ: Mapping[str, str]) -> Optional[Tuple[int, int, int]]:
    """As ``numbers``; None if no row is complete.

    Slurm's variables count only in a task of srun: the batch script has them too, and is not a rank.
    """
    for names in STARTERS:
        values = [environ.get(name, "") for name in names]
        if all(value.isdecimal() and value.isascii() for value in values) and (
            names[0] != "SLURM_PROCID" or "SLURM_STEP_ID" in environ
        ):
            rank, ranks, local_rank = (int(value) for value in values)
            return rank, ranks, local_rank
    return None
