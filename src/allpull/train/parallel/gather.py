"""Bring together what each rank has of its own: rows of a table, and named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from allpull.train.parallel.ranks import Ranks


def rows_of_all(rows: Tensor, ranks: Ranks) -> Tensor:
    """The rows [n, …] of all ranks below each other, in the order of ranks, on every rank; n may differ. A collective.

    >>> rows_of_all(torch.ones(2, 3), Ranks(rank=0, ranks=1, device=torch.device("cpu"))).shape
    torch.Size([2, 3])
    """
    if ranks.ranks == 1:
        return rows
    counts = torch.zeros(ranks.ranks, dtype=torch.int64, device=ranks.device)
    counts[ranks.rank] = len(rows)
    held: list[int] = ranks.total(counts).tolist()
    # every rank sends as many rows as the one with most, since collectives are of one size
    sent = rows.new_zeros(max(held), *rows.shape[1:], device=_wire(ranks))
    sent[: len(rows)] = rows
    slots = [torch.empty_like(sent) for _ in held]
    dist.all_gather(slots, sent)
    return torch.cat([slot[:count] for slot, count in zip(slots, held, strict=True)]).to(rows.device)


def named_of_all(own: Mapping[str, Tensor], ranks: Ranks) -> list[dict[str, Tensor]]:
    """Copies on the CPU of every rank's ``own``, in the order of ranks, on rank 0; the others get none. A collective.

    Names, shapes and types are the same on all ranks. All goes as bytes, in one message a rank.
    """
    if ranks.ranks == 1:
        return [{name: value.detach().to("cpu", copy=True) for name, value in own.items()}]
    if not own:
        return [{} for _ in range(ranks.ranks)] if ranks.rank == 0 else []
    sent = torch.cat([_bytes(value).to(_wire(ranks)) for value in own.values()])
    slots = [torch.empty_like(sent) for _ in range(ranks.ranks)] if ranks.rank == 0 else None
    dist.gather(sent, slots)
    return [_named(slot.cpu(), own) for slot in slots or ()]


def least(value: int, ranks: Ranks) -> int:
    """The smallest ``value`` of any rank. A collective."""
    if ranks.ranks == 1:
        return value
    smallest = torch.tensor([value], device=ranks.device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest.item())


def _wire(ranks: Ranks) -> torch.device:
    """Where a gather finds its tensors: Gloo has them on the CPU, also where ranks compute on a GPU."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else ranks.device


def _bytes(value: Tensor) -> Tensor:
    return value.detach().contiguous().view(-1).view(torch.uint8)


def _named(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(flat, [value.numel() * value.element_size() for value in like.values()])
    # a copy of each part stands at the beginning of its memory, where any type may stand
    return {
        name: part.clone().view(value.dtype).view(value.shape)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
