"""What two ranks find out about PowerSGD that goes on from a checkpoint: ``… FOLDER RANK``.

The tests of ``test_powersgd_ranks.py`` judge the numbers.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from allpull import marks
from allpull.schema.trainspec import ParallelSpec
from allpull.train.checkpoint import format as checkpoint_format
from allpull.train.checkpoint.save_restore import Checkpoints, EpochFingerprint, Progress, TrainingState
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import distribute

RANKS = 2
CUT = EpochFingerprint(global_batch=8, samples=64, seed=0, dtype="float32")
START = 3


class Heard:
    def __init__(self):
        self.remarks = []

    def remark(self, text):
        self.remarks.append(text)


class Backwards(nn.Module):
    """Layers that are used in another order than they were made in, so that buckets change after the first step."""

    def __init__(self):
        super().__init__()
        self.last, self.small, self.first = nn.Linear(24, 10), nn.Linear(24, 24), nn.Conv2d(2, 24, 3)
        self.more = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x):
        x = self.first(x).relu().mean((2, 3))
        for layer in (self.small, self.more[1], self.more[0], self.more[2]):
            x = layer(x).tanh() + x
        return self.last(x)


class Side:
    def __init__(self, ranks, folder, seed=0, **parallel):
        torch.manual_seed(seed)
        self.ranks, self.folder = ranks, folder
        spec = {"compression": "powersgd", "powersgd_start": START, "bucket_mb": (0.004,), **parallel}
        self.shared = distribute(Backwards(), ParallelSpec(**spec), ranks)
        self.optimizer = torch.optim.SGD(self.shared.model.parameters(), lr=0.05, momentum=0.9)

    def train(self, steps):
        for step in steps:
            made = torch.Generator().manual_seed(100 * step + self.ranks.rank)
            images = torch.randn(6, 2, 6, 6, generator=made)
            nn.functional.cross_entropy(self.shared.module(images), torch.arange(6)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def checkpoints(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = TrainingState(shared=self.shared, optimizer=self.optimizer)
        return Checkpoints(self.folder / "checkpoints", self.ranks, parts, fingerprint=CUT, keep=9)

    def save(self, step):
        self.checkpoints().save(Progress(step=step, epoch=1, in_epoch=0, losses=[]))
        self.ranks.barrier()
        return self.folder / "checkpoints" / f"step-{step:010d}.pt"

    def restore(self, path):
        self.checkpoints().restore(path)
        return self

    def weights(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.shared.model.parameters()]).clone()


def gone_on(ranks, folder):
    """How far weights are from those of the training that was not interrupted: saved in warm-up, at its end, later."""
    found = {}
    for at in (1, START - 1, START, START + 1, 6):
        side = Side(ranks, folder / f"at-{at}").train(range(at))
        path = side.save(at)
        end = side.train(range(at, 9)).weights()
        again = Side(ranks, folder / f"from-{at}", seed=5).restore(path).train(range(at, 9)).weights()
        found[at] = float((again - end).abs().max())
        # saved again after one step: buckets are those of the beginning then
        twice = Side(ranks, folder / f"twice-{at}", seed=6).restore(path).train([at])
        last = Side(ranks, folder / f"last-{at}", seed=7).restore(twice.save(at + 1)).train(range(at + 1, 9))
        found[f"{at} twice"] = float((last.weights() - end).abs().max())
    return found


def without(ranks, folder):
    """How far they are apart where PowerSGD forgets, and what is then said; and where it is given up, or begun with."""
    path = Side(ranks, folder / "kept").train(range(6)).save(6)
    end = Side(ranks, folder / "end").restore(path).train(range(6, 9)).weights()
    content = torch.load(path, weights_only=True)
    for one in content["ranks"]:
        del one["powersgd"]
    older = folder / "older.pt"
    if ranks.rank == 0:
        torch.save({**content, "format": 2}, older)
    ranks.barrier()
    forgot = Side(ranks, folder / "forgot").restore(older).train(range(6, 9)).weights()
    Side(ranks, folder / "given-up", compression="none").restore(path).train([6])
    Side(ranks, folder / "rank-2", powersgd_rank=2).restore(path).train([6, 7])
    return float((forgot - end).abs().max())


def spread(ranks, folder):
    """From three ranks to two: the mean over ranks of what is owed, before and after, and the steps that were made."""
    side = Side(ranks, folder / "two").train(range(6))
    path = side.save(6)
    content = torch.load(path, weights_only=True)
    third = {part: {name: one.clone() for name, one in of.items()} for part, of in content["ranks"][0].items()}
    content["ranks"].append(third)
    if ranks.rank == 0:
        torch.save(content, folder / "three.pt")
    ranks.barrier()
    name = "left_out/more.1.weight"
    owed = sum(one["powersgd"][name] for one in content["ranks"]) / 3
    other = Side(ranks, folder / "other").restore(folder / "three.pt")
    state = other.shared.powersgd.state()
    got = state[name].clone()
    dist.all_reduce(got)
    other.train([6])
    return [float((got / RANKS - owed).abs().max()), float(owed.abs().max()), int(state["steps"])]


def stored_once(ranks, folder):
    """What the file has of each parameter, for each rank."""
    path = Side(ranks, folder / "once").train(range(6)).save(6)
    return [{name: value.numel() for name, value in one.powersgd.items()} for one in checkpoint_format.read(path).ranks]


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    ranks = Ranks(rank=rank, ranks=RANKS, device=torch.device("cpu"))
    found = {}
    for check in (gone_on, without, spread, stored_once):
        heard = Heard()
        marks.listen(heard)
        found[check.__name__] = [check(ranks, folder / check.__name__), heard.remarks]
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
