"""ImageFolder: a folder for each class, pictures in it or below it; classes in the order of their names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from allpull.data.images import MAX_SOURCE_BYTES, Refused
from allpull.data.pack_format import MAX_CLASSES, MAX_RECORDS, Kind
from allpull.data.sources import Entry, Listing, Sample
from allpull.errors import BadInput

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
LINK = "a link that leaves the source, or leads nowhere"
LINKS_HINT = "links that leave SRC are not followed: give the folder that holds the files, or a copy made by cp -rL"
MAX_DEPTH = 16  # of folders in a class; deeper ones are a trap


class ImageFolder:
    """Pictures below ``root``, whose links are followed only where they stay inside it."""

    name = "imagefolder"
    multi_label = False
    kind: Kind = "jpeg"
    dtype = "|u1"

    def __init__(self, root: Path, classes: tuple[str, ...]) -> None:
        self.root, self.classes = root, classes

    def read(self, entry: Entry) -> Sample:
        """The file's bytes."""
        return read_inside(self.root, entry.key)


def listing(path: Path, classes: int | None = None) -> Listing:
    """The pictures of an ImageFolder.

    Raises:
        BadInput: it has no class folders, no pictures, or another number of classes than was asked for.
    """
    root = path.resolve()
    with os.scandir(root) as found:
        folders = {entry.name: entry.is_symlink() for entry in found if Path(entry).is_dir()}
    names = sorted(name for name, is_link in folders.items() if not is_link)
    if folders and not names:
        raise BadInput(f"{path}: all {len(folders)} class folders are links", hint=LINKS_HINT)
    if not 1 <= len(names) <= MAX_CLASSES or (classes is not None and classes != len(names)):
        raise BadInput(f"{path}: {len(names)} class folders", hint="an ImageFolder has a folder for each class")
    entries: list[Entry] = []
    left_out = [(name, "a link to a folder") for name in sorted(folders.keys() - set(names))]
    for label, name in enumerate(names):
        for relative, status, other in _files(root, name, 0):
            reason = other or unlike_pictures(relative)
            if reason:
                left_out.append((relative, reason))
            elif status is not None:
                entries.append(Entry(key=relative, place=(), size_bytes=status.st_size, labels=(label,)))
        if len(entries) > MAX_RECORDS:
            raise BadInput(f"{path}: more than {MAX_RECORDS:,} pictures", hint="make several packs")
    if not entries:
        hint = LINKS_HINT if any(reason == LINK for _, reason in left_out) else f"they end in {' '.join(SUFFIXES)}"
        raise BadInput(f"{path}: no pictures in its {len(names)} folders", hint=hint)
    return Listing(source=ImageFolder(root, tuple(names)), entries=entries, left_out=left_out)


def unlike_pictures(name: str) -> str:
    """Why a file called ``name`` is not taken for a picture, or "": what decides is its ending, as in torchvision.

    >>> unlike_pictures("cat/1.JPEG"), unlike_pictures("cat/1.avif"), unlike_pictures("cat/README")
    ('', 'not an ending of pictures: .avif', 'no ending')
    >>> unlike_pictures("cat/._1.jpg")
    'what macOS keeps beside a file'
    """
    last = name.rpartition("/")[2]
    if last.startswith("._"):
        return "what macOS keeps beside a file"
    suffix = Path(last).suffix.lower()
    if suffix in SUFFIXES:
        return ""
    return f"not an ending of pictures: {suffix}" if suffix else "no ending"


def _files(root: Path, relative: str, depth: int) -> Iterator[tuple[str, os.stat_result | None, str]]:
    """Path below ``root``, status, and why it is left out, of all files below a folder, by name."""
    with os.scandir(root / relative) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{relative}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if depth == MAX_DEPTH:
                yield path, None, "folders too deep"
            else:
                yield from _files(root, path, depth + 1)
            continue
        if entry.is_symlink() and not _stays(root, path):
            yield path, None, LINK
            continue
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            yield path, None, "a link to a folder"
        else:
            yield path, status, "" if stat.S_ISREG(status.st_mode) else "not a plain file"


def _stays(root: Path, relative: str) -> bool:
    try:
        return (root / relative).resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):
        return False


def read_inside(root: Path, relative: str, limit_bytes: int = MAX_SOURCE_BYTES) -> bytes:
    """The bytes of a plain file below the resolved folder ``root``.

    Raises:
        Refused: it is gone, no plain file, leaves ``root``, or is larger than ``limit_bytes``.
    """
    if not _stays(root, relative):
        raise Refused("gone, or a link that leaves the source")
    try:
        descriptor = os.open(root / relative, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Refused("not a plain file")
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error
    if len(data) > limit_bytes:
        raise Refused("a file too large for a picture")
    return data
