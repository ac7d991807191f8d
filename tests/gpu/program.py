"""A training program with a clock of its own: events of CUDA around the parts of each step, written as JSON at the end.

    program.py OUT [--width N] [--batch N] [--size N] [--steps N] [--passes N] [--backend gloo|nccl] [--late-ms X]
        [--graph]

With ``--backend`` it is DistributedDataParallel; ``--late-ms``: rank 1 sleeps so long in each step; ``--graph``: it
captures its whole step itself and replays it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

DEPTH = 10


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    for name, default in (("width", 64), ("batch", 32), ("size", 64), ("steps", 40), ("passes", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--late-ms", type=float, default=0.0)
    parser.add_argument("--backend", choices=["gloo", "nccl"])
    parser.add_argument("--graph", action="store_true")
    return parser.parse_args()


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(DEPTH):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()


def now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Training:
    """A network that is trained on one batch, again and again."""

    def __init__(self, options: argparse.Namespace) -> None:
        inner = network(options.width)
        self.model = nn.parallel.DistributedDataParallel(inner) if options.backend else inner
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn(options.batch, 3, options.size, options.size, device="cuda")
        self.labels = torch.randint(10, (options.batch,), device="cuda")

    def loss(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(self.images), self.labels)

    def step(self, passes: int) -> list[torch.cuda.Event]:
        """Events before forward, after it, and after backward of each pass, and after the optimizer."""
        self.optimizer.zero_grad()
        events = []
        for _ in range(passes):
            events.append(now())
            loss = self.loss()
            events.append(now())
            loss.backward()
            events.append(now())
        self.optimizer.step()
        return [*events, now()]

    def captured(self) -> torch.cuda.CUDAGraph:
        """A whole step, as PyTorch's notes on CUDA graphs capture it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step(1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            self.loss().backward()
            self.optimizer.step()
        return graph


def between(events: list[torch.cuda.Event]) -> list[float]:
    return [one.elapsed_time(other) for one, other in zip(events, events[1:], strict=False)]


def main() -> None:
    options = asked()
    rank = int(os.environ.get("RANK", "0"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if options.backend:
        dist.init_process_group(options.backend)
    training = Training(options)
    graph = training.captured() if options.graph else None
    steps = []
    for _ in range(options.steps):
        if rank == 1:
            time.sleep(options.late_ms / 1e3)
        if graph is None:
            steps.append(training.step(options.passes))
        else:
            graph.replay()
            steps.append([now()])
    torch.cuda.synchronize()
    measured = {"step_ms": between([events[-1] for events in steps]), "parts_ms": [between(events) for events in steps]}
    kind = "-graph" if graph else ""
    (options.out / f"own-{rank}{kind}.json").write_text(json.dumps(measured), encoding="ascii")
    if options.backend:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
