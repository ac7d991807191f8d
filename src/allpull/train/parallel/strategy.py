"""How the ranks share a training step: with DistributedDataParallel, with an exchange after backward, or with FSDP2."""

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
from allpull.train.parallel.reduce_after_backward import LaterReduce


class Exchange(Protocol):
    """How gradients, and with FSDP2 weights, get from rank to rank."""

    def micro(self, *, last: bool) -> AbstractContextManager[None]:
        """Stands around forward and backward of one part of a rank's batch; gradients are exchanged in the last one."""

    def after_backward(self) -> None:
        """Exchange what backward left to exchange, after the last part."""

    def whole(self) -> AbstractContextManager[None]:
        """Within it a forward pass without gradients is no collective; every rank enters and leaves it."""

    def forget(self) -> None:
        """Drop what a backward that broke off, on all ranks at the same step, left of its exchange."""


class Alone:
    """A rank that has no others."""

    def micro(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  others need to know
        """Gradients of parts add up."""
        return nullcontext()

    def after_backward(self) -> None:
        """There is nobody to exchange them with."""

    def whole(self) -> AbstractContextManager[None]:
        """It always is."""
        return nullcontext()

    def forget(self) -> None:
        """Nothing was exchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A network as the ranks share it.

    ``module`` is called to train. ``model`` is the network itself: it is evaluated (within ``whole()``), and has the
    parameters for the optimizer, which is to be made after sharing. Gradients are averaged over ranks: a rank's loss is
    to be weighted by its share of the global batch times the number of ranks. ``powersgd`` has what was left out of the
    gradients so far, where that is how they are sent.
    """

    model: nn.Module
    module: nn.Module
    exchange: Exchange
    rank: int
    powersgd: PowerSgd | None = None

    def micro(self, *, last: bool) -> AbstractContextManager[None]:
        """Stands around forward and backward of one part of this rank's batch, of which all ranks have as many.

        Gradients of parts add up, and are exchanged in the backward of the ``last`` one.
        """
        return self.exchange.micro(last=last)

    def after_backward(self) -> None:
        """Exchange gradients where that is not done in backward; to be called in each step, outside all phases."""
        self.exchange.after_backward()

    def whole(self) -> AbstractContextManager[None]:
        """Within it a forward pass of ``model`` without gradients is no collective; every rank enters and leaves it."""
        return self.exchange.whole()

    def forget(self) -> None:
        """Have the exchange begin anew after a backward that broke off, on all ranks at the same step.

        Raises:
            MissingPart: it broke off on this rank and not on all, or this version of torch cannot.
        """
        self.exchange.forget()

    def clip(self, max_norm: float, parameters: Iterable[nn.Parameter] | None = None) -> Tensor:
        """Scale the exchanged gradients down to a norm of at most ``max_norm``; the norm that they had, all together.

        It is the same on all ranks, and 0-dimensional; a collective with FSDP2. ``parameters``: other ones than the
        model's, such as copies of them that the optimizer has.
        """
        of = self.model.parameters() if parameters is None else parameters
        return full_state.whole(nn.utils.clip_grad_norm_(of, max_norm))

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


def share_out(
    model: nn.Module,
    parallel: ParallelSpec,
    ranks: Ranks,
    *,
    translate: Callable[[nn.Module], nn.Module] = lambda model: model,
    rounded_to: torch.dtype | None = None,
) -> Shared:
    """``model`` as ``parallel`` says; it gets the weights and buffers of rank 0. Every rank calls it.

    ``translate`` makes of a network what is called in its place, as ``torch.compile`` does: before
    DistributedDataParallel, and after FSDP2. A single rank has nothing to share, whatever the strategy. With FSDP2 the
    network may stand on the CPU, whatever the device; and what autocast has ``rounded_to`` then travels as such.

    Raises:
        MissingPart: this version of torch has no such option, or what ranks exchange through cannot do it.
    """
    if ranks.ranks == 1:
        return Shared(model=model, module=translate(model), exchange=Alone(), rank=0)
    if parallel.strategy == "ddp" and parallel.overlap:
        wrapped = ddp.wrap(translate(model), parallel, ranks)
        return Shared(model=model, module=wrapped.module, exchange=wrapped, rank=ranks.rank, powersgd=wrapped.powersgd)
    as_rank_0_has_it(model, ranks.device)
    exchange: Exchange
    if parallel.strategy == "fsdp":
        exchange = _fsdp(model, parallel, ranks, rounded_to)
    else:
        sizes_mb, compression = parallel.bucket_mb, parallel.compression
        exchange = LaterReduce(model, ranks=ranks.ranks, sizes_mb=sizes_mb, compression=compression)
    return Shared(model=model, module=translate(model), exchange=exchange, rank=ranks.rank)


def as_rank_0_has_it(model: nn.Module, device: torch.device) -> None:
    """Give every rank the parameters and buffers of rank 0, wherever they stand, by way of ``device``; a collective."""
    for value in (*model.parameters(), *model.buffers()):
        sent = value.detach().to(device)  # itself, where it stands there
        dist.broadcast(sent, 0)
        if sent.device != value.device:
            value.detach().copy_(sent)


def _fsdp(model: nn.Module, parallel: ParallelSpec, ranks: Ranks, rounded_to: torch.dtype | None) -> Exchange:
    try:
        from allpull.train.parallel import fsdp  # noqa: PLC0415  it takes half a second, and needs torch 2.6
    except ImportError as error:
        raise MissingPart(
            f"parallel.strategy: torch {torch.__version__} has no FSDP2", hint="torch 2.6 and newer have it"
        ) from error
    if rounded_to and not fsdp.can_leave_out() and ranks.rank == 0:
        marks.remark(
            f"parallel.strategy: fsdp of torch {torch.__version__} sends weights in single precision, since it cannot "
            "leave norms out; torch 2.7 and newer can"
        )
    return fsdp.share(model, ranks, reshard=parallel.reshard, rounded_to=rounded_to)
