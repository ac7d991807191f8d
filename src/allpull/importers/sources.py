"""Find the traces and dumps among the files and folders that a user gives, and open them.

Links inside a folder are not followed, because the folder may come from an untrusted source; a file that the user
names is opened even through a link.
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
from allpull.regular_file import regular
from allpull.rundir import layout
from allpull.rundir.safe_open import shown_path
from allpull.traces.unpacked import Unpacked
from allpull.units import show_bytes

MAX_FILES = 100_000  # of all folders together; no job has traced that many ranks
MAX_DEPTH = 8  # of folders in folders
MAX_SHOWN = 3  # names of files in a folder that are no traces
HEAD = 4 << 20  # bytes read to recognise the format of a file

Kind = Literal["trace", "dump", "pickle"]

_PACKED = b"\x1f\x8b"
_PICKLED = b"\x80"
_OTHER_FORMATS = {
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


def find(places: Sequence[Path], messages: list[str]) -> list[Source]:
    """The traces and dumps in ``places``, files or folders, in order.

    Messages about files that were left out, with the reason, are appended to ``messages``.

    Raises:
        BadInput: a place does not exist or cannot be read, or none of them contains anything to import.
    """
    sources: dict[Path, Source] = {}
    rejected: list[str] = []
    for place in places:
        is_folder = _is_folder(place)
        for path in _files_in(place, messages) if is_folder else [place]:
            try:
                source = _source(path)
            except BadInput as error:
                if not is_folder:
                    raise
                rejected.append(error.message)
                continue
            sources.setdefault(path.resolve(), source)
    messages += [f"left out: {error}" for error in rejected[:MAX_SHOWN]]
    if len(rejected) > MAX_SHOWN:
        messages.append(f"left out: {len(rejected) - MAX_SHOWN:,} more files that are no traces")
    if not sources:
        left_out = f" ({messages[0]})" if messages else ""
        raise BadInput(
            f"{', '.join(shown_path(place)[-200:] for place in places[:3])}: no trace found{left_out}",
            hint="give traces of torch.profiler (.json or .json.gz), dumps of the flight recorder, or their folder",
        )
    return list(sources.values())


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
        descriptor = regular(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, os.fstat(descriptor).st_size
        except OSError as error:
            raise _unreadable(path, error) from error


def _is_folder(place: Path) -> bool:
    """Whether ``place`` is a folder."""
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(place, error) from error


def _files_in(folder: Path, messages: list[str], depth: int = 0) -> list[Path]:
    """Files in ``folder`` and its subfolders, sorted by name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error
    if depth and any(entry.name == layout.RUN_JSON for entry in entries):
        messages.append(
            f"left out: {shown_path(folder)[-200:]}: a run directory, with traces of its own; name it to import it"
        )
        return []
    files: list[Path] = []
    for entry in entries:
        path = folder / entry.name
        if entry.is_symlink():
            messages.append(
                f"left out: {shown_path(path)[-200:]}: a link in a folder is not followed; name it to import it"
            )
        elif entry.is_dir(follow_symlinks=False):
            if depth < MAX_DEPTH:
                files += _files_in(path, messages, depth + 1)
        else:
            files.append(path)
        if len(files) > MAX_FILES:
            raise BadInput(
                f"{shown_path(folder)[-200:]}: more than {MAX_FILES:,} files", hint="name the traces themselves"
            )
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
                f"{shown_path(path)[-200:]}: {fault}", hint="copy it again from its original place"
            ) from fault
    kind = _kind(head)
    if kind is None:
        hint = next((text for begin, text in _OTHER_FORMATS.items() if head.startswith(begin)), "is it a trace?")
        reason = "it is empty" if not head else "neither a trace of torch.profiler nor a dump of the flight recorder"
        raise BadInput(f"{shown_path(path)[-200:]}: {reason} ({show_bytes(size_bytes)})", hint=hint)
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
