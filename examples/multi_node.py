"""A training on several hosts in plain PyTorch, which knows nothing of allpull.

torchrun --nproc-per-node 2 multi_node.py

docs/how-to/multi-node-training.md explains it part by part. It runs on GPUs (NCCL) and on CPUs (Gloo), and generates
its images, so there is nothing to download.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

RATE_PER_256 = 0.05  # learning rate per 256 samples of the global batch
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "pure-bf16": torch.bfloat16}


class Images(Dataset):
    """Noisy copies of ten patterns of 3 x 32 x 32 pixels, the same on every rank; training images are shifted."""

    def __init__(self, count: int, seed: int, *, is_training: bool) -> None:
        self.classes = torch.arange(count) % 10
        patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        self.pixels, self.is_training = patterns[self.classes] + noise, is_training

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = torch.randint(-1, 2, (2,)).tolist() if self.is_training else (0, 0)
        return torch.roll(self.pixels[index], shift, (1, 2)), self.classes[index]


def network() -> nn.Module:
    """A convolutional network of 137,000 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def join() -> torch.device:
    """Join the other ranks by the variables that torchrun sets; the device of this rank."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def loaders(options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """This rank's share of the training images, in a new order in every epoch, and of the test images."""
    train, test = Images(4096, seed=1, is_training=True), Images(1000, seed=2, is_training=False)
    train_loader = DataLoader(
        train,
        options.batch,
        sampler=DistributedSampler(train, drop_last=True),
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
    share = range(dist.get_rank(), len(test), dist.get_world_size())  # a DistributedSampler would repeat some
    return train_loader, DataLoader(Subset(test, share), 250)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """Share of all test images that are classified correctly: every rank counts its own, and the counts are summed."""
    counts = torch.zeros(2, device=device)
    dtype = next(model.parameters()).dtype
    model.eval()
    for images, labels in loader:
        right = model(images.to(device, dtype)).argmax(1) == labels.to(device)
        counts += torch.tensor([right.sum(), len(labels)], device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    """Train, print one line per epoch, and save."""
    parser = argparse.ArgumentParser(description="Train on several hosts.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--workers", type=int, default=1, help="loader processes per rank")
    parser.add_argument("--warmup", type=float, default=1.0, help="epochs until the full learning rate")
    parser.add_argument("--precision", choices=["fp32", *HALF], default="fp32")
    parser.add_argument("--checkpoint", type=Path, default=Path("multi_node.pt"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    options = parser.parse_args()

    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # its own augmentation; DistributedDataParallel copies rank 0's parameters to all
    train_loader, test_loader = loaders(options)

    dtype = HALF[options.precision] if options.precision.startswith("pure") else torch.float32
    mixed = torch.autocast(device.type, HALF.get(options.precision), enabled=options.precision in {"bf16", "fp16"})
    scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")
    model = DistributedDataParallel(network().to(device, dtype))

    rate = RATE_PER_256 * options.batch * ranks / 256
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    warmup_steps = max(1, round(options.warmup * len(train_loader)))
    schedule = torch.optim.lr_scheduler.LambdaLR(  # from the rate of one rank to that of all
        optimizer, lambda step: (1 + (ranks - 1) * min(1.0, step / warmup_steps)) / ranks
    )

    states = {"model": model.module, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first_epoch = 0
    if options.resume:
        saved = [torch.load(options.checkpoint, "cpu") if rank == 0 and options.checkpoint.exists() else None]
        dist.broadcast_object_list(saved, src=0)  # the other hosts need not have the file
        for name, state in states.items() if saved[0] else ():
            state.load_state_dict(saved[0][name])
        first_epoch = saved[0]["epoch"] if saved[0] else 0

    for epoch in range(first_epoch, options.epochs):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            with mixed:
                scores = model(images.to(device, dtype, non_blocking=True))
                loss = nn.functional.cross_entropy(scores, labels.to(device, non_blocking=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        with mixed:
            right = accuracy(model.module, test_loader, device)  # on all ranks
        if rank == 0:
            print(f"epoch {epoch + 1}: {right:.1%} of the test images, {ranks} ranks", flush=True)
            new = options.checkpoint.with_suffix(".new")
            torch.save({name: state.state_dict() for name, state in states.items()} | {"epoch": epoch + 1}, new)
            new.replace(options.checkpoint)  # an interrupted save leaves the old file whole
    dist.barrier()  # no rank leaves while others still exchange
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
