"""What two ranks find out together about scores, averages, optimizers and checkpoints: ``… FOLDER RANK``.

Each check returns numbers and words, which the tests of ``test_gather_ranks.py`` judge; they share two
processes, because starting those takes longer than all checks.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from allpull import marks
from allpull.data.datasets.dataset import Part
from allpull.data.loader.batches import evaluation_batches
from allpull.data.loader.open_feed import open_feed
from allpull.errors import BadInput
from allpull.schema.spec import RunSpec
from allpull.schema.trainspec import DataSpec, ModelSpec, ParallelSpec, TrainSpec
from allpull.train.checkpoint.save_restore import Checkpoints, EpochFingerprint, Progress, TrainingState
from allpull.train.evaluate import EvaluationPlan, evaluate
from allpull.train.learner import checkpoints_of, learner_of
from allpull.train.models import MODELS
from allpull.train.optim.ema import Average
from allpull.train.optim.optimizer import optimizer_of
from allpull.train.parallel.gather import gather_named, gather_rows, global_min
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import distribute

RANKS = 2
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))
CUT = EpochFingerprint(global_batch=8, samples=100, seed=0, dtype="float64")
DDP, FSDP = {}, {"strategy": "fsdp"}
KEPT = {"strategy": "fsdp", "reshard": False}


class Side:
    """A network in float64, shared out, with an optimizer, an average and this rank's samples."""

    def __init__(self, ranks, parallel, norm="group", **train):
        torch.manual_seed(0)
        self.ranks = ranks
        self.shared = distribute(MODELS.load("resnet8")(1, 10, 4, norm).double(), ParallelSpec(**parallel), ranks)
        self.optimizer = optimizer_of(self.shared.model, TrainSpec(**{"lr": 0.5, "weight_decay": 0.01, **train}))
        self.average = Average(self.shared.model, half_life_steps=2)

    def train(self, steps):
        for step in steps:
            made = torch.Generator().manual_seed(step)
            images = torch.randn(8, 1, 8, 8, generator=made, dtype=torch.float64)
            labels = torch.randint(0, 10, (8,), generator=made)
            own = slice(None) if self.ranks.ranks == 1 else slice(self.ranks.rank * 4, self.ranks.rank * 4 + 4)
            with self.shared.micro_step(last=True):
                logits = self.shared.module(images[own])
                loss = nn.functional.cross_entropy(logits, labels[own], reduction="sum")
                torch.autograd.backward(loss / 8 * self.ranks.ranks)
            self.shared.after_backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average.after(step + 1)
        return self

    def checkpoints(self, folder, asynchronous=True):
        folder.mkdir(parents=True, exist_ok=True)
        parts = TrainingState(shared=self.shared, optimizer=self.optimizer, average=self.average)
        return Checkpoints(
            folder / "checkpoints", self.ranks, parts, fingerprint=CUT, keep=5, asynchronous=asynchronous
        )

    def everything(self):
        """Weights, averages and momenta, whole, on rank 0; nothing on the others."""
        memory = self.shared.optimizer_state(self.optimizer)
        with self.average.in_place():
            averaged = self.shared.model_state()
        return {
            **self.shared.model_state(),
            **{f"average {name}": value for name, value in averaged.items()},
            **{f"momentum {n}": about["momentum_buffer"] for n, about in memory.get("state", {}).items()},
        }


def far(one, other):
    """The largest difference of two states."""
    assert one.keys() == other.keys()
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)


