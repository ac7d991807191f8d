"""DistributedDataParallel with all that can be set in it: gradients are averaged while backward goes on."""

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

NEVER = 2**31 - 1  # steps from one time to the next; the first ten are timed in any case
FORGET_S = 60.0  # hosts of ranks are seconds apart at most, and a device's collective waits ten minutes


class Ddp:
    """A network whose gradients DistributedDataParallel averages, in backward; ``powersgd``: the way it sends them."""

    def __init__(self, module: DistributedDataParallel, ranks: Ranks, powersgd: PowerSgd | None = None) -> None:
        self.module = module
        self.powersgd = powersgd
        self._ranks = ranks

    def micro(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients of parts add up in each rank, and are exchanged in the backward of the last one.

        Raises:
            BadInput: this is not the last, and the graph was promised to be static.
        """
        if not last and self.module.static_graph:  # torch ends in an assertion of its own
            raise BadInput(
                "parallel.static_graph: gradients of several parts of a batch cannot be added up then",
                hint="leave parallel.static_graph off, or set train.accumulate to 1",
            )
        return nullcontext() if last else self.module.no_sync()

    def after_backward(self) -> None:
        """They are exchanged already."""

    def whole(self) -> AbstractContextManager[None]:
        """Every rank has all weights anyway."""
        return nullcontext()

    def forget(self) -> None:
        """Have torch wait no more for the buckets of a backward that broke off.

        It then agrees upon buckets anew in the next steps, in a collective: one rank alone would wait there for ever.
        An exchange that is under way is not waited for; in a recording, which this is for, none is.

        Raises:
            MissingPart: other ranks go on as they were, or this version of torch cannot.
        """
        reset = getattr(self.module.reducer, "_reset_state", None)
        if reset is None:
            raise MissingPart(
                f"DistributedDataParallel of torch {torch.__version__} cannot go on after a backward that broke off",
                hint="leave train.cuda_graph off",
            )
        if not self._ranks.all_say("broke off", FORGET_S):
            raise MissingPart(
                f"the step could be recorded on some ranks, and not on rank {self._ranks.rank}",
                hint="leave train.cuda_graph off; what this rank said before is why it could not",
            )
        reset()


def wrap(model: nn.Module, parallel: ParallelSpec, ranks: Ranks) -> Ddp:
    """``model`` in DistributedDataParallel as ``parallel`` says; it gets the weights and buffers of rank 0.

    By default batch statistics stay each rank's own until they are evaluated.

    Raises:
        MissingPart: this version of torch has no such option.
    """
    # 1×1 convolutions on CPU make gradients of other strides than their bucket; harmless (pytorch #47163)
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    if parallel.compression == "powersgd":  # it takes gradients for matrices, which channels-last ones are not
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    module = DistributedDataParallel(model, **options(parallel))
    # every 100th step it times itself by events: one recorded in a CUDA graph could not be asked in the next such step
    module._set_ddp_runtime_logging_sample_rate(NEVER)  # type: ignore[no-untyped-call]  # torch's
    return Ddp(module, ranks, compress(module, parallel))


def options(parallel: ParallelSpec) -> dict[str, Any]:
    """What ``parallel`` asks of DistributedDataParallel, in the words of the torch that is here.

    Raises:
        MissingPart: this version of torch has no such option.
    """
    names = inspect.signature(DistributedDataParallel).parameters
    # torch 2.13 renamed the switch; before, broadcast_buffers also governs the broadcast at construction.
    broadcast = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    asked: dict[str, Any] = {broadcast: parallel.broadcast_buffers, "gradient_as_bucket_view": parallel.bucket_view}
    if parallel.static_graph:
        asked["static_graph"] = True
    if len(parallel.bucket_mb) == 1:
        asked["bucket_cap_mb"] = parallel.bucket_mb[0]
    elif parallel.bucket_mb:
        asked["bucket_cap_mb_list"] = [*parallel.bucket_mb]
    if parallel.batched_copy:
        asked["batched_grad_copy"] = True
    for name, option in (("bucket_cap_mb_list", "bucket_mb with several sizes"), ("batched_grad_copy", "batched_copy")):
        if name in asked and name not in names:
            raise MissingPart(
                f"parallel.{option}: the DistributedDataParallel of torch {torch.__version__} has no {name}",
                hint="torch 2.13 and newer have it",
            )
    return asked


def compress(module: DistributedDataParallel, parallel: ParallelSpec) -> PowerSgd | None:
    """Have gradients sent as ``parallel.compression`` says; PowerSGD, which remembers something, is returned."""
    if parallel.compression == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif parallel.compression == "bf16":
        # DistributedDataParallel knows this hook by its name and lets only NCCL run it; Gloo can, too
        module.register_comm_hook(None, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket))  # noqa: PLW0108  see above
    elif parallel.compression == "powersgd":
        hook = PowerSgd(module.module, parallel, one_by_one=dist.get_backend() != "nccl")
        module.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108  it refuses types that are text
        return hook
    return None
