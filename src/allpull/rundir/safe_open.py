"""Open the files of a run directory, and no others: bounded in size and depth, each fault one clear error.

A run directory may come from anybody (DESIGN §3.7). Links that leave it, pipes and devices are refused, numbers
must fit 64 bits and be finite, and nothing is read whose size was not looked at first.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from allpull.errors import RunDirError
from allpull.output_folder import HELD
from allpull.regular_file import regular
from allpull.schema.base import Record, check_tag
from allpull.units import show_bytes

MAX_ENTRIES = 1_000_000  # files of one folder that are looked at: as many as a run may have ranks
MAX_SHOWN_FAULTS = 5  # of one record; more would hide the first

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_DIGITS_AS_0 = bytes.maketrans(b"123456789E", b"000000000e")
_DIGITS_19 = b"0" * 19  # 2^63 has as many

Kind = TypeVar("Kind", bound=Record)

Identity = tuple[int, ...]
"""Device, inode, size, time of modification and time of change of a file, times in ns."""


def shown_path(path: Path) -> str:
    """``path`` as text that any encoding can hold: bytes that are not UTF-8 appear as ``\\xff``."""
    path = path.resolve() if path.parent == HELD else path
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def checked_directory(path: Path) -> Path:
    """``path`` with all its links resolved, or as it is if it leads to a folder that is held.

    Raises:
        RunDirError: it does not exist, is no directory, or cannot be looked at.
    """
    where = shown_path(path)
    try:
        root = path if path.parent == HELD else path.resolve(strict=True)
        is_directory = root.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: NUL in a name
        raise RunDirError(f"{where}: {_reason(error)}", hint="give the path of a run directory") from error
    if not is_directory:
        raise RunDirError(f"{where}: not a directory", hint="give the run directory, not a file of it")
    return root


@contextmanager
def opened(root: Path, relative: str) -> Iterator[tuple[BinaryIO, int]]:
    """The regular file ``relative`` of the resolved directory ``root``, open for reading, with its size in bytes.

    Raises:
        RunDirError: it is missing, unreadable, not a regular file, or a link that leaves ``root``.
    """
    where = f"{shown_path(root)}/{relative}"
    path = _inside(root, relative)
    try:
        descriptor = regular(path)
    except OSError as error:
        raise RunDirError(f"{where}: {_reason(error)}", hint="are you allowed to read it?") from error
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, os.fstat(descriptor).st_size
        except OSError as error:
            raise RunDirError(f"{where}: {_reason(error)}", hint="check the file system") from error


def read_whole(root: Path, relative: str, limit_bytes: int) -> bytes:
    """All bytes of a small file of ``root``.

    Raises:
        RunDirError: as ``opened``, or it is larger than ``limit_bytes``.
    """
    with opened(root, relative) as (file, _):
        blob = file.read(limit_bytes + 1)
    if len(blob) > limit_bytes:
        raise RunDirError(
            f"{shown_path(root)}/{relative}: larger than {show_bytes(limit_bytes)}, which no {relative} of allpull is",
            hint="is this an allpull run directory?",
        )
    return blob


def file_names(root: Path, folder: str, suffix: str) -> list[str]:
    """Sorted names in ``root/folder`` that end with ``suffix``; empty where there is no such folder.

    Raises:
        RunDirError: the folder cannot be listed, leaves ``root``, or holds more than ``MAX_ENTRIES`` names.
    """
    where = f"{shown_path(root)}/{folder}"
    if not os.path.lexists(root / folder):
        return []
    path = _inside(root, folder)
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES:
                    raise RunDirError(f"{where}: more than {MAX_ENTRIES:,} files", hint="is this a run directory?")
                if entry.name.endswith(suffix):
                    names.append(entry.name)
    except OSError as error:
        raise RunDirError(f"{where}: {_reason(error)}", hint="are you allowed to read it?") from error
    return sorted(names)


def remove_files(root: Path, folder: str, ending: str) -> None:
    """Remove the files of ``folder`` whose names end with ``ending``, unless a link leads it out of ``root``."""
    with suppress(RunDirError):
        for name in file_names(root, folder, ending):
            (root / folder / name).unlink(missing_ok=True)


def others_can_write(status: os.stat_result) -> bool:
    """Whether another user than root can change the file of ``status``; a link's own mode says nothing."""
    is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
    return bool(is_open) or status.st_uid not in (0, os.geteuid())


