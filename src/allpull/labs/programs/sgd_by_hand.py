"""Data-parallel SGD by hand: what DistributedDataParallel does in two calls, on a line that fits on one page.

Each rank has the same line, takes its own part of each batch, and computes its own gradient. Two things keep the
replicas equal: they start from rank 0's (broadcast), and they apply the same gradient, the mean of all (average).

    torchrun --nproc-per-node 2 sgd_by_hand.py DATA.npz OUT --batch 100 --epochs 150 [--without broadcast]
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist


def main() -> None:
    """Train, and write this rank's path to OUT/rank-N.json."""
    parser = argparse.ArgumentParser(description="SGD by hand.")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=100, help="samples of this rank in one update")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--without", choices=["broadcast", "average"])
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = np.load(arguments.data)
    x, y = torch.from_numpy(data["x"])[:, None], torch.from_numpy(data["y"])[:, None]
    orders = data["orders"]  # of the samples, by epoch: the same on every rank

    line = torch.nn.Linear(1, 1, dtype=torch.float64)
    start = torch.tensor(data["start"])
    if rank:  # each rank begins somewhere else, as with a seed of its own
        start = start + torch.tensor([3.2 * rank / ranks, -0.8 * rank / ranks])
    with torch.no_grad():
        line.weight.fill_(start[0])
        line.bias.fill_(start[1])
    if arguments.without != "broadcast":
        for parameter in line.parameters():
            dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(line.parameters(), lr=arguments.rate)

    path, gradients = [(line.weight.item(), line.bias.item())], []
    whole = arguments.batch * ranks
    for epoch in range(arguments.epochs):
        for begin in range(0, len(x) - whole + 1, whole):
            mine = orders[epoch][begin + rank * arguments.batch : begin + (rank + 1) * arguments.batch]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(line(x[mine]), y[mine]).backward()
            gradients.append((line.weight.grad.item(), line.bias.grad.item()))
            if arguments.without != "average":
                for parameter in line.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
            optimizer.step()
            path.append((line.weight.item(), line.bias.item()))
    dist.barrier()  # Gloo's threads have let go of the gradients, before Python ends (pytorch issue 190489)
    dist.destroy_process_group()
    (arguments.out / f"rank-{rank}.json").write_text(json.dumps({"path": path, "gradient": gradients}))


if __name__ == "__main__":
    main()
