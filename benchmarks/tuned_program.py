"""A script of a reader, tuned by tune_rehearsal.py: its batches and layers take a known time, its network is real.

    python benchmarks/tuned_program.py --bucket-mb 1 --workers 2 --hook none --steps 40

DDP reduces 10 MB of gradients in real buckets while earlier layers are still "computed", by sleeping; workers of a
DataLoader "decode" by sleeping, and beyond four of them a rank disturb each other.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader, Dataset

LAYERS, WIDTH = 40, 256  # 256 KiB of gradients each
FORWARD_S, BACKWARD_S = 0.5e-3, 1e-3  # of a layer
SAMPLE_S = 15e-3
BATCH = 16
FREE_WORKERS, CROWDED = 4, 0.3  # each worker beyond those slows all by this share


class Slow(torch.autograd.Function):
    """Takes the time of a layer, forward and backward."""

    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:
        """The input, later."""
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient, later."""
        time.sleep(BACKWARD_S)
        return gradient


class Network(nn.Module):
    """Layers of equal size and time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, WIDTH] → the same shape."""
        for layer in self.layers:
            x = Slow.apply(layer(x))
        return x


class Samples(Dataset[torch.Tensor]):
    """Samples that take time to decode."""

    def __init__(self, steps: int, workers: int) -> None:
        self.steps = steps
        self.sample_s = SAMPLE_S * (1 + CROWDED * max(0, workers - FREE_WORKERS))

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sample_s)
        return torch.zeros(WIDTH)


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--hook", choices=["none", "fp16"], default="none")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Network(), bucket_cap_mb=options.bucket_mb)
    if options.hook == "fp16":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Samples(options.steps, options.workers), batch_size=BATCH, num_workers=options.workers)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
