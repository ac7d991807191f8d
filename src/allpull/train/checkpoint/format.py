"""The content of a checkpoint file, read and validated: it may come from anybody.

``torch.save`` writes it from dictionaries, lists, numbers, strings and tensors.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allpull.train.checkpoint.safe_load import UnusableFile, load, plain_copy
from allpull.train.parallel.powersgd import STEPS

FORMAT = 3
"""1: only SGD, without precision and average; 2: without PowerSGD. Both are still read."""
MAX_COUNT = 1 << 53  # of steps


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a training: ``step`` optimizer steps are done, ``in_epoch`` of them in ``epoch``.

    ``losses`` are the mean losses over the global batch of this epoch's steps so far.
    """

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    losses: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFingerprint:
    """What determines the order of samples and their arithmetic; it must not change within an epoch.

    ``order``: further settings that the order of samples depends on. ``data``: the data set, as ``Facts.data``; "" in
    checkpoints of older versions.
    """

    global_batch: int
    samples: int
    seed: int
    dtype: str
    order: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The state of one rank: batch statistics, their moving average, and generator states.

    ``powersgd``: the error feedback of its gradients; empty without PowerSGD.
    """

    buffers: dict[str, Tensor]
    average: dict[str, Tensor]
    random: dict[str, Tensor]
    powersgd: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint, with all tensors on the CPU, independent of the parallel strategy.

    ``average`` is the network with averaged weights; None: there was no moving average. ``optimizer`` is its
    ``state_dict`` with the class name as ``kind``.
    """

    progress: Progress
    fingerprint: EpochFingerprint
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    precision: dict[str, Any]
    average: dict[str, Tensor] | None
    ranks: list[RankState]

    def content(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "format": FORMAT,
            **asdict(self.progress),
            "cut": asdict(self.fingerprint),
            "model": self.model,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "average": self.average,
            "ranks": [{part.name: getattr(one, part.name) for part in fields(RankState)} for one in self.ranks],
        }


def read(path: Path) -> Checkpoint:
    """The checkpoint in file ``path``.

    Raises:
        UnusableFile: it is truncated, damaged, or not a checkpoint of this trainer.
    """
    raw = load(path)
    try:
        # copies: the file may be deleted later, and views must not claim more than it holds
        content = plain_copy(raw, max_bytes=path.stat().st_size)
    except Exception as error:  # the file may also have been deleted
        raise UnusableFile(f"cannot be read: {str(error)[:200]}") from error
    try:
        return _checkpoint(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFile(f"is not a checkpoint of this trainer: {str(error)[:200]}") from error


def _checkpoint(content: Any) -> Checkpoint:
    version = content.get("format")
    if version not in (1, 2, FORMAT):
        raise ValueError(f"unknown format {version!r}")
    if version == 1:
        ranks_1 = [{"buffers": buffers, "average": {}, "random": {}} for buffers in content["buffers"]]
        content = {**content, "precision": {}, "average": None, "ranks": ranks_1}
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
        raise ValueError("more steps in the epoch than in total")
    ranks = [RankState(**{name: _tensors(one[name]) for name in one}) for one in content["ranks"]]
    shapes = [{(n, t.shape, t.dtype) for n, t in [*one.buffers.items(), *one.average.items()]} for one in ranks]
    if not ranks or any(other != shapes[0] for other in shapes):
        raise ValueError("ranks have different batch statistics")
    feedback = [{(n, t.shape, t.dtype) for n, t in one.powersgd.items()} for one in ranks]
    steps = [one.powersgd.get(STEPS, torch.tensor(0)) for one in ranks]
    if any(other != feedback[0] for other in feedback) or not all(torch.equal(one, steps[0]) for one in steps):
        # ranks that disagree on what to send in a step would deadlock
        raise ValueError("ranks have different states of PowerSGD")
    return Checkpoint(
        progress=progress,
        fingerprint=_cut(content["cut"]),
        model=_tensors(content["model"]),
        optimizer=_optimizer(content["optimizer"]),
        precision=_dictionary(content["precision"]),
        average=None if content["average"] is None else _tensors(content["average"]),
        ranks=ranks,
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def _cut(value: Any) -> EpochFingerprint:
    cut = EpochFingerprint(**_dictionary(value))
    for part in fields(EpochFingerprint):
        if type(getattr(cut, part.name)).__name__ != part.type:
            raise ValueError(f"{part.name} is not of type {part.type}")
    return cut


def _dictionary(value: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(name) is str for name in value):
        raise ValueError("a part is not a dictionary")
    return value


def _tensors(value: Any) -> dict[str, Tensor]:
    tensors = _dictionary(value)
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError("a part is not a tensor")
    return tensors


def _optimizer(value: Any) -> dict[str, Any]:
    optimizer = _dictionary(value)
    groups, memory = optimizer["param_groups"], optimizer["state"]
    if type(optimizer["kind"]) is not str or not all(type(group["params"]) is list for group in groups):
        raise ValueError("its optimizer state is invalid")
    for about in memory.values():
        if not all(known is None or isinstance(known, Tensor) for known in _dictionary(about).values()):
            raise ValueError("its optimizer state is invalid")
    return optimizer
