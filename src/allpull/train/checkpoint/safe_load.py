"""Load tensors from a file of unknown origin: complete, within its size, and without running code.

``torch.save`` writes a zip file of raw tensors and one pickle that describes them; before torch 1.6 it wrote a stream
of pickles followed by the tensors, as torchvision's older weights still are. Both load with ``weights_only=True``,
after checks that torch does not make: the checksum of every member of a zip file, and the globals in the pickles, since
some that ``weights_only`` permits allocate as much memory as a file demands. A file that torch might interpret
differently from these checks is refused.

No code runs from torch 2.10 on. Before 2.6 a file can run code despite ``weights_only`` (CVE-2025-32434), and before
2.10 it can corrupt memory (CVE-2026-24747).
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

from allpull.regular_file import regular

MAX_PICKLE_BYTES = 1 << 26  # that of ResNet-152 has 200 KiB, and a million losses of one epoch 9 MiB
MAX_PARTS, MAX_DEPTH = 1_000_000, 10  # values in a file, and their nesting: ours is 6 deep
STREAM_PICKLES = 5  # before the tensors of a stream: magic number, version, system, the object, keys of tensors
STREAM_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER: the first pickle of a stream
ZIP_MAGIC = b"PK\x03\x04"  # all that torch reads to tell a zip file from a stream
ZIP_END, ZIP64_LOCATOR, ZIP64_END = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
"""The records at the end of a zip file: APPNOTE.TXT of PKWARE, 4.3.16, 4.3.15 and 4.3.14."""

STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
TENSOR_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in STORAGES),
}
"""The globals that a pickle of tensors needs."""


class UnusableFile(Exception):
    """A file that cannot be used; the message says why."""


def load(path: Path, *, allowed: Collection[str] = TENSOR_GLOBALS, streams: bool = False) -> Any:
    """The object that ``torch.save`` wrote to ``path``; tensors may be views larger than the file: see ``plain_copy``.

    ``allowed`` are the globals that its pickles may name. ``streams``: also accept the format before torch 1.6.

    Raises:
        UnusableFile: it is damaged, names another global, or is not a torch file.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            zipped = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        if zipped != zipfile.is_zipfile(path):
            raise UnusableFile("cannot be read: it is only partly a zip file")
        if zipped or not streams:
            _check_zip(path, allowed)
        else:
            _check_stream(path, allowed)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except UnusableFile:
        raise
    except Exception as error:  # a file of any bytes makes the parsers raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnusableFile(f"cannot be read: {reason[:200]}") from error


def plain_copy(value: Any, *, max_bytes: float = math.inf) -> Any:
    """A copy of nested dictionaries and lists, with copies of its tensors on the CPU.

    Raises:
        ValueError: it contains another type, is larger than ``max_bytes``, or is nested too deep.
    """
    budget = {"parts": float(MAX_PARTS), "bytes": max_bytes}

    def spend(what: str, amount: float) -> None:
        budget[what] -= amount
        if budget[what] < 0:
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
                raise ValueError("keys are neither strings nor integers")
            return {name: copy(one, depth + 1) for name, one in part.items()}
        if isinstance(part, list | tuple):
            return [copy(one, depth + 1) for one in part]
        if part is None or isinstance(part, bool | int | float | str):
            return part
        raise ValueError(f"{type(part).__name__} in it")

    return copy(value, 0)


def _check_zip(path: Path, allowed: Collection[str]) -> None:
    """Raise ``UnusableFile`` if a member is damaged, compressed, or names a global not in ``allowed``."""
    _check_directory(path)
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        compressed = [part.filename for part in parts if part.compress_type or part.compress_size != part.file_size]
        damaged = compressed[0] if compressed else archive.testzip()
        if damaged is not None:
            raise UnusableFile(f"cannot be read: {damaged[:100]} is {'compressed' if compressed else 'damaged'}")
        _check_part_names(parts)
        for part in parts:
            if part.filename.lower().endswith(".pkl"):
                if part.file_size > MAX_PICKLE_BYTES:
                    raise UnusableFile("cannot be read: its list of tensors is too long")
                _check_globals(io.BytesIO(archive.read(part)), allowed)


