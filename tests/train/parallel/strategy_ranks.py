"""What two ranks find out about strategies, side by side with a training on one rank: ``… FOLDER RANK``.

Each check returns numbers, which the tests of ``test_strategy_ranks.py`` judge; they share two processes, because
starting those takes longer than all checks.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from allpull.errors import MissingPart
from allpull.schema.trainspec import ParallelSpec
from allpull.train.models import MODELS
from allpull.train.parallel import ddp
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import distribute
from allpull.train.parallel.sync_norm import SyncNorm, sync_norms

RANKS = 2
SAMPLES = 12
PARTS = (7, 5)  # samples of each rank: gradients of shares must be weighted right
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))
STRATEGIES = {
    "default": {},
    "one size": {"bucket_mb": (0.01,)},
    "sizes": {"bucket_mb": (0.001, 0.01, 0.1)},
    "copies": {"bucket_view": False, "batched_copy": True},
    "static": {"static_graph": True},
    "later": {"overlap": False},
    "later in sizes": {"overlap": False, "bucket_mb": (0.001, 0.01)},
    "fsdp": {"strategy": "fsdp"},
    "fsdp kept": {"strategy": "fsdp", "reshard": False},
}


class Side:
    """One side of a comparison: a network, shared out, with an optimizer and this rank's samples."""

    def __init__(self, ranks, norm="group", seed=0, sync=False, **parallel):
        torch.manual_seed(seed)
        self.ranks = ranks
        self.model = MODELS.load("resnet8")(1, 10, 4, norm)
        self.model.to(torch.float64, memory_format=torch.channels_last)
        self.weight = sync_norms(self.model, ranks) if sync else None
        self.shared = distribute(self.model, ParallelSpec(**parallel), ranks)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def own(self, step, parts=PARTS):
        """This rank's samples of a global batch."""
        made = torch.Generator().manual_seed(step)
        images = torch.randn(SAMPLES, 1, 8, 8, generator=made, dtype=torch.float64)
        labels = torch.randint(0, 10, (SAMPLES,), generator=made)
        if self.ranks.ranks == 1:
            return images, labels
        return images.split(parts)[self.ranks.rank], labels.split(parts)[self.ranks.rank]

    def backward(self, step, micro=1, after=lambda: None):
        images, labels = self.own(step)
        sizes = [len(images) // micro] * (micro - 1)
        sizes.append(len(images) - sum(sizes))
        for part in range(micro):
            with self.shared.micro_step(last=part == micro - 1):
                logits = self.shared.module(images.split(sizes)[part])
                loss = nn.functional.cross_entropy(logits, labels.split(sizes)[part], reduction="sum")
                torch.autograd.backward(loss / SAMPLES * self.ranks.ranks)
            if part == 0:
                after()
        self.shared.after_backward()

    def train(self, steps, micro=1):
        for step in steps:
            self.backward(step, micro)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def state(side):
    return side.shared.model_state()


def far(one, other):
    """The largest difference of two states; only rank 0 has them."""
    assert one.keys() == other.keys()
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)


def whole_gradients(side):
    return {
        name: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.clone()
        for name, p in side.model.named_parameters()
    }


def across(values):
    """The largest difference of a tensor between the ranks."""
    everyone = [torch.empty_like(values) for _ in range(RANKS)]
    dist.all_gather(everyone, values)
    return float((everyone[0] - everyone[1]).abs().max())


def as_one_rank(ranks):
    """Three steps of every strategy, which begins as rank 0 does, against one rank with all samples."""
    reference = state(Side(ALONE).train(range(3)))
    found = {}
    for name, parallel in STRATEGIES.items():
        side = Side(ranks, seed=ranks.rank, **parallel).train(range(3))
        own = state(side)
        found[name] = far(own, reference) if ranks.rank == 0 else len(own)
    return found


def later_to_the_bit(ranks):
    """Two ranks add up two numbers, in whatever order."""
    one, other = (state(Side(ranks, overlap=overlap).train(range(3))) for overlap in (True, False))
    return far(one, other)


