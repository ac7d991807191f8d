"""Train digits to a target accuracy, for each global batch and rule of the learning rate, and time it.

RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 python batch_ddp.py DATA.npz PLAN.json OUT

Each training of the plan shares its global batch equally among its ranks. Samples come as one stream of shuffled
epochs, so that no batch is smaller than the others; training stops at the first evaluation that reaches the target.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVALUATIONS = 2  # per epoch, where a batch is not larger than half an epoch


def network():
    """A perceptron with two hidden layers: 64 pixels to 10 digits."""
    layers = torch.nn
    return layers.Sequential(
        layers.Linear(64, 64), layers.ReLU(), layers.Linear(64, 64), layers.ReLU(), layers.Linear(64, 10)
    )


def learning_rate(plan, training, epochs):
    """The rate after ``epochs``: fixed, or scaled with the batch, at once or over a warm-up (Goyal et al. 2017)."""
    scaled = plan["rate"] * training["batch"] / plan["base_batch"]
    if training["rule"] == "fixed":
        return plan["rate"]
    if training["rule"] == "scaled" or epochs >= plan["warmup_epochs"]:
        return scaled
    return plan["rate"] + (scaled - plan["rate"]) * epochs / plan["warmup_epochs"]


def train(plan, training, data, group):
    """One training on the ranks of ``group``: epochs, seconds without evaluations, and the accuracies on the way."""
    x, y, x_test, y_test = data
    rank, ranks = dist.get_rank(), training["ranks"]
    batch, own = training["batch"], training["batch"] // ranks
    torch.manual_seed(training["seed"])
    model = network()
    if ranks > 1:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan["rate"], momentum=0.9)
    shuffle = torch.Generator().manual_seed(training["seed"])
    order = torch.cat([torch.randperm(len(x), generator=shuffle) for _ in range(plan["max_epochs"] + 2)])
    every = max(1, round(len(x) / batch / EVALUATIONS))
    step, seconds, curve, reached = 0, 0.0, [], torch.zeros(1)
    while step * batch < plan["max_epochs"] * len(x) and not reached:
        began = time.perf_counter()
        for _ in range(every):
            mine = order[step * batch + rank * own : step * batch + (rank + 1) * own]
            optimizer.param_groups[0]["lr"] = learning_rate(plan, training, (step + 1) * batch / len(x))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
            step += 1
        seconds += time.perf_counter() - began
        if rank == 0:
            with torch.no_grad():
                predicted = getattr(model, "module", model)(x_test).argmax(1)
            accuracy = (predicted == y_test).double().mean().item()
            curve.append((step * batch / len(x), accuracy))
            reached.fill_(accuracy >= plan["target"])
        if ranks > 1:
            dist.broadcast(reached, src=0, group=group)
    result = {"epochs": step * batch / len(x), "seconds": seconds, "samples": step * batch, "curve": curve}
    return {**training, **result, "reached": bool(reached)}


def main():
    """Do the trainings of PLAN; rank 0 adds a line for each to OUT/trainings.jsonl."""
    parser = argparse.ArgumentParser(description="Trainings of digits.")
    parser.add_argument("data", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text())
    stored = np.load(arguments.data)
    data = [torch.from_numpy(stored[name]) for name in ("x", "y", "x_test", "y_test")]

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sizes = sorted({training["ranks"] for training in plan["trainings"]})
    groups = {ranks: dist.new_group(range(ranks)) for ranks in sizes}
    for ranks, group in groups.items():  # the first steps of a process are slow: not one that counts
        if rank < ranks:
            train({**plan, "max_epochs": 1, "target": 2}, {**plan["trainings"][0], "ranks": ranks}, data, group)
    for training in plan["trainings"]:
        dist.barrier()  # ranks that a training leaves out wait here, without using a CPU
        if rank < training["ranks"]:
            result = train(plan, training, data, groups[training["ranks"]])
            if rank == 0:
                with (arguments.out / "trainings.jsonl").open("a") as file:
                    file.write(json.dumps(result) + "\n")
    dist.barrier()  # Gloo's threads have let go of the gradients, before Python ends (pytorch issue 190489)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
