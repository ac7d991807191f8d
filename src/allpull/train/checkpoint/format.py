"""Read a checkpoint that anybody may have written: ours, whole and of honest size, or not at all.

A checkpoint is what ``torch.save`` makes of dictionaries, lists, numbers, texts and tensors.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allpull.train.checkpoint.safe_load import Unusable, load, plain
from allpull.train.parallel.powersgd import STEPS

FORMAT = 3
"""1: SGD alone, without precision and average; 2: nothing of PowerSGD. Both are read."""
MAX_COUNT = 1 << 53  # of steps


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the training stands: ``step`` optimizer steps are done, ``in_epoch`` of them in ``epoch``.

    ``losses`` are the mean losses over the global batch of this epoch's steps so far.
    """

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    losses: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What decides which sample comes when, and how exactly it is counted: the same for all of one epoch.

    ``order``: whatever else the order of samples depends on, in any words. ``data``: which data, as ``Facts.data``; ""
    in a checkpoint of an older allpull, which does not say.
    """

    global_batch: int
    samples: int
    seed: int
    dtype: str
    order: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRank:
    """What a rank has of its own: batch statistics, those of the moving average, and states of random numbers.

    ``powersgd``: what its gradients had and was not sent; empty where they are sent another way.
    """

    buffers: dict[str, Tensor]
    average: dict[str, Tensor]
    random: dict[str, Tensor]
    powersgd: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A checkpoint, with all tensors on the CPU; nothing in it depends on how the ranks shared the weights.

    ``average`` is the network with averaged weights; None: there was no moving average. ``optimizer`` has its name as
    ``kind`` beside what its ``state_dict`` has.
    """

    progress: Progress
    cut: Cut
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    precision: dict[str, Any]
    average: dict[str, Tensor] | None
    ranks: list[OfRank]

    def content(self) -> dict[str, Any]:
        """What goes into the file."""
        return {
            "format": FORMAT,
            **asdict(self.progress),
            "cut": asdict(self.cut),
            "model": self.model,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "average": self.average,
            "ranks": [{part.name: getattr(one, part.name) for part in fields(OfRank)} for one in self.ranks],
        }


def read(path: Path) -> Stored:
    """The checkpoint in file ``path``.

    Raises:
        Unusable: it is torn, or none of ours.
    """
    raw = load(path)
    try:
        # copies: the file need not stay, and what it does not hold is not believed
        content = plain(raw, max_bytes=path.stat().st_size)
    except Exception as error:  # it may have gone, too
        raise Unusable(f"cannot be read: {str(error)[:200]}") from error
    try:
        return _stored(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"is no checkpoint of this trainer: {str(error)[:200]}") from error


def _stored(content: Any) -> Stored:
    found = content.get("format")
    if found not in (1, 2, FORMAT):
        raise ValueError(f"format {found!r} is not known here")
    if found == 1:
        alone = [{"buffers": buffers, "average": {}, "random": {}} for buffers in content["buffers"]]
        content = {**content, "precision": {}, "average": None, "ranks": alone}
        content["optimizer"] = {**content["optimizer"], "kind": "SGD"}
    progress = Progress(
        step=_count(content["step"]),
        epoch=_count(content["epoch"]),
        in_epoch=_count(content["in_epoch"]),
        losses=content["losses"],
    )
    if type(progress.losses) is not list or not all(type(loss) is float for loss in progress.losses):
        raise ValueError("losses are not numbers")
    if not len(progress.losses) <= progress.in_epoch <= progress.step:
        raise ValueError("it is further within an epoch than in all")
    ranks = [OfRank(**{name: _tensors(one[name]) for name in one}) for one in content["ranks"]]
    shapes = [{(n, t.shape, t.dtype) for n, t in [*one.buffers.items(), *one.average.items()]} for one in ranks]
    if not ranks or any(other != shapes[0] for other in shapes):
        raise ValueError("ranks have different batch statistics")
    owed = [{(n, t.shape, t.dtype) for n, t in one.powersgd.items()} for one in ranks]
    steps = [one.powersgd.get(STEPS, torch.tensor(0)) for one in ranks]
    if any(other != owed[0] for other in owed) or not all(torch.equal(one, steps[0]) for one in steps):
        # ranks that disagree on what is sent in a step would wait for each other
        raise ValueError("ranks have different states of PowerSGD")
    return Stored(
        progress=progress,
        cut=_cut(content["cut"]),
        model=_tensors(content["model"]),
        optimizer=_optimizer(content["optimizer"]),
        precision=_dictionary(content["precision"]),
        average=None if content["average"] is None else _tensors(content["average"]),
        ranks=ranks,
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _cut(value: Any) -> Cut:
    cut = Cut(**_dictionary(value))
    for part in fields(Cut):
        if type(getattr(cut, part.name)).__name__ != part.type:
            raise ValueError(f"{part.name} is no {part.type}")
    return cut


def _dictionary(value: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(name) is str for name in value):
        raise ValueError("a part is no dictionary")
    return value


def _tensors(value: Any) -> dict[str, Tensor]:
    tensors = _dictionary(value)
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError("a part is no tensor")
    return tensors


def _optimizer(value: Any) -> dict[str, Any]:
    optimizer = _dictionary(value)
    groups, memory = optimizer["param_groups"], optimizer["state"]
    if type(optimizer["kind"]) is not str or not all(type(group["params"]) is list for group in groups):
        raise ValueError("its optimizer is none")
    for about in memory.values():
        if not all(known is None or isinstance(known, Tensor) for known in _dictionary(about).values()):
            raise ValueError("its optimizer is none")
    return optimizer