def accumulated(ranks):
    """Four parts, one after the other, against all samples at once, on one rank and on two."""
    reference = state(Side(ALONE).train(range(2)))
    found = {"one rank": far(state(Side(ALONE).train(range(2), micro=4)), reference)}
    for name in ("default", "copies", "later", "fsdp", "fsdp kept"):
        own = state(Side(ranks, **STRATEGIES[name]).train(range(2), micro=4))
        found[name] = far(own, reference) if ranks.rank == 0 else 0.0
    return found


def exchanged_once(ranks):
    """How far the gradients of ranks are apart after the first part of two, and after both."""
    found = {}
    for name in ("default", "later"):
        side = Side(ranks, **STRATEGIES[name])
        apart = []
        head = side.model.head.weight
        side.backward(0, micro=2, after=lambda head=head, apart=apart: apart.append(across(head.grad)))
        found[name] = [*apart, across(head.grad)]
    return found


def clipped(ranks):
    """The norm before, and that of the gradients afterwards."""
    alone = Side(ALONE)
    alone.backward(0)
    reference = torch.cat([p.grad.flatten() for p in alone.model.parameters()]).norm()
    found = {"reference": float(reference)}
    for name in ("default", "later", "fsdp"):
        side = Side(ranks, **STRATEGIES[name])
        side.backward(0)
        norm = side.shared.clip(0.5)
        after = torch.cat([gradient.flatten() for gradient in whole_gradients(side).values()]).norm()
        found[name] = [float(norm), across(norm), norm.dim(), float(after)]
    return found


def evaluated(ranks):
    """Ranks that run forward a different number of times: before training, after it, and then they train on."""
    reference, side = Side(ALONE, norm="batch"), Side(ranks, norm="batch", strategy="fsdp")
    images, found = torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(9)), []
    side.model.eval()
    reference.model.eval()
    for _ in range(2):
        with side.shared.gathered(), torch.no_grad():
            outputs = [side.model(images) for _ in range(1 + 2 * ranks.rank)]
            found += [float((output - reference.model(images)).abs().max()) for output in outputs]
        side.train([0])  # in evaluation mode, so that batch statistics are no matter
        reference.train([0])
    own = state(side)
    return [max(found), far(own, state(reference)) if ranks.rank == 0 else 0.0]


def handed_over(ranks):
    """Trained by one strategy, saved, and trained on by another, against trained on."""
    reference = state(Side(ALONE).train(range(4)))
    found = {}
    for first, second in (("default", "fsdp"), ("fsdp", "default"), ("fsdp", "alone"), ("alone", "fsdp")):
        one = (Side(ALONE) if first == "alone" else Side(ranks, **STRATEGIES[first])).train(range(2))
        kept = [one.shared.model_state(), one.shared.optimizer_state(one.optimizer)]
        copied = kept[0].get("head.weight", torch.zeros(1)).clone()
        one.train([2])
        moved = far({"": copied}, {"": kept[0].get("head.weight", torch.zeros(1))})
        dist.broadcast_object_list(kept)
        two = Side(ALONE, seed=5) if second == "alone" else Side(ranks, seed=5, **STRATEGIES[second])
        two.shared.load_model_state(kept[0])
        two.shared.load_optimizer_state(two.optimizer, kept[1])
        own = state(two.train(range(2, 4)))
        found[f"{first} to {second}"] = [far(own, reference) if ranks.rank == 0 else 0.0, moved]
    return found


def broken_off(ranks):
    """A backward that breaks off on both ranks, between steps, against one rank without any; and on one rank alone.

    Before a bucket is exchanged, as in a recording, which exchanges none.
    """
    reference = state(Side(ALONE).train(range(4)))
    found = {}
    for name in ("default", "copies", "static", "later"):
        side = Side(ranks, **STRATEGIES[name]).train(range(2))
        weight = [*side.model.parameters()][4]

        def fails(_gradient):
            raise ArithmeticError

        hook = weight.register_hook(fails)
        try:
            side.backward(9)
        except ArithmeticError:
            hook.remove()
        side.shared.discard()
        side.optimizer.zero_grad()
        own = state(side.train(range(2, 4)))
        found[name] = far(own, reference) if ranks.rank == 0 else 0.0
    return found