def _check_directory(path: Path) -> None:
    """Raise ``UnusableFile`` unless the central directory is right before the end record of a zip file.

    torch reads the directory that the end record points to, ``zipfile`` the one before that record: they must be equal.
    """
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        tail = file.seek(max(0, size - ZIP_END.size - ZIP64_LOCATOR.size - ZIP64_END.size))
        last = file.read()
    end = size - ZIP_END.size
    signature, *_, length, begin, comment = ZIP_END.unpack(last[end - tail :])
    is_valid = signature == b"PK\x05\x06" and not comment
    place = last[-ZIP_END.size - ZIP64_LOCATOR.size : -ZIP_END.size]
    if place.startswith(b"PK\x06\x07"):
        signature, *_, length, begin = ZIP64_END.unpack(last[: ZIP64_END.size])
        is_valid = is_valid and signature == b"PK\x06\x06" and ZIP64_LOCATOR.unpack(place)[2] == tail
        end = tail
    if not is_valid or begin + length != end:
        raise UnusableFile("cannot be read: its central directory is not where it should be")


def _check_part_names(parts: list[zipfile.ZipInfo]) -> None:
    """Raise ``UnusableFile`` if it is ambiguous which member of a zip file torch would read.

    Its reader takes the folder of the first member for that of all, and ignores case.
    """
    filenames = {one.filename for one in parts}
    roots = {name.partition("/")[0] for name in filenames}
    if len({name.lower() for name in filenames}) < len(parts) or any(
        one.filename != one.orig_filename for one in parts
    ):
        raise UnusableFile("cannot be read: two of its members have the same name")
    if len(roots) != 1 or f"{min(roots)}/data.pkl" not in filenames:
        raise UnusableFile("cannot be read: it has no list of tensors, or more than one folder")
    if any(_large_sizes(part.extra) > 1 for part in parts):  # torch takes the first, zipfile may take the last
        raise UnusableFile("cannot be read: one of its members has two locations")


def _large_sizes(extra: bytes) -> int:
    """The number of a member's ``extra`` fields with a 64-bit size and offset (APPNOTE.TXT, 4.5.3)."""
    count = 0
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        count += kind == 1
        extra = extra[4 + length :]
    return count


def _check_stream(path: Path, allowed: Collection[str]) -> None:
    """Raise ``UnusableFile`` if the pickles before the tensors are too long or name a global not in ``allowed``.

    A tensor there is only reserved memory, whatever size it claims, until torch fills it from the file.
    """
    with path.open("rb") as file:
        start = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    if _is_tar(start.getvalue()[: tarfile.BLOCKSIZE]):
        raise UnusableFile("cannot be read: it is a tar file")
    magic = [(one.name, value) for one, value, _ in pickletools.genops(start) if one.name not in ("PROTO", "FRAME")]
    if magic not in ([("LONG1", STREAM_MAGIC), ("STOP", None)], [("LONG", STREAM_MAGIC), ("STOP", None)]):
        raise UnusableFile("cannot be read: it is not a torch file")
    for _ in range(STREAM_PICKLES - 1):
        _check_globals(start, allowed)


def _is_tar(block: bytes) -> bool:
    """Whether ``block`` starts a tar file; the member name in it may look like anything."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _check_globals(pickled: io.BytesIO, allowed: Collection[str]) -> None:
    """Scan one pickle to its end without executing it."""
    for operation, argument, _ in pickletools.genops(pickled):
        foreign = operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
        if foreign or (operation.name == "GLOBAL" and argument not in allowed):
            raise UnusableFile(f"cannot be read: it requires {str(argument)[:100]}")
