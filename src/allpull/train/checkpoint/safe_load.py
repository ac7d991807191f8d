"""Load tensors from a file that anybody may have written: whole, of honest size, and without running anything.

``torch.save`` makes a zip file of tensors as they are and one pickle that says where each belongs; before torch 1.6 it
made one stream of pickles with the tensors behind them, as torchvision's older weights still are. Both are loaded with
``weights_only=True``, and only after what torch does not look at was: the checksum of every part of a zip file, and the
names in the pickles, since some that ``weights_only`` lets pass make as much memory as a file asks for. A file that
torch could read otherwise than it was looked at here is refused.

That nothing is run holds from torch 2.10 on. Before 2.6 a file can run code in spite of ``weights_only``
(CVE-2025-32434), and before 2.10 it can write over memory that is not its own (CVE-2026-24747).
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import tarfile
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_PICKLE_BYTES = 1 << 26  # that of ResNet-152 has 200 KiB, and a million losses of one epoch 9 MiB
MAX_PARTS, MAX_DEPTH = 1_000_000, 10  # values in a file, and how deep they are nested: ours are 6 deep
STREAM_PICKLES = 5  # before the tensors of a stream: magic number, version, system, what was saved, keys of tensors
STREAM_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER: the first pickle of a stream
ZIP_BEGINS = b"PK\x03\x04"  # all that torch looks at to tell a zip file from a stream
ZIP_END, ZIP64_PLACE, ZIP64_END = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
"""The records at the end of a zip file: APPNOTE.TXT of PKWARE, 4.3.16, 4.3.15 and 4.3.14."""

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
        with path.open("rb") as file:
            zipped = file.read(len(ZIP_BEGINS)) == ZIP_BEGINS
        if zipped != zipfile.is_zipfile(path):
            raise Unusable("cannot be read: it is half a zip file")
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
    _check_directory(path)
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        packed = [part.filename for part in parts if part.compress_type or part.compress_size != part.file_size]
        damaged = packed[0] if packed else archive.testzip()
        if damaged is not None:
            raise Unusable(f"cannot be read: {damaged[:100]} is {'packed' if packed else 'damaged'}")
        _check_part_names(parts)
        for part in parts:
            if part.filename.lower().endswith(".pkl"):
                if part.file_size > MAX_PICKLE_BYTES:
                    raise Unusable("cannot be read: its list of tensors is endless")
                _check_names(io.BytesIO(archive.read(part)), names)


def _check_directory(path: Path) -> None:
    """Raise ``Unusable`` where the list of parts does not stand right before the end of a zip file.

    torch takes the list that the last record points to, ``zipfile`` the one before that record: both must be the same.
    """
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        tail = file.seek(max(0, size - ZIP_END.size - ZIP64_PLACE.size - ZIP64_END.size))
        last = file.read()
    end = size - ZIP_END.size
    signature, *_, length, begin, comment = ZIP_END.unpack(last[end - tail :])
    sure = signature == b"PK\x05\x06" and not comment
    place = last[-ZIP_END.size - ZIP64_PLACE.size : -ZIP_END.size]
    if place.startswith(b"PK\x06\x07"):
        signature, *_, length, begin = ZIP64_END.unpack(last[: ZIP64_END.size])
        sure = sure and signature == b"PK\x06\x06" and ZIP64_PLACE.unpack(place)[2] == tail
        end = tail
    if not sure or begin + length != end:
        raise Unusable("cannot be read: its list of parts is not where it should be")


def _check_part_names(parts: list[zipfile.ZipInfo]) -> None:
    """Raise ``Unusable`` where it is in doubt which part of a zip file torch would take.

    Its reader takes the folder of the first part for that of all, and does not tell capitals from small letters.
    """
    found = {part.filename for part in parts}
    roots = {name.partition("/")[0] for name in found}
    if len({name.lower() for name in found}) < len(parts) or any(one.filename != one.orig_filename for one in parts):
        raise Unusable("cannot be read: two of its parts have one name")
    if len(roots) != 1 or f"{min(roots)}/data.pkl" not in found:
        raise Unusable("cannot be read: it has no list of tensors, or more than one folder")
    if any(_large_sizes(part.extra) > 1 for part in parts):  # torch takes the first, zipfile may take the last
        raise Unusable("cannot be read: one of its parts is in two places")


def _large_sizes(extra: bytes) -> int:
    """How many of a part's ``extra`` fields say its size and place in 64 bits (APPNOTE.TXT, 4.5.3)."""
    count = 0
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        count += kind == 1
        extra = extra[4 + length :]
    return count


def _check_stream(path: Path, names: Collection[str]) -> None:
    """Raise ``Unusable`` where the pickles before the tensors are endless or name other things than ``names``.

    A tensor of whatever size it claims is only room there, until torch fills it from as many bytes of the file.
    """
    with path.open("rb") as file:
        begin = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    if _is_tar(begin.getvalue()[: tarfile.BLOCKSIZE]):
        raise Unusable("cannot be read: it is a tar file")
    magic = [(one.name, value) for one, value, _ in pickletools.genops(begin) if one.name not in ("PROTO", "FRAME")]
    if magic not in ([("LONG1", STREAM_MAGIC), ("STOP", None)], [("LONG", STREAM_MAGIC), ("STOP", None)]):
        raise Unusable("cannot be read: it is no file of torch's")
    for _ in range(STREAM_PICKLES - 1):
        _check_names(begin, names)


def _is_tar(block: bytes) -> bool:
    """Whether a file that begins with ``block`` is taken for a tar file; a name in it may look like anything."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _check_names(pickled: io.BytesIO, names: Collection[str]) -> None:
    """Read one pickle to its end, without doing what it says."""
    for operation, argument, _ in pickletools.genops(pickled):
        foreign = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
        if foreign or (operation.name == "GLOBAL" and argument not in names):
            raise Unusable(f"cannot be read: it asks for {str(argument)[:100]}")
