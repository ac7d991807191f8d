"""This rank among the others: joining, adding up, averaging."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from allpull import marks
from allpull.backend import GLOO, NCCL
from allpull.backend import join as join_group
from allpull.errors import MissingPart
from allpull.schema.trainspec import ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who we are. A rank alone needs no process group, and every collective is then the identity."""

    rank: int
    ranks: int
    device: torch.device

    def total(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def average_buffers(self, model: nn.Module) -> None:
        """Give all ranks the mean of their floating-point buffers: batch statistics, before an evaluation."""
        if self.ranks == 1:
            return
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if buffers:
            flat = torch.cat([buffer.flatten() for buffer in buffers])
            dist.all_reduce(flat)
            flat /= self.ranks
            for buffer, mean in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
                buffer.copy_(mean.view_as(buffer))

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.total(torch.zeros(1, device=self.device)).item()

    def settle(self) -> None:
        """Wait until the device has done what it was given; a CPU always has."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def all_say(self, word: str, limit_s: float) -> bool:
        """Whether every rank says ``word``, once in its life and no more than ``limit_s`` after us.

        By the store, without a collective: where others are in one, and wait for us, the answer is no.
        """
        store = self.store()
        if store.add(word, 1) == self.ranks:
            store.set(f"all {word}", "yes")
        try:
            store.wait([f"all {word}"], timedelta(seconds=limit_s))
        except RuntimeError:  # torch's own kinds of it, by the kind of store and version
            return False
        return True

    def store(self) -> Store:
        """A connection of its own to the store in which the ranks of this attempt met."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return PrefixStore(f"allpull/{attempt}", TCPStore(address, port, is_master=False, wait_for_workers=False))


def join(threads: int, parallel: ParallelSpec) -> Ranks:
    """Join the ranks that torchrun started, which exchange as ``parallel.backend`` says.

    Raises:
        AllpullError: they cannot do so, or cannot share a network so (``allpull.backend``).
    """
    torch.set_num_threads(threads)
    place = join_group(parallel.backend)
    if parallel.strategy == "fsdp" and place.backend == GLOO and place.gpus:  # as all ranks say
        raise MissingPart(
            "parallel.strategy=fsdp: on GPUs it needs NCCL, and these ranks exchange through Gloo",
            hint="start at most one rank a GPU and leave parallel.backend at auto, or take parallel.strategy=ddp",
        )
    if place.remark:
        marks.remark(place.remark)
    if place.backend:
        marks.metric("backend_is_nccl", float(place.backend == NCCL))
    return Ranks(rank=place.rank, ranks=place.ranks, device=place.device)


def part() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