def file_identity(root: Path, relative: str) -> Identity:
    """What changes whenever the file ``relative`` of ``root`` does.

    Raises:
        OSError: it is missing.
        ValueError: it is a link, or no file.
    """
    status = os.lstat(root / relative)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{relative} is not a file")
    return identity_of(status)


def identity_of(status: os.stat_result) -> Identity:
    """What changes whenever the file of ``status`` does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def parsed(blob: bytes) -> Any:
    """The JSON value in ``blob``.

    Raises:
        ValueError: not UTF-8, not JSON, nested too deeply, or a number that 64 bits cannot hold; it says which.
    """
    value = from_json(blob, allow_inf_nan=False)
    if _may_exceed(blob):
        _check_numbers(value)
    return value


def record(kind: type[Kind], value: object, where: str) -> Kind:
    """``value`` as a record of ``kind``; fields that we do not know are ignored.

    Raises:
        RunDirError: fields are missing or of the wrong type; ``where`` names the file, and the error the fields.
    """
    try:
        return kind.model_validate(value, strict=True)
    except ValidationError as error:
        raise RunDirError(
            f"{where}: {faults(error)}", hint="the file is damaged: copy it again from where it was made"
        ) from error


def document(kind: type[Kind], name: str, blob: bytes, where: str) -> Kind:
    """One JSON document that begins with a schema tag of ``name``.

    Raises:
        RunDirError: it is not JSON, not of ``name``, from a newer allpull, or damaged; ``where`` names the file.
    """
    try:
        value = parsed(blob)
    except ValueError as error:
        raise RunDirError(
            f"{where}: not readable as JSON: {error}",
            hint="it was written only in part, or changed: copy it again from where it was made",
        ) from error
    if not isinstance(value, dict):
        raise RunDirError(f"{where}: expected a JSON object", hint="is this an allpull file?")
    check_tag(value.get("schema"), name, where)
    return record(kind, value, where)


def faults(error: ValidationError) -> str:
    """The first faults that pydantic found, each with its field, in one line."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(str(part) for part in fault['loc'])[:80]}: {fault['msg']}" for fault in errors]
    more = len(shown) - MAX_SHOWN_FAULTS
    return "; ".join(shown[:MAX_SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else "")


def _inside(root: Path, relative: str) -> Path:
    where = f"{shown_path(root)}/{relative}"
    try:
        path = (root / relative).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise RunDirError(f"{where}: {_reason(error)}", hint="the run directory is incomplete") from error
    if not path.is_relative_to(root if root.parent != HELD else root.resolve()):
        raise RunDirError(
            f"{where}: a link that leaves the run directory; it is not followed",
            hint="copy the file itself to its place",
        )
    return path


def _may_exceed(blob: bytes) -> bool:
    """Whether a number in the JSON of ``blob`` may be beyond 64 bits: it has very many digits, or an exponent."""
    digits = blob.translate(_DIGITS_AS_0)
    if b"0e" in digits or _DIGITS_19 + b"0" in digits:
        return True
    return _DIGITS_19 in digits and re.search(rb"9[0-9]{18}", blob) is not None


def _check_numbers(value: object) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _check_numbers(part)
    elif isinstance(value, list):
        for part in value:
            _check_numbers(part)
    elif isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"a whole number of {len(str(value))} digits: more than 64 bits hold")
    elif isinstance(value, float) and not abs(value) < float("inf"):
        raise ValueError("a number too large for 64 bits")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
