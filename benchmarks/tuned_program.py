"""A script of a reader, tuned by tune_rehearsal.py: its batches and layers take a known time, its network is real.

    python benchmarks/tuned_program.py --bucket-mb 1 --workers 2 --hook none --steps 40

DDP reduces 10 MB of gradients (less at a smaller ``--width``) in real buckets while earlier layers are still
"computed", by sleeping; workers of a DataLoader "decode" by sleeping, and beyond four of them a rank disturb each
other.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader, Dataset

LAYERS, WIDTH = 40, 256  # 256 KiB of gradients each: 4 × its square
FORWARD_S, BACKWARD_S = 2e-3, 4e-3  # of a layer
SAMPLE_S = 60e-3
BATCH = 16
WARMUP = 5  # steps
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

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, width] → the same shape."""
        for layer in self.layers:
            x = Slow.apply(layer(x))
        return x


class Samples(Dataset[torch.Tensor]):
    """Samples that take time to decode."""

    def __init__(self, steps: int, width: int, workers: int, sample_s: float) -> None:
        self.steps, self.width = steps, width
        self.sample_s = sample_s * (1 + CROWDED * max(0, workers - FREE_WORKERS))

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sample_s)
        return torch.zeros(self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is tuned."""

    bucket_mb: float
    workers: int
    hook: str


def train(setting: Setting, steps: int, width: int = WIDTH, sample_s: float = SAMPLE_S) -> tuple[float, float]:
    """Train for some steps; seconds per step after the first five, and those of them spent waiting for a batch."""
    model = nn.parallel.DistributedDataParallel(Network(width), bucket_cap_mb=setting.bucket_mb)
    if setting.hook == "fp16":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = Samples(steps, width, setting.workers, sample_s)
    loader = DataLoader(samples, batch_size=BATCH, num_workers=setting.workers)
    ends, waits = [], []
    begin = time.perf_counter()
    for batch in loader:
        waits.append(time.perf_counter() - begin)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        begin = time.perf_counter()
        ends.append(begin)
    return (ends[-1] - ends[WARMUP - 1]) / (steps - WARMUP), sum(waits[WARMUP:]) / (steps - WARMUP)


def main() -> None:
    """Train with one setting, or with each of a file's in turn and print what rank 0 measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--hook", choices=["none", "fp16"], default="none")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sample-ms", type=float, default=1000 * SAMPLE_S, help="what a worker takes for a sample")
    parser.add_argument("--width", type=int, default=WIDTH, help="of a layer")
    parser.add_argument("--settings", type=Path, help="JSON list of settings: train with each, results go to --output")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.settings is None:
        train(
            Setting(bucket_mb=options.bucket_mb, workers=options.workers, hook=options.hook),
            options.steps,
            options.width,
            options.sample_ms / 1000,
        )
    else:
        for setting in json.loads(options.settings.read_text(encoding="utf-8")):
            step_s, wait_s = train(Setting(**setting), options.steps, options.width)
            if dist.get_rank() == 0:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**setting, "step_s": step_s, "wait_s": wait_s}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
