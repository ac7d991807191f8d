"""Find the traces and dumps among the files and folders that a user gives, and open them.

Links inside a folder are not followed, because the folder may come from somebody else; a file that the user names is
opened, through links too.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.rundir.safe_open import shown_path
from allpull.traces.unpacked import Unpacked
from allpull.units import show_bytes

MAX_FILES = 100_000  # of all folders together; as many ranks were never traced at once
MAX_DEPTH = 8  # of folders in folders
MAX_SHOWN = 3  # files of a folder that are no traces, by name
HEAD = 4 << 20  # bytes that are looked at to see what a file is

Kind = Literal["trace", "dump", "pickle"]

_PACKED = b"\x1f\x8b"
_PICKLED = b"\x80"
_STRANGERS = {
    b"PK": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"\x0a": "not JSON; if it is a Perfetto trace, export the profile as JSON: prof.export_chrome_trace('trace.json')",
    b"SQLite": "a database; if it is of Nsight Systems, export the profile of torch.profiler instead",
}
_MEMBERS = re.compile(r'"(traceEvents|entries)"\s*:\s*\[')


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: ``kind`` "trace" is Chrome JSON, "dump" and "pickle" are of the flight recorder."""

    path: Path
    kind: Kind
    size_bytes: int
    is_packed: bool

    @property
    def shown(self) -> str:
        """Its name, safe to print."""
        return shown_path(Path(self.path.name))[-100:]


def find(places: Sequence[Path], said: list[str]) -> list[Source]:
    """The traces and dumps in ``places``, files or folders, in order.

    Messages on what was left out, and why, are appended to ``said``.

    Raises:
        BadInput: a place does not exist or cannot be read, or there is nothing to import in any of them.
    """
    found: dict[Path, Source] = {}
    strangers: list[str] = []
    for place in places:
        is_folder = _status(place)
        for path in _inside(place, said) if is_folder else [place]:
            try:
                source = _source(path)
            except BadInput as fault:
                if not is_folder:
                    raise
                strangers.append(fault.message)
                continue
            found.setdefault(path.resolve(), source)
    said += [f"left out: {fault}" for fault in strangers[:MAX_SHOWN]]
    if len(strangers) > MAX_SHOWN:
        said.append(f"left out: {len(strangers) - MAX_SHOWN:,} more files that are no traces")
    if not found:
        left_out = f" ({said[0]})" if said else ""
        raise BadInput(
            f"{', '.join(shown_path(place)[-200:] for place in places[:3])}: no trace found{left_out}",
            hint="give traces of torch.profiler (.json or .json.gz), dumps of the flight recorder, or their folder",
        )
    return list(found.values())


@contextmanager
def unpacked(source: Source) -> Iterator[Unpacked]:
    """The bytes of ``source`` from its beginning.

    Raises:
        BadInput: it cannot be opened.
    """
    with opened(source.path) as (file, size_bytes):
        yield Unpacked(file, size_bytes, is_packed=source.is_packed)


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file, open for reading, with its size in bytes.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not hang
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        status = os.fstat(descriptor)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{shown_path(path)[-200:]}: not a regular file", hint="give the trace file itself")
        try:
            yield file, status.st_size
        except OSError as error:
            raise _unreadable(path, error) from error


def _status(place: Path) -> bool:
    """Whether ``place`` is a folder."""
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(place, error) from error


def _inside(folder: Path, said: list[str], depth: int = 0) -> list[Path]:
    """Files of ``folder`` and of those in it, by name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error
    if depth and any(entry.name == layout.RUN_JSON for entry in entries):
        said.append(
            f"left out: {shown_path(folder)[-200:]}: a run directory, with traces of its own; name it to import it"
        )
        return []
    files: list[Path] = []
    for entry in entries:
        path = folder / entry.name
        if entry.is_symlink():
            said.append(
                f"left out: {shown_path(path)[-200:]}: a link in a folder is not followed; name it to import it"
            )
        elif entry.is_dir(follow_symlinks=False):
            if depth < MAX_DEPTH:
                files += _inside(path, said, depth + 1)
        else:
            files.append(path)
        if len(files) > MAX_FILES:
            raise BadInput(f"{shown_path(folder)[-200:]}: more than {MAX_FILES:,} files", hint="name the traces alone")
    return files


def _source(path: Path) -> Source:
    with opened(path) as (file, size_bytes):
        first = file.read(8)
        is_packed = first.startswith(_PACKED)
        file.seek(0)
        try:
            head = Unpacked(file, size_bytes, is_packed=is_packed).read(HEAD)
        except ValueError as fault:
            raise BadInput(
                f"{shown_path(path)[-200:]}: {fault}", hint="copy it again from where it was made"
            ) from fault
    kind = _kind(head)
    if kind is None:
        why = next((word for begin, word in _STRANGERS.items() if head.startswith(begin)), "is it a trace?")
        what = "it is empty" if not head else "neither a trace of torch.profiler nor a dump of the flight recorder"
        raise BadInput(f"{shown_path(path)[-200:]}: {what} ({show_bytes(size_bytes)})", hint=why)
    return Source(path=path, kind=kind, size_bytes=size_bytes, is_packed=is_packed)


def _kind(head: bytes) -> Kind | None:
    if head.startswith(_PICKLED):
        return "pickle"
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("["):
        return "trace"
    if not text.startswith("{"):
        return None
    member = _MEMBERS.search(text)
    if member is not None:
        return "trace" if member.group(1) == "traceEvents" else "dump"
    return "trace" if len(head) >= HEAD else None


def _unreadable(path: Path, error: Exception) -> BadInput:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return BadInput(f"{shown_path(path)[-200:]}: {reason}", hint="does it exist, and may you read it?")
