"""An ordinary training with DistributedDataParallel, which knows nothing of allpull.

torchrun --nproc-per-node 2 train.py

It has two common faults on purpose: its loader has no workers, and rank 0 evaluates alone while the other ranks wait.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    """Random images of 32 x 32 pixels in ten classes; reading one takes 1 ms, as from a network file system."""

    def __init__(self, count: int) -> None:
        self.pixels, self.classes = torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.001)
        return self.pixels[index], self.classes[index]


def main() -> None:
    """Train for six epochs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = Images(1536), Images(256)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    network = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                right = sum((network(x).argmax(1) == y).sum() for x, y in DataLoader(test, batch_size=64))
            print(f"epoch {epoch + 1}: {right / len(test):.1%} of the test images", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
