"""What two ranks find out about FSDP2 in half precision, beside DDP with autocast: ``… FOLDER RANK``.

The tests of ``test_fsdp_ranks.py`` judge the numbers.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from allpull.schema.trainspec import ParallelSpec
from allpull.train.models import MODELS
from allpull.train.numerics.precision import AUTOCAST, Precision
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import distribute

RANKS = 2
MIXED = (("bf16", "batch", 1), ("bf16", "group", 2), ("fp16", "batch", 2))  # precision, norm, parts of a batch
SHARED = {"ddp": {}, "fsdp": {"strategy": "fsdp"}, "fsdp kept": {"strategy": "fsdp", "reshard": False}}
MADE = {"_allgather_base_": "gathered", "_reduce_scatter_base_": "reduced"}


class Sent(TorchDispatchMode):
    """Counts the numbers that this rank puts into each kind of collective, by their type."""

    def __init__(self):
        super().__init__()
        self.numbers = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func.name().partition("::")
        if namespace == "c10d" and name in MADE:
            key = f"{MADE[name]} {args[1].dtype}"
            self.numbers[key] = self.numbers.get(key, 0) + args[1].numel()
        return func(*args, **(kwargs or {}))


def trained(ranks, precision, norm, parts, *, rounded=True, **parallel):
    """LossCurve of four steps and an evaluation after each, what the last step sent, and the weights afterwards."""
    torch.manual_seed(ranks.rank)  # the ranks begin as rank 0 does
    model, how = MODELS.load("resnet8")(1, 10, 4, norm), Precision(precision, ranks.device)
    rounded_to = AUTOCAST[precision] if rounded else None
    shared = distribute(model, ParallelSpec(**parallel), ranks, rounded_to=rounded_to)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        made = torch.Generator().manual_seed(10 * step + ranks.rank)
        with Sent() as sent:
            for part in range(parts):
                images = torch.randn(6, 1, 8, 8, generator=made)
                with shared.micro_step(last=part == parts - 1):
                    loss = nn.functional.cross_entropy(how.forward(shared.module, images), torch.arange(6))
                    how.backward(loss)
                losses.append(float(loss.detach()))
        shared.after_backward()
        how.step(optimizer)
        model.eval()
        with shared.gathered(), torch.no_grad():
            losses.append(float(how.forward(model, torch.ones(1 + ranks.rank, 1, 8, 8))[0].sum()))
        model.train()
    types = sorted({str(value.dtype) for value in (*model.parameters(), *model.buffers())})
    state = shared.model_state()
    return {"losses": losses, "sent": sent.numbers, "types": types}, state


def mixed(ranks):
    """Every way to share, in both half precisions; how far weights are from those of DistributedDataParallel."""
    found = {}
    for precision, norm, parts in MIXED:
        told = {name: trained(ranks, precision, norm, parts, **parallel) for name, parallel in SHARED.items()}
        reference = told["ddp"][1]
        for name, (facts, state) in told.items():
            far = max((float((state[key] - reference[key]).abs().max()) for key in reference), default=0.0)
            found[f"{precision} {norm} {parts} {name}"] = {**facts, "far": far}
    return found


def as_they_are(ranks):
    """What a step sends where nothing is rounded before it is sent."""
    return trained(ranks, "bf16", "batch", 1, rounded=False, strategy="fsdp")[0]


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    ranks = Ranks(rank=rank, ranks=RANKS, device=torch.device("cpu"))
    found = {check.__name__: check(ranks) for check in (mixed, as_they_are)}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