def one_broke_off(ranks):
    """What the rank is told whose backward breaks off while the other's does not."""
    side, ddp.AGREE_S = Side(ranks).train([0]), 0.2
    try:
        if ranks.rank == 1:
            side.shared.discard()
    except MissingPart as error:
        return error.message
    return ""


def of_another_network(ranks):
    """What is said of a state that does not fit."""
    said = []
    for parallel in ({}, {"strategy": "fsdp"}):
        side = Side(ranks, **parallel).train([0])
        kept = [side.shared.model_state(), side.shared.optimizer_state(side.optimizer)]
        dist.broadcast_object_list(kept)
        kept[0]["head.weight"] = kept[0]["head.weight"][:3]
        first = next(iter(kept[1]["state"]))
        kept[1]["state"][first]["momentum_buffer"] = torch.zeros(2)
        try:
            side.shared.load_model_state(kept[0])
        except RuntimeError as error:
            said.append(str(error).splitlines()[-1])
        try:
            side.shared.load_optimizer_state(side.optimizer, kept[1])
        except ValueError as error:
            said.append(str(error))
    return said


def own_statistics(ranks):
    """Whether ranks keep batch statistics of their own: the number of batches that rank 1 was told to have seen."""
    found = {}
    for name in ("default", "fsdp", "broadcast"):
        side = Side(ranks, norm="batch", **STRATEGIES.get(name, {"broadcast_buffers": True})).train([0])
        counted = side.model.stem[1].num_batches_tracked
        counted.fill_(100 * ranks.rank)
        side.train([1])
        found[name] = [int(counted), across(side.model.stem[1].running_mean)]
    return found


def compressed(ranks):
    """How far gradients are from uncompressed ones, as a share of the largest, and how far apart."""
    exact = Side(ranks)
    exact.backward(0)
    gradients = whole_gradients(exact)
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    found = {}
    for overlap in (True, False):
        for name in ("fp16", "bf16"):
            side = Side(ranks, compression=name, overlap=overlap)
            side.backward(0)
            own = whole_gradients(side)
            found[f"{name} {overlap}"] = [far(own, gradients) / largest, across(own["head.weight"])]
    return found


def powersgd(ranks):
    """A matrix whose mean gradient has rank 2, sent as rank 2 and as rank 1; and a network of convolutions."""
    found = {}
    made = torch.Generator().manual_seed(ranks.rank)
    x, y = (torch.randn(3, 1, 64, generator=made, dtype=torch.float64) for _ in range(2))
    for thin in (1, 2):
        layer = nn.Linear(64, 64, bias=False, dtype=torch.float64)
        parallel = ParallelSpec(compression="powersgd", powersgd_rank=thin, powersgd_start=2)
        shared = distribute(layer, parallel, ranks)
        apart = []
        for step in range(3):
            layer.weight.grad = None
            torch.autograd.backward((shared.module(x[step]) * y[step]).sum())
            true = y[step].T @ x[step] / RANKS
            dist.all_reduce(true)
            apart.append(float((layer.weight.grad - true).abs().max()))
        found[thin] = [*apart, across(layer.weight.grad)]
    side = Side(ranks, norm="batch", compression="powersgd", powersgd_start=2).train(range(5))
    weights = torch.cat([parameter.detach().flatten() for parameter in side.model.parameters()])
    found["network"] = [across(weights), bool(weights.isfinite().all())]
    many = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))  # each in a bucket of its own
    parallel = ParallelSpec(compression="powersgd", powersgd_start=2, bucket_mb=(0.01,))
    shared = distribute(many, parallel, ranks)
    for _ in range(6):
        shared.module(torch.randn(4, 64, generator=made)).square().sum().backward()
    found["many buckets"] = across(torch.cat([layer.weight.grad.flatten() for layer in many]))
    return found


