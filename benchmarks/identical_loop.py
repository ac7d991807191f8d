"""The program that ``identical_runs.py`` trains over and over: a small network under DDP, maybe slower by a set share.

    python benchmarks/identical_loop.py [--steps N] [--seed N] [--slower SHARE]

``--slower 0.05`` sleeps after each step for 5 % of what it took: a planted change of known size, on a machine of any
speed and load.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32
CLASSES = 10


def network() -> nn.Module:
    """A small convolutional network for images of 32 by 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)),
    )


def main() -> None:
    """Train as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slower", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begin = time.perf_counter()
    for _ in range(options.steps):
        images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        if options.slower > 0:
            time.sleep(options.slower * (time.perf_counter() - begin))
        begin = time.perf_counter()
        optimizer.step()
    dist.barrier()  # no rank is gone while another still reduces
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
