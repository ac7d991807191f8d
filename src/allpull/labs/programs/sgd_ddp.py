"""The same training by DistributedDataParallel: it broadcasts when it wraps, and averages while backward runs.

torchrun --nproc-per-node 2 sgd_ddp.py DATA.npz OUT --batch 50 --epochs 150
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and write this rank's path to OUT/rank-N.json."""
    parser = argparse.ArgumentParser(description="SGD by DistributedDataParallel.")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=100, help="samples of this rank in one update")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--rate", type=float, default=0.5)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = np.load(arguments.data)
    x, y = torch.from_numpy(data["x"])[:, None], torch.from_numpy(data["y"])[:, None]

    line = torch.nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        line.weight.fill_(data["start"][0] + rank)  # only rank 0's counts: DDP broadcasts it
        line.bias.fill_(data["start"][1])
    model = DistributedDataParallel(line)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate)

    path = [(line.weight.item(), line.bias.item())]
    whole = arguments.batch * ranks
    for epoch in range(arguments.epochs):
        for begin in range(0, len(x) - whole + 1, whole):
            mine = data["orders"][epoch][begin + rank * arguments.batch : begin + (rank + 1) * arguments.batch]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
            path.append((line.weight.item(), line.bias.item()))
    dist.barrier()
    dist.destroy_process_group()
    (arguments.out / f"rank-{rank}.json").write_text(json.dumps({"path": path}))


if __name__ == "__main__":
    main()
