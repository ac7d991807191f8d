"""Gather the data of all ranks: rows of a table, and named tensors; and the global minimum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from allpull.train.parallel.ranks import Ranks


def gather_rows(rows: Tensor, ranks: Ranks) -> Tensor:
    """The rows [n, …] of all ranks, concatenated in rank order, on every rank; n may differ. A collective.

    >>> gather_rows(torch.ones(2, 3), Ranks(rank=0, ranks=1, device=torch.device("cpu"))).shape
    torch.Size([2, 3])
    """
    if ranks.ranks == 1:
        return rows
    counts = torch.zeros(ranks.ranks, dtype=torch.int64, device=ranks.device)
    counts[ranks.rank] = len(rows)
    rows_per_rank: list[int] = ranks.total(counts).tolist()
    # padded to the largest rank, because all ranks send equally much
    sent = rows.new_zeros(max(rows_per_rank), *rows.shape[1:], device=_transport_device(ranks))
    sent[: len(rows)] = rows
    slots = [torch.empty_like(sent) for _ in rows_per_rank]
    dist.all_gather(slots, sent)
    return torch.cat([slot[:count] for slot, count in zip(slots, rows_per_rank, strict=True)]).to(rows.device)


def gather_named(own: Mapping[str, Tensor], ranks: Ranks) -> list[dict[str, Tensor]]:
    """Copies on the CPU of every rank's ``own``, in rank order, on rank 0; the others get an empty list. A collective.

    Names, shapes and types are equal on all ranks. Each rank sends one message of bytes.
    """
    if ranks.ranks == 1:
        return [{name: value.detach().to("cpu", copy=True) for name, value in own.items()}]
    if not own:
        return [{} for _ in range(ranks.ranks)] if ranks.rank == 0 else []
    sent = torch.cat([_bytes(value).to(_transport_device(ranks)) for value in own.values()])
    slots = [torch.empty_like(sent) for _ in range(ranks.ranks)] if ranks.rank == 0 else None
    dist.gather(sent, slots)
    return [_named(slot.cpu(), own) for slot in slots or ()]


def global_min(value: int, ranks: Ranks) -> int:
    """The smallest ``value`` of all ranks. A collective."""
    if ranks.ranks == 1:
        return value
    smallest = torch.tensor([value], device=ranks.device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest.item())


def _transport_device(ranks: Ranks) -> torch.device:
    """The device of tensors in a gather: with Gloo the CPU, even if ranks compute on a GPU."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else ranks.device


def _bytes(value: Tensor) -> Tensor:
    return value.detach().contiguous().view(-1).view(torch.uint8)


def _named(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(flat, [value.numel() * value.element_size() for value in like.values()])
    # cloned: a fresh allocation is aligned for any type
    return {
        name: part.clone().view(value.dtype).view(value.shape)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
