"""Read a checkpoint that anybody may have written: ours, whole and of honest size, or not at all.

A checkpoint is what ``torch.save`` makes of dictionaries, lists, numbers, texts and tensors: a zip file of tensors as
they are and one pickle that says where each belongs. It is loaded with ``weights_only=True``, and only after every part
has its checksum, which torch does not look at, and the pickle names nothing but tensors.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = 2
MAX_PICKLE_BYTES = 1 << 26  # that of ResNet-152 has 200 KiB, and a million losses of one epoch 9 MiB
MAX_PARTS, MAX_DEPTH = 1_000_000, 10  # values in a checkpoint, and how deep they are nested: ours are 6 deep
MAX_COUNT = 1 << 53  # of steps

STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
GLOBALS = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", *(f"torch {kind}Storage" for kind in STORAGES)}
"""All that a pickle of tensors names. Others that ``weights_only`` lets pass make as much memory as a file asks for."""


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

    ``order``: whatever else the order of samples depends on, in any words.
    """

    global_batch: int
    samples: int
    seed: int
    dtype: str
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRank:
    """What a rank has of its own: batch statistics, those of the moving average, and states of random numbers."""

    buffers: dict[str, Tensor]
    average: dict[str, Tensor]
    random: dict[str, Tensor]


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
            "ranks": [{"buffers": one.buffers, "average": one.average, "random": one.random} for one in self.ranks],
        }


class Unusable(Exception):
    """A file that is no whole checkpoint of this trainer; says why."""


def read(path: Path) -> Stored:
    """The checkpoint in file ``path``.

    Raises:
        Unusable: it is torn, or none of ours.
    """
    try:
        _check_file(path)
        raw = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        # copies: the file need not stay, and what it does not hold is not believed
        content = plain(raw, max_bytes=path.stat().st_size)
    except Unusable:
        raise
    except Exception as error:  # a file of any bytes makes the parsers raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unusable(f"cannot be read: {reason[:200]}") from error
    try:
        return _stored(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"is no checkpoint of this trainer: {str(error)[:200]}") from error


def plain(value: Any, *, max_bytes: float = math.inf) -> Any:
    """A copy of a nest of dictionaries and lists, with copies of its tensors on the CPU.

    Raises:
        ValueError: there is something else in it, or it is larger than ``max_bytes`` or nested without end.
    """
    left = {"parts": float(MAX_PARTS), "bytes": max_bytes}

    def spend(what: str, amount: float) -> None:
        left[what] -= amount
        if left[what] < 0:
            raise ValueError(f"more {what} than a checkpoint has")

    def copy(part: Any, depth: int) -> Any:
        spend("parts", 1)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        if isinstance(part, Tensor):
            tensor = part.detach()
            spend("bytes", tensor.numel() * tensor.element_size())  # a view may claim more than its memory has
            return tensor.to("cpu", copy=True)
        if isinstance(part, Mapping):
            if not all(type(name) in (str, int) for name in part):
                raise ValueError("names are neither texts nor numbers")
            return {name: copy(one, depth + 1) for name, one in part.items()}
        if isinstance(part, list | tuple):
            return [copy(one, depth + 1) for one in part]
        if part is None or isinstance(part, bool | int | float | str):
            return part
        raise ValueError(f"{type(part).__name__} in it")

    return copy(value, 0)


def _check_file(path: Path) -> None:
    """Raise ``Unusable`` where parts are damaged, packed, or name other things than tensors."""
    with zipfile.ZipFile(path) as archive:
        packed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
        damaged = packed[0] if packed else archive.testzip()
        if damaged is not None:
            raise Unusable(f"cannot be read: {damaged[:100]} is {'packed' if packed else 'damaged'}")
        pickles = [part for part in archive.infolist() if part.filename.endswith("data.pkl")]
        if not pickles or any(part.file_size > MAX_PICKLE_BYTES for part in pickles):
            raise Unusable("cannot be read: it has no list of tensors, or an endless one")
        for part in pickles:
            for operation, argument, _ in pickletools.genops(archive.read(part)):
                foreign = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
                if foreign or (operation.name == "GLOBAL" and argument not in GLOBALS):
                    raise Unusable(f"cannot be read: it asks for {str(argument)[:100]}")


def _stored(content: Any) -> Stored:
    found = content.get("format")
    if found not in (1, FORMAT):
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
    for field in fields(Cut):
        if type(getattr(cut, field.name)).__name__ != field.type:
            raise ValueError(f"{field.name} is no {field.type}")
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
