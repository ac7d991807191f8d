"""When each bucket of gradients is ready in backward, measured with DistributedDataParallel on a single rank."""

# No annotations from __future__ here: DDP compares those of its hook with its own types, and they must not be text.
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.nn.parallel import DistributedDataParallel

from allpull.probe.step_timing import Moments, Trained

WARMUP = 3  # DDP reorders its buckets by the first backward, in the second step


class Arrivals:
    """A comm hook that records when each bucket is ready, and returns it unchanged."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Forget the step before."""
        self.moments, self.sizes = Moments(self._device), list[int]()

    def ready(self, _: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """The comm hook: DDP calls it in place of an all-reduce."""
        self.moments.mark()
        self.sizes.append(bucket.buffer().nbytes)
        answer: torch.futures.Future[Tensor] = torch.futures.Future()
        answer.set_result(bucket.buffer())
        return answer


@contextmanager
def single_rank_group(device: torch.device) -> Iterator[None]:
    """A process group with this process as its only rank."""
    store = HashStore()
    backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ready_times(
    model: nn.Module, images: Tensor, *, classes: int, precision: str, bucket_bytes: int, steps: int
) -> dict[str, Any]:
    """Seconds from the begin of backward to its end and to each bucket, of ``steps`` steps; needs a process group.

    The fields of ``schema.probes.BucketsMeasured`` that are measured; of a GPU all moments are its own.
    """
    arrivals = Arrivals(images.device)
    devices = [images.device] if images.device.type == "cuda" else None
    parallel = DistributedDataParallel(
        model, device_ids=devices, bucket_cap_mb=bucket_bytes / 2**20, gradient_as_bucket_view=True
    )
    parallel.register_comm_hook(None, arrivals.ready)
    trained = Trained(parallel, images=images, classes=classes, precision=precision)
    backward_s: list[float] = []
    ready_s: list[list[float]] = []
    sizes: list[int] = []
    for step in range(WARMUP + steps):
        arrivals.begin()
        own = Moments(images.device)

        def mark(own: Moments = own) -> None:
            own.mark()
            if len(own.host_s) == 2:  # backward begins: the moment that all others are counted from
                arrivals.moments.marks, arrivals.moments.host_s = own.marks[-1:], own.host_s[-1:]

        trained.step(mark)
        if step < WARMUP:
            continue
        gaps = arrivals.moments.between()
        ready_s.append([sum(gaps[: place + 1]) for place in range(len(gaps))])
        backward_s.append(own.between()[1])
        sizes = arrivals.sizes
    buckets = [{"size_bytes": size, "ready_s": [one[place] for one in ready_s]} for place, size in enumerate(sizes)]
    return {"backward_s": backward_s, "buckets": buckets}