def gathered(ranks, folder):
    """Rows of which one rank has more, or none, and tensors of several types."""
    rows = [torch.arange(count * 2).view(count, 2) + 10 * ranks.rank for count in (2 + 3 * ranks.rank, 2 * ranks.rank)]
    own = {
        "a": torch.full((2, 3), float(ranks.rank)).t(),
        "b": torch.tensor(ranks.rank, dtype=torch.int64),
        "c": torch.tensor([True, ranks.rank == 1]),
        "d": torch.zeros(0),
        "e": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    everyone = gather_named(own, ranks)
    return {
        "rows": [gather_rows(some, ranks).tolist() for some in rows],
        "named": [{name: value.tolist() for name, value in one.items()} for one in everyone],
        "types": [str(value.dtype) for one in everyone[:1] for value in one.values()],
        "least": global_min(5 - ranks.rank, ranks),
    }


class Multi(nn.Module):
    """Six labels of an image of 4×4 pixels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(16, 6)

    def forward(self, images):
        return self.head(images.flatten(1))


class Watched(Multi):
    """Counts how often it is told that it will be evaluated, by which those who watch know an evaluation."""

    told = 0

    def eval(self):
        self.told += 1
        return super().eval()


def data(multi_label, count=57):
    random = np.random.default_rng(0)
    images = random.integers(0, 3, (count, 4, 4, 1), dtype=np.uint8)
    return Part(
        images=images, labels=random.integers(0, 2, (count, 6)) if multi_label else random.integers(0, 6, count)
    )


class Phases:
    """Hears the phases that a rank says it stands in."""

    def __init__(self):
        self.heard = []

    def phase(self, name):
        self.heard.append(name)
        return marks._SILENCE


def scored(ranks, folder):
    """Scores on one rank, on two at once, and on rank 0 while the other waits, by kind of labels and strategy."""
    found = {}
    for multi_label in (False, True):
        for name, on, parallel, serial in (
            ("alone", ALONE, DDP, False),
            ("parallel", ranks, DDP, False),
            ("serial", ranks, DDP, True),
            ("fsdp", ranks, FSDP, False),
            ("fsdp serial", ranks, KEPT, True),
            ("few", ranks, FSDP, False),  # one of two ranks has no sample
        ):
            part = data(multi_label, 1 if name == "few" else 57)

            def prepare(batch):
                return torch.from_numpy(batch.images).permute(0, 3, 1, 2).float(), torch.from_numpy(batch.labels)

            def samples(*, rank, ranks, part=part):
                return evaluation_batches(part, rank=rank, ranks=ranks, size=4)

            how = EvaluationPlan(
                classes=6, samples=len(part.labels), prepare=prepare, multi_label=multi_label, serial=serial
            )
            phases = Phases()
            before = marks.listen(phases)
            network = Watched()
            shared = distribute(network, ParallelSpec(**parallel), on)
            score = evaluate(shared, samples, on, how)
            marks.listen(before)
            found[f"{name} {multi_label}"] = {
                **score.metrics(),
                "samples": score.samples,
                "phases": phases.heard,
                "eval": network.told,
            }
    return found


def as_one_rank(ranks, folder):
    """Four steps with SGD and LARS, and their averages, against one rank with all samples."""
    found = {}
    for name in ("sgd", "lars"):
        reference = Side(ALONE, DDP, optimizer=name).train(range(4)).everything()
        for strategy, parallel in (("ddp", DDP), ("fsdp", FSDP), ("fsdp kept", KEPT)):
            own = Side(ranks, parallel, optimizer=name).train(range(4)).everything()
            found[f"{name} {strategy}"] = far(own, reference) if ranks.rank == 0 else len(own)
    return found


def trained_after_evaluation(ranks, folder):
    """The average is evaluated between steps: training must go on with the network's own weights."""
    images = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    part = Part(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.zeros(2, np.int64))
    how = EvaluationPlan(classes=10, samples=2, prepare=lambda batch: (images, torch.zeros(1, dtype=torch.int64)))

    def samples(*, rank, ranks):
        return evaluation_batches(part, rank=rank, ranks=ranks, size=1)

    found = {}
    for name, parallel in (("ddp", DDP), ("fsdp", FSDP), ("fsdp kept", KEPT)):
        quiet = Side(ranks, parallel).train(range(4)).everything()
        side = Side(ranks, parallel).train(range(2))
        averaged, own = (
            evaluate(side.shared, samples, ranks, how, average=average).loss for average in (side.average, None)
        )
        found[name] = {"far": far(side.train(range(2, 4)).everything(), quiet), "averaged": averaged, "own": own}
    return found


def handed_over(ranks, folder):
    """Checkpoints of each strategy, gone on from with each other and on one rank, against not having stopped."""
    whole = Side(ALONE, DDP).train(range(4)).everything()
    found = {}
    sides = {"ddp": (ranks, DDP), "fsdp": (ranks, FSDP), "one": (ALONE, DDP)}
    for saved, (on, parallel) in sides.items():
        place = folder / f"of {saved}"
        if saved != "one" or ranks.rank == 0:
            checkpoints = Side(on, parallel).train(range(2)).checkpoints(place)
            checkpoints.save(Progress(step=2, epoch=1, in_epoch=0, losses=[]))
            checkpoints.finish()
        dist.barrier()
        for resumed, (there, other) in sides.items():
            side = Side(there, other)
            step = side.checkpoints(place).restore(place).step
            own = side.train(range(step, 4)).everything()
            found[f"{saved} to {resumed}"] = far(own, whole) if own else len(own)
    return found


def own_of_ranks(ranks, folder):
    """Batch statistics, their averages and numbers of chance are each rank's own, and come back; one gets the mean."""
    side = Side(ranks, DDP, norm="batch").train(range(3))
    torch.manual_seed(ranks.rank + 5)
    drawn = torch.rand(1).item()
    checkpoints = side.checkpoints(folder)
    checkpoints.save(Progress(step=3, epoch=1, in_epoch=3, losses=[0.1] * 3))
    checkpoints.finish()
    then, next_drawn = statistics(side), torch.rand(1).item()
    again = Side(ranks, DDP, norm="batch")
    again.checkpoints(folder).restore(folder)
    came_back = statistics(again) == then and torch.rand(1).item() == next_drawn
    alone = Side(ALONE, DDP, norm="batch")
    alone.checkpoints(folder).restore(folder)
    both = [None, None]
    dist.all_gather_object(both, then)
    means = [(a + b) / 2 for a, b in zip(*both, strict=True)]
    return {
        "came_back": came_back,
        "differ": both[0] != both[1],
        "far_from_mean": max(abs(a - b) for a, b in zip(means, statistics(alone), strict=True)),
        "drawn": drawn,
    }


def dropped(ranks, folder):
    """What dropout keeps of ones: at the beginning, and of a checkpoint of one rank that is gone on from on two."""
    spec = RunSpec(
        data=DataSpec(name="synthetic", size=32, limit=64),
        model=ModelSpec(name="vgg16", width=2, norm="batch"),
        train=TrainSpec(batch=8, seed=3),
    )
    facts = open_feed(spec.data, rank=0, ranks=1, global_batch=16, seed=3, epochs=1).facts
    learner = learner_of(spec, facts, ranks)
    found = {"head": float(next(learner.shared.model.parameters()).detach().double().sum()), "begun": kept()}
    if ranks.rank == 0:
        alone = checkpoints_of(spec, facts, ALONE, learner_of(spec, facts, ALONE), folder / "checkpoints")
        alone.save(Progress(step=5, epoch=1, in_epoch=0, losses=[]))
        alone.finish()
    dist.barrier()
    for time in ("gone on", "gone on again"):
        checkpoints_of(spec, facts, ranks, learner, folder / "checkpoints").restore(folder)
        found[time] = kept()
    return found


def kept():
    """Which of 64 ones dropout keeps."""
    return nn.functional.dropout(torch.ones(64)).tolist()


def statistics(side):
    """The sum of each floating-point buffer, and of its average."""
    own = [float(buffer.sum()) for buffer in side.shared.model.buffers() if buffer.is_floating_point()]
    with side.average.in_place():
        return own + [float(buffer.sum()) for buffer in side.shared.model.buffers() if buffer.is_floating_point()]


def seen_differently(ranks, folder):
    """Rank 1's host has not all files yet: all go on from the newest that both have, or none does."""
    place = folder / str(ranks.rank)
    alone = Side(ALONE, DDP)
    for step in (10, 20, 30) if ranks.rank == 0 else (10, 20):
        alone.checkpoints(place, asynchronous=False).save(Progress(step=step, epoch=1, in_epoch=0, losses=[]))
    if ranks.rank == 0:
        newest = place / "checkpoints/step-0000000020.pt"
        newest.write_bytes(newest.read_bytes()[:100])
    side = Side(ranks, DDP)
    agreed = side.checkpoints(place).restore(place).step
    for path in (place / "checkpoints").iterdir():
        if ranks.rank == 1:
            path.unlink()
    try:
        side.checkpoints(place).restore(place)
    except BadInput as error:
        return {"agreed": agreed, "error": error.message}
    return {"agreed": agreed, "error": None}


CHECKS = [
    gathered,
    scored,
    as_one_rank,
    trained_after_evaluation,
    handed_over,
    own_of_ranks,
    dropped,
    seen_differently,
]


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    ranks = Ranks(rank=rank, ranks=RANKS, device=torch.device("cpu"))
    asked = sys.argv[3:] or [check.__name__ for check in CHECKS]
    found = {}
    for check in CHECKS:
        if check.__name__ in asked:
            place = folder / check.__name__
            place.mkdir(exist_ok=True)
            found[check.__name__] = check(ranks, place)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
