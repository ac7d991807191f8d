"""DistributedDataParallel with all its options: gradients are averaged during backward."""

from __future__ import annotations

import inspect
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from allpull.errors import BadInput, MissingPart
from allpull.schema.trainspec import ParallelSpec
from allpull.train.parallel.powersgd import PowerSgd
from allpull.train.parallel.ranks import Ranks

NEVER = 2**31 - 1  # steps between samples; the first ten are always timed
AGREE_S = 60.0  # hosts are at most seconds apart, and a collective times out after ten minutes


class Ddp:
    """A network whose gradients DistributedDataParallel averages in backward; ``powersgd``: its communication hook."""

    def __init__(self, module: DistributedDataParallel, ranks: Ranks, powersgd: PowerSgd | None = None) -> None:
        self.module = module
        self.powersgd = powersgd
        self._ranks = ranks

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients of micro-batches accumulate on each rank and are exchanged in the backward of the last one.

        Raises:
            BadInput: this is not the last one, and the graph is declared static.
        """
        if not last and self.module.static_graph:  # torch would fail an assertion
            raise BadInput(
                "parallel.static_graph: gradients of several micro-batches cannot be accumulated with it",
                hint="turn parallel.static_graph off, or set train.accumulate to 1",
            )
        return nullcontext() if last else self.module.no_sync()

    def after_backward(self) -> None:
        """Gradients are exchanged already."""

    def gathered(self) -> AbstractContextManager[None]:
        """Every rank has all weights."""
        return nullcontext()

    def discard(self) -> None:
        """Reset the reducer, which still expects the buckets of a failed backward.

        It then rebuilds its buckets in a collective of the next steps: a single rank would wait there for ever. A
        pending exchange is not waited for; in a capture, for which this is used, none is pending.

        Raises:
            MissingPart: the backward of other ranks did not fail, or this version of torch cannot do it.
        """
        reset = getattr(self.module.reducer, "_reset_state", None)
        if reset is None:
            raise MissingPart(
                f"DistributedDataParallel of torch {torch.__version__} cannot continue after a failed backward",
                hint="turn train.cuda_graph off",
            )
        if not self._ranks.all_report("discarded", AGREE_S):
            raise MissingPart(
                f"the step was captured on some ranks, but not on rank {self._ranks.rank}",
                hint="turn train.cuda_graph off; an earlier remark of this rank says why it failed",
            )
        reset()


def wrap(model: nn.Module, parallel: ParallelSpec, ranks: Ranks) -> Ddp:
    """``model`` in DistributedDataParallel with the options of ``parallel``; it gets rank 0's weights and buffers.

    By default each rank keeps its own batch statistics until an evaluation.

    Raises:
        MissingPart: this version of torch lacks an option.
    """
    # gradients of 1×1 convolutions on CPUs have other strides than their bucket; harmless (pytorch #47163)
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    if parallel.compression == "powersgd":  # it views gradients as matrices, which channels-last ones do not allow
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    module = DistributedDataParallel(model, **options(parallel))
    # it times every 100th step with events, which cannot be queried if they were captured in a CUDA graph
    module._set_ddp_runtime_logging_sample_rate(NEVER)  # type: ignore[no-untyped-call]  # torch's
    return Ddp(module, ranks, compress(module, parallel))


def unsettled_passes(parallel: ParallelSpec) -> int:
    """After how many backward passes DistributedDataParallel has laid out its buckets; 0: none may be made for that.

    It does so once per process, in the order in which gradients became ready in the first pass, or in the second one of
    a static graph, whose first pass only counts them.
    """
    if parallel.compression == "powersgd":
        return 0
    return 2 if parallel.static_graph else 1


def options(parallel: ParallelSpec) -> dict[str, Any]:
    """The arguments of DistributedDataParallel for ``parallel`` in this version of torch.

    Raises:
        MissingPart: this version of torch lacks an option.
    """
    names = inspect.signature(DistributedDataParallel).parameters
    # torch 2.13 renamed the switch; before, broadcast_buffers also governs the broadcast at construction.
    broadcast = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    arguments: dict[str, Any] = {broadcast: parallel.broadcast_buffers, "gradient_as_bucket_view": parallel.bucket_view}
    if parallel.static_graph:
        arguments["static_graph"] = True
    if len(parallel.bucket_mb) == 1:
        arguments["bucket_cap_mb"] = parallel.bucket_mb[0]
    elif parallel.bucket_mb:
        arguments["bucket_cap_mb_list"] = [*parallel.bucket_mb]
    if parallel.batched_copy:
        arguments["batched_grad_copy"] = True
    for name, option in (("bucket_cap_mb_list", "bucket_mb with several sizes"), ("batched_grad_copy", "batched_copy")):
        if name in arguments and name not in names:
            raise MissingPart(
                f"parallel.{option}: the DistributedDataParallel of torch {torch.__version__} has no {name}",
                hint="torch 2.13 and newer have it",
            )
    return arguments


def compress(module: DistributedDataParallel, parallel: ParallelSpec) -> PowerSgd | None:
    """Register the hook of ``parallel.compression``; returns PowerSGD's, which has state."""
    if parallel.compression == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif parallel.compression == "bf16":
        # DistributedDataParallel checks this hook by name and allows it only with NCCL; Gloo works too
        module.register_comm_hook(None, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket))  # noqa: PLW0108  see above
    elif parallel.compression == "powersgd":
        hook = PowerSgd(module.module, parallel, one_by_one=dist.get_backend() != "nccl")
        module.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108  it refuses string annotations
        return hook
    return None
