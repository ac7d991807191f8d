"""The loops that ``overhead.py`` measures: train as many steps as ordered, and answer what they took.

    python benchmarks/overhead_loop.py LOOP SOCKET [--batch N] [--beside traceml|profiler]

Orders come as lines through a Unix socket, so that any launcher may stand between, and the first of them is a warm-up.
``--beside`` is the edit that a tool asks of its users; without it this is a program that knows of nobody who watches.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

CALLS = 16  # all-reduces a step of the loop ``calls``
ARRAYS = 24  # tensors that a step of the loop ``arrays`` makes of arrays: two for each of nanoGPT's 12 samples
SAMPLES = 1024
CLASSES = 3
WIDTH = 512

Batch = list[torch.Tensor]
Step = Callable[[Batch], None]


def conv() -> nn.Module:
    """A small convolutional network for images of 32 by 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True)),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)),
    )


def mlp() -> nn.Module:
    """Four layers as wide as a small Transformer's, whose step of some 3 ms empties the caches of a core."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def training(loop: str, batch: int) -> tuple[nn.Module, Iterator[Batch], Step]:
    """The network, the batches and the step of ``loop``."""
    torch.manual_seed(0)
    shape: tuple[int, ...] = (8,)
    network: nn.Module = nn.Linear(8, CLASSES)
    if loop == "conv":
        network, shape = conv(), (3, 32, 32)
    if loop == "mlp":
        network, shape = mlp(), (WIDTH,)
    if loop in ("ddp", "calls"):
        if "MASTER_ADDR" in os.environ:
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if loop == "ddp":
        inner = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Linear(32, CLASSES))
        network = DistributedDataParallel(inner)
    data = TensorDataset(torch.randn(SAMPLES, *shape), torch.randint(0, CLASSES, (SAMPLES,)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    values = [torch.ones(1) for _ in range(CALLS if loop == "calls" else 0)]

    def step(samples: Batch) -> None:
        x, y = samples
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for value in values:
            dist.all_reduce(value)

    return network, from_arrays() if loop == "arrays" else endless(DataLoader(data, batch_size=batch)), step


def from_arrays() -> Iterator[Batch]:
    """Batches of ``ARRAYS`` samples, each made of an array."""
    samples = np.random.default_rng(0).random((SAMPLES, 8), dtype=np.float32)
    while True:
        x = torch.stack([torch.from_numpy(sample) for sample in samples[:ARRAYS]])
        yield [x, torch.zeros(ARRAYS, dtype=torch.long)]


def endless(loader: DataLoader[Any]) -> Iterator[Batch]:
    """One pass after another."""
    while True:
        yield from loader


def edited(
    step: Step, network: nn.Module, beside: str | None
) -> tuple[Step, Callable[[], AbstractContextManager[Any]]]:
    """``step`` as a tool wants it, and what goes around each order."""
    if beside == "traceml":
        import traceml_ai  # noqa: PLC0415  only where it is compared

        traceml_ai.init(mode="auto")

        def traced(samples: Batch) -> None:
            with traceml_ai.trace_step(network):
                step(samples)

        return traced, nullcontext
    if beside == "profiler":
        return step, lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    return step, nullcontext


def obey(orders: socket.socket, steps: Iterator[Batch], step: Step, around: Callable[[], Any]) -> None:
    """Train as ordered until nobody orders any more."""
    with orders.makefile("rw", encoding="ascii") as lines:
        for order in lines:
            wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            with around():
                for _ in range(int(order)):
                    step(next(steps))
            took = {"wall_ns": time.perf_counter_ns() - wall_ns, "cpu_ns": time.process_time_ns() - cpu_ns}
            lines.write(json.dumps(took) + "\n")
            lines.flush()


def main() -> None:
    """Make the training and wait for orders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=("conv", "mlp", "tiny", "ddp", "calls", "arrays"))
    parser.add_argument("socket")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--beside", choices=("traceml", "profiler"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, batches, step = training(options.loop, options.batch)
    step, around = edited(step, network, options.beside)
    with socket.socket(socket.AF_UNIX) as orders:
        orders.connect(options.socket)
        obey(orders, batches, step, around)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
