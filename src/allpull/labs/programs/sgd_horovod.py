"""The same training by Horovod, whose optimizer averages: two calls broadcast and wrap.

horovodrun -np 2 python sgd_horovod.py DATA.npz OUT --batch 50 --epochs 150
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

try:
    import horovod.torch as hvd
except ImportError:
    sys.exit("Horovod is not installed for this Python; sgd_ddp.py is the same training with torch alone")


def main() -> None:
    """Train, and write this rank's path to OUT/rank-N.json."""
    parser = argparse.ArgumentParser(description="SGD by Horovod.")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=100, help="samples of this rank in one update")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--rate", type=float, default=0.5)
    arguments = parser.parse_args()

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    data = np.load(arguments.data)
    x, y = torch.from_numpy(data["x"])[:, None], torch.from_numpy(data["y"])[:, None]

    line = torch.nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        line.weight.fill_(data["start"][0] + rank)  # only rank 0's counts
        line.bias.fill_(data["start"][1])
    hvd.broadcast_parameters(line.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(line.parameters(), lr=arguments.rate)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=line.named_parameters())

    path = [(line.weight.item(), line.bias.item())]
    whole = arguments.batch * ranks
    for epoch in range(arguments.epochs):
        for begin in range(0, len(x) - whole + 1, whole):
            mine = data["orders"][epoch][begin + rank * arguments.batch : begin + (rank + 1) * arguments.batch]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(line(x[mine]), y[mine]).backward()
            optimizer.step()
            path.append((line.weight.item(), line.bias.item()))
    (arguments.out / f"rank-{rank}.json").write_text(json.dumps({"path": path}))


if __name__ == "__main__":
    main()
