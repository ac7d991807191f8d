"""The ranks of a training: joining the process group, reductions, and agreement through the store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from allpull import marks
from allpull.backend import GLOO, NCCL, STORE_FILE, ranks_store
from allpull.backend import join as join_group
from allpull.errors import MissingPart
from allpull.schema.trainspec import ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank and the world size. A single rank needs no process group, and its collectives are the identity."""

    rank: int
    ranks: int
    device: torch.device

    def total(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def average_buffers(self, model: nn.Module) -> None:
        """Average floating-point buffers, which are batch statistics, over ranks before an evaluation."""
        if self.ranks == 1:
            return
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if buffers:
            flat = torch.cat([buffer.flatten() for buffer in buffers])
            dist.all_reduce(flat)
            flat /= self.ranks
            for buffer, mean in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
                buffer.copy_(mean.view_as(buffer))

    def barrier(self) -> None:
        """Wait for every rank."""
        self.total(torch.zeros(1, device=self.device)).item()

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work; a CPU always has."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def all_report(self, event: str, limit_s: float) -> bool:
        """Whether every rank reports ``event``, once per process and at most ``limit_s`` after this rank.

        It uses the store and no collective: if other ranks wait for this one in a collective, the result is False.
        """
        store = self.store()
        if store.add(event, 1) == self.ranks:
            store.set(f"all {event}", "yes")
        try:
            store.wait([f"all {event}"], timedelta(seconds=limit_s))
        except RuntimeError:  # its subclass depends on the store and the version of torch
            return False
        return True

    def store(self) -> Store:
        """A new connection to the store of this attempt's rendezvous."""
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"allpull/{attempt}"
        if os.environ.get(STORE_FILE):
            return PrefixStore(prefix, ranks_store())
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return PrefixStore(prefix, TCPStore(address, port, is_master=False, wait_for_workers=False))


def join(threads: int, parallel: ParallelSpec) -> Ranks:
    """Join the process group of the ranks that torchrun started, with the backend of ``parallel.backend``.

    Raises:
        AllpullError: that backend or strategy is not possible here (``allpull.backend``).
    """
    torch.set_num_threads(threads)
    joined = join_group(parallel.backend)
    if parallel.strategy == "fsdp" and joined.backend == GLOO and joined.gpus:  # the same on all ranks
        raise MissingPart(
            "parallel.strategy=fsdp: on GPUs it needs NCCL, and these ranks exchange through Gloo",
            hint="start at most one rank per GPU and leave parallel.backend at auto, or use parallel.strategy=ddp",
        )
    if joined.remark:
        marks.remark(joined.remark)
    if joined.backend:
        marks.metric("backend_is_nccl", float(joined.backend == NCCL))
    return Ranks(rank=joined.rank, ranks=joined.ranks, device=joined.device)


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
