"""A plain PyTorch program on handwritten digits, with a fault in it that can be asked for.

    torchrun --nproc-per-node 2 benchmarks/faulty_program.py [--late-in forward --rank 1 --delay-ms 20] [--steps 80]

It computes for real: a small ResNet, DistributedDataParallel with torch's defaults (so batch statistics are broadcast
in every step), a DataLoader. `real_faults.py` runs it under `allpull run`, which sees nothing of the options' meaning.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from allpull.data.datasets.digits import read
from allpull.train.models.resnet_cifar import resnet8


class Digits(Dataset[tuple[Tensor, int]]):
    """The training digits as float images [1, 16, 16], each of which takes ``delay_s`` to get."""

    def __init__(self, delay_s: float) -> None:
        data = read("")
        images = torch.from_numpy(data.train.images).permute(0, 3, 1, 2).float()
        self.images = nn.functional.interpolate((images - data.mean) / data.std, size=16)
        self.labels = data.train.labels
        self.delay_s = delay_s

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return self.images[index], int(self.labels[index])


def main() -> None:
    """Train for some steps, with the fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late-in", choices=["forward", "backward", "loader"])
    parser.add_argument("--rank", type=int, default=1, help="the rank that is late; -1: all")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="by how much, in each step")
    parser.add_argument("--busy", action="store_true", help="it computes for so long, instead of sleeping")
    parser.add_argument("--evaluate-ms", type=float, default=0.0, help="rank 0 evaluates alone, for so long")
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=64)
    asked = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    is_late = asked.rank in (-1, rank)
    delay_s = asked.delay_ms / 1000 if is_late else 0.0
    loads_late = asked.late_in == "loader"
    data = Digits(delay_s / asked.batch if loads_late else 0.0)
    loader = DataLoader(data, batch_size=asked.batch, sampler=DistributedSampler(data), drop_last=True)
    model = resnet8(1, 10, 16, "batch")
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pause = compute if asked.busy else time.sleep
    if asked.late_in == "forward" and is_late:
        model.register_forward_pre_hook(lambda *_: pause(delay_s))

    def slow_gradient(gradient: Tensor) -> Tensor:
        pause(delay_s)
        return gradient

    step = 0
    while step < asked.steps:
        for images, labels in loader:
            logits = wrapped(images)
            if asked.late_in == "backward" and is_late:
                logits.register_hook(slow_gradient)
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if asked.evaluate_ms and rank == 0 and step % asked.evaluate_every == 0:
                evaluate(model, images, asked.evaluate_ms / 1000)
            if step == asked.steps:
                break
    dist.destroy_process_group()


def compute(seconds: float) -> None:
    """Be busy for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def evaluate(model: nn.Module, images: Tensor, seconds: float) -> None:
    """Forward passes in evaluation mode for so many seconds."""
    model.eval()
    end = time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < end:
            model(images)
    model.train()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
