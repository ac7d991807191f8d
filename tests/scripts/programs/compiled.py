"""Networks that are compiled around DDP, inside it, and after the optimizer was made; the backend is an argument."""

import atexit
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

backend = sys.argv[1] if sys.argv[1:] else "eager"
atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))


class Net(nn.Module):
    """Three classes of eight numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.two(self.norm(self.one(x)).relu())


def sgd(model):
    """An optimizer for ``model``."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def around():
    """DDP, then the compiler around it."""
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    return torch.compile(model, backend=backend), optimizer


def inside():
    """The compiler, then DDP around it."""
    model = DistributedDataParallel(torch.compile(Net(), backend=backend))
    return model, sgd(model)


def in_place():
    """DDP, and what it wraps compiled in its place afterwards."""
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    model.module.compile(backend=backend)
    return model, optimizer


@torch.compile(backend=backend)
def averaged(loss):
    """A collective inside a graph."""
    total = loss * 1
    dist.all_reduce(total)
    return total / 2


for way in (around, inside, in_place):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, optimizer = way()
    losses = []
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(averaged(loss.detach()).item())
    if dist.get_rank() == 0:
        print(way.__name__, [loss.hex() for loss in losses], sum(torch._dynamo.utils.counters["graph_break"].values()))
dist.destroy_process_group()
