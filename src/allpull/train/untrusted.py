"""Load tensors from a file that anybody may have written: whole, of honest size, and without running anything.

``torch.save`` makes a zip file of tensors as they are and one pickle that says where each belongs; before torch 1.6 it
made one stream of pickles with the tensors behind them, as torchvision's older weights still are. Both are loaded with
``weights_only=True``, and only after what torch does not look at was: the checksum of every part of a zip file, and the
names in the pickles, since some that ``weights_only`` lets pass make as much memory as a file asks for.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_PICKLE_BYTES = 1 << 26  # that of ResNet-152 has 200 KiB, and a million losses of one epoch 9 MiB
MAX_PARTS, MAX_DEPTH = 1_000_000, 10  # values in a file, and how deep they are nested: ours are 6 deep
STREAM_PICKLES = 5  # before the tensors of a stream: magic number, version, system, what was saved, keys of tensors

STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
TENSORS = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", *(f"torch {kind}Storage" for kind in STORAGES)}
"""All that a pickle of tensors names."""


class Unusable(Exception):
    """A file that is not what it should be; says why."""


def load(path: Path, *, names: Collection[str] = TENSORS, streams: bool = False) -> Any:
    """What ``torch.save`` put into file ``path``; tensors may be views of the file, and larger than it: see ``plain``.

    ``names`` are all that its pickles may name. ``streams``: it may be of the kind from before torch 1.6.

    Raises:
        Unusable: it is torn, names something else, or is none of torch's.
    """
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped or not streams:
            _check_zip(path, names)
        else:
            _check_stream(path, names)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except Unusable:
        raise
    except Exception as error:  # a file of any bytes makes the parsers raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unusable(f"cannot be read: {reason[:200]}") from error


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


def _check_zip(path: Path, names: Collection[str]) -> None:
    """Raise ``Unusable`` where parts are damaged, packed, or name other things than ``names``."""
    with zipfile.ZipFile(path) as archive:
        packed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
        damaged = packed[0] if packed else archive.testzip()
        if damaged is not None:
            raise Unusable(f"cannot be read: {damaged[:100]} is {'packed' if packed else 'damaged'}")
        pickles = [part for part in archive.infolist() if part.filename.endswith("data.pkl")]
        if not pickles or any(part.file_size > MAX_PICKLE_BYTES for part in pickles):
            raise Unusable("cannot be read: it has no list of tensors, or an endless one")
        for part in pickles:
            _check_names(io.BytesIO(archive.read(part)), names)


def _check_stream(path: Path, names: Collection[str]) -> None:
    """Raise ``Unusable`` where the pickles before the tensors are endless or name other things than ``names``.

    A tensor of whatever size it claims is only room there, until torch fills it from as many bytes of the file.
    """
    with path.open("rb") as file:
        begin = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    for _ in range(STREAM_PICKLES):
        _check_names(begin, names)


def _check_names(pickled: io.BytesIO, names: Collection[str]) -> None:
    """Read one pickle to its end, without doing what it says."""
    for operation, argument, _ in pickletools.genops(pickled):
        foreign = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
        if foreign or (operation.name == "GLOBAL" and argument not in names):
            raise Unusable(f"cannot be read: it asks for {str(argument)[:100]}")
