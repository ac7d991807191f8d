"""The parallel strategies: DistributedDataParallel, an exchange after backward, or FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from allpull import marks
from allpull.errors import MissingPart
from allpull.schema.trainspec import ParallelSpec
from allpull.train.parallel import ddp, full_state
from allpull.train.parallel.powersgd import PowerSgd
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.reduce_after_backward import ReduceAfterBackward


class GradientExchange(Protocol):
    """The exchange of gradients and, with FSDP2, weights between ranks."""

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of forward and backward of one micro-batch; gradients are exchanged in the last one."""

    def after_backward(self) -> None:
        """Exchange what backward did not, after the last micro-batch."""

    def gathered(self) -> AbstractContextManager[None]:
        """In this context a forward pass without gradients is no collective; all ranks enter it."""

    def discard(self) -> None:
        """Drop the pending exchange of a backward that failed on all ranks at the same step."""


class SingleRank:
    """A single rank, which exchanges nothing."""

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  other strategies need it
        """Gradients of micro-batches accumulate."""
        return nullcontext()

    def after_backward(self) -> None:
        """There is no other rank."""

    def gathered(self) -> AbstractContextManager[None]:
        """Weights are never sharded."""
        return nullcontext()

    def discard(self) -> None:
        """Nothing is pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel:
    """A network distributed over the ranks.

    Call ``module`` to train. ``model`` is the network itself: evaluate it (within ``gathered()``), and make the
    optimizer from its parameters after distribution. Gradients are averaged over ranks: weight a rank's loss by its
    share of the global batch times the number of ranks. ``powersgd`` is the communication hook with its error feedback,
    if that compression is used. ``unsettled_passes``: after so many backward passes the order stays in which the
    gradients of ranks are added; 0 for one or two ranks, and for PowerSGD, whose passes cannot be without effect.
    """

    model: nn.Module
    module: nn.Module
    exchange: GradientExchange
    rank: int
    powersgd: PowerSgd | None = None
    unsettled_passes: int = 0

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of forward and backward of one micro-batch; all ranks have equally many.

        Gradients accumulate and are exchanged in the backward of the ``last`` one.
        """
        return self.exchange.micro_step(last=last)

    def after_backward(self) -> None:
        """Exchange gradients unless backward did; call it in each step, outside all phases."""
        self.exchange.after_backward()

    def gathered(self) -> AbstractContextManager[None]:
        """In this context a forward pass of ``model`` without gradients is no collective; all ranks enter it."""
        return self.exchange.gathered()

    def discard(self) -> None:
        """Reset the exchange after a backward that failed on all ranks at the same step.

        Raises:
            MissingPart: it failed on this rank and not on all, or this version of torch cannot do it.
        """
        self.exchange.discard()

    def clip(self, max_norm: float, parameters: Iterable[nn.Parameter] | None = None) -> Tensor:
        """Clip the exchanged gradients to a total norm of ``max_norm``; returns their norm before.

        It is equal on all ranks and 0-dimensional; a collective with FSDP2. ``parameters``: instead of the model's,
        such as the optimizer's master weights.
        """
        of = self.model.parameters() if parameters is None else parameters
        return full_state.full_tensor(nn.utils.clip_grad_norm_(of, max_norm))

    def model_state(self) -> dict[str, Tensor]:
        """As ``full_state.full_model_state``: whole, copied to the CPU; every rank calls it, rank 0 gets it."""
        return full_state.full_model_state(self.model, self.rank)

    def load_model_state(self, state: Mapping[str, Tensor]) -> None:
        """As ``full_state.load_full_model_state``: every rank gives the whole state, of whatever strategy."""
        full_state.load_full_model_state(self.model, state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """As ``full_state.full_optimizer_state``: whole, copied to the CPU; every rank calls it, rank 0 gets it."""
        return full_state.full_optimizer_state(optimizer, self.rank)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """As ``full_state.load_full_optimizer_state``: every rank gives the whole state, of whatever strategy."""
        full_state.load_full_optimizer_state(optimizer, state)


def distribute(
    model: nn.Module,
    parallel: ParallelSpec,
    ranks: Ranks,
    *,
    translate: Callable[[nn.Module], nn.Module] = lambda model: model,
    rounded_to: torch.dtype | None = None,
) -> SharedModel:
    """Distribute ``model`` as ``parallel`` says; it gets rank 0's weights and buffers. Every rank calls it.

    ``translate`` wraps the callable network, as ``torch.compile`` does: before DistributedDataParallel, and after
    FSDP2. A single rank ignores the strategy. With FSDP2 the network may still be on the CPU; and weights that autocast
    rounds are then sent as ``rounded_to``.

    Raises:
        MissingPart: this version of torch lacks an option, or the backend cannot do it.
    """
    if ranks.ranks == 1:
        return SharedModel(model=model, module=translate(model), exchange=SingleRank(), rank=0)
    if parallel.strategy == "ddp" and parallel.overlap:
        wrapped = ddp.wrap(translate(model), parallel, ranks)
        return SharedModel(
            model=model,
            module=wrapped.module,
            exchange=wrapped,
            rank=ranks.rank,
            powersgd=wrapped.powersgd,
            unsettled_passes=ddp.unsettled_passes(parallel) if ranks.ranks > 2 else 0,
        )
    broadcast_from_rank_0(model, ranks.device)
    exchange: GradientExchange
    if parallel.strategy == "fsdp":
        exchange = _fsdp(model, parallel, ranks, rounded_to)
    else:
        sizes_mb, compression = parallel.bucket_mb, parallel.compression
        exchange = ReduceAfterBackward(model, ranks=ranks.ranks, sizes_mb=sizes_mb, compression=compression)
    return SharedModel(model=model, module=translate(model), exchange=exchange, rank=ranks.rank)


def broadcast_from_rank_0(model: nn.Module, device: torch.device) -> None:
    """Broadcast the parameters and buffers of rank 0 through ``device``, whatever their own device; a collective."""
    for value in (*model.parameters(), *model.buffers()):
        sent = value.detach().to(device)  # no copy if it is there already
        dist.broadcast(sent, 0)
        if sent.device != value.device:
            value.detach().copy_(sent)


def _fsdp(model: nn.Module, parallel: ParallelSpec, ranks: Ranks, rounded_to: torch.dtype | None) -> GradientExchange:
    try:
        from allpull.train.parallel import fsdp  # noqa: PLC0415  takes half a second and needs torch 2.6
    except ImportError as error:
        raise MissingPart(
            f"parallel.strategy: torch {torch.__version__} has no FSDP2", hint="torch 2.6 and newer have it"
        ) from error
    if rounded_to and not fsdp.can_exclude_parameters() and ranks.rank == 0:
        marks.remark(
            f"parallel.strategy: fsdp of torch {torch.__version__} sends weights in single precision: it cannot "
            "exclude norms; torch 2.7 and newer can"
        )
    return fsdp.shard(model, ranks, reshard=parallel.reshard, rounded_to=rounded_to)