def norm_layer(ranks):
    """One layer on uneven shares, or with a rank that only borrowed its samples, against one rank's ``BatchNorm2d``."""
    found = {}
    made = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(32, 5, 3, 3, generator=made, dtype=torch.float64) for _ in range(2))
    x += 10  # where a mean of squares less a square of means would lose digits
    cases = {"even": (16, 16), "uneven": (25, 7), "borrowed": (32, 0)}
    for name, parts in cases.items():
        layer, plain = nn.Sequential(nn.BatchNorm2d(5)).double(), nn.BatchNorm2d(5).double()
        for one in (layer[0], plain):
            one.weight.data = torch.linspace(0.5, 2, 5, dtype=torch.float64)
            one.bias.data = torch.linspace(-1, 1, 5, dtype=torch.float64)
        weight = sync_norms(layer, ranks)
        whole = x.clone().requires_grad_()
        expected = plain(whole)
        expected.backward(dy)
        own = (x.split(parts)[ranks.rank] if parts[ranks.rank] else x[:2] * 3).clone().requires_grad_()
        weight.value = float(parts[ranks.rank] > 0)
        told = layer(own)
        told.backward(dy.split(parts)[ranks.rank] if parts[ranks.rank] else torch.zeros_like(own))
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad)
        pairs = [
            (layer[0].weight.grad, plain.weight.grad),
            (layer[0].bias.grad, plain.bias.grad),
            (layer[0].running_mean, plain.running_mean),
            (layer[0].running_var, plain.running_var),
            (layer[0].num_batches_tracked, plain.num_batches_tracked),
        ]
        if parts[ranks.rank]:
            pairs += [(told, expected.split(parts)[ranks.rank]), (own.grad, whole.grad.split(parts)[ranks.rank])]
        else:
            pairs.append((own.grad, torch.zeros_like(own)))
        layer.eval(), plain.eval()
        pairs.append((layer(x), plain(x)))
        found[name] = max(float((one - other).detach().abs().max()) for one, other in pairs)
    return found


def norm_network(ranks):
    """A network with batch statistics of all samples, against one rank: weights and running statistics."""
    reference = state(Side(ALONE, norm="batch").train(range(3)))
    found = {}
    for name in ("default", "later", "fsdp"):
        side = Side(ranks, norm="batch", sync=True, **STRATEGIES[name]).train(range(3))
        layers = sum(isinstance(part, SyncNorm) for part in side.model.modules())
        own = state(side)
        found[name] = [far(own, reference) if ranks.rank == 0 else 0.0, layers]
    own = state(Side(ranks, norm="batch").train(range(3)))
    found["each its own"] = [far(own, reference) if ranks.rank == 0 else 0.0, 0]
    return found


def norm_mixed(ranks):
    """Under autocast a layer gets bfloat16 and keeps its statistics in float32; a scale may be frozen."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    net[1].weight.requires_grad_(requires_grad=False)
    sync_norms(net, ranks)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(ranks.rank)))
    out.float().square().sum().backward()
    return [str(out.dtype), str(net[1].running_var.dtype), net[1].weight.grad is None, across(net[1].running_var)]


CHECKS = [
    as_one_rank,
    later_to_the_bit,
    accumulated,
    exchanged_once,
    clipped,
    evaluated,
    handed_over,
    broken_off,
    one_broke_off,
    of_another_network,
    own_statistics,
    compressed,
    powersgd,
    norm_layer,
    norm_network,
    norm_mixed,
]


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    ranks = Ranks(rank=rank, ranks=RANKS, device=torch.device("cpu"))
    asks = itertools.count()  # each time anew, as if for the first
    Ranks.store = lambda _: dist.PrefixStore(str(next(asks)), dist.FileStore(str(folder / "store"), RANKS))
    asked = sys.argv[3:] or [check.__name__ for check in CHECKS]
    found = {check.__name__: check(ranks) for check in CHECKS if check.__name__ in asked}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
