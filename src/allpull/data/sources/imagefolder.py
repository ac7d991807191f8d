"""ImageFolder: one folder per class, images in it or below it; classes in alphabetical order."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from allpull.data.images import MAX_SOURCE_BYTES, Refused
from allpull.data.pack_format import MAX_CLASSES, MAX_RECORDS, Kind
from allpull.data.sources import Entry, Listing, Sample
from allpull.errors import BadInput
from allpull.regular_file import regular

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
LINK = "a link out of the source, or a broken link"
LINKS_HINT = "links out of SRC are not followed: give the folder that holds the files, or a copy made by cp -rL"
MAX_DEPTH = 16  # of folders in a class; guards against traps


class ImageFolder:
    """Images below ``root``; links are followed only inside it."""

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
    """The images of an ImageFolder.

    Raises:
        BadInput: it has no class folders, no images, or not the requested number of classes.
    """
    root = path.resolve()
    with os.scandir(root) as listing:
        folders = {entry.name: entry.is_symlink() for entry in listing if Path(entry).is_dir()}
    names = sorted(name for name, is_link in folders.items() if not is_link)
    if folders and not names:
        raise BadInput(f"{path}: all {len(folders)} class folders are links", hint=LINKS_HINT)
    if not 1 <= len(names) <= MAX_CLASSES or (classes is not None and classes != len(names)):
        raise BadInput(f"{path}: {len(names)} class folders", hint="an ImageFolder has one folder per class")
    entries: list[Entry] = []
    left_out = [(name, "a link to a folder") for name in sorted(folders.keys() - set(names))]
    for label, name in enumerate(names):
        for relative, status, problem in _files(root, name, 0):
            reason = problem or not_an_image(relative)
            if reason:
                left_out.append((relative, reason))
            elif status is not None:
                entries.append(Entry(key=relative, place=(), size_bytes=status.st_size, labels=(label,)))
        if len(entries) > MAX_RECORDS:
            raise BadInput(f"{path}: more than {MAX_RECORDS:,} images", hint="make several packs")
    if not entries:
        hint = LINKS_HINT if any(reason == LINK for _, reason in left_out) else f"images end in {' '.join(SUFFIXES)}"
        raise BadInput(f"{path}: no images in its {len(names)} folders", hint=hint)
    return Listing(source=ImageFolder(root, tuple(names)), entries=entries, left_out=left_out)


def class_folders(root: Path) -> list[str]:
    """The names of the class folders of an ImageFolder, sorted; links to folders count, as in torchvision.

    Raises:
        BadInput: there is none.
    """
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{root}: {error.strerror}", hint="give a folder with one folder of images per class") from error
    if not 1 <= len(names) <= MAX_CLASSES:
        raise BadInput(f"{root}: {len(names)} class folders", hint="an ImageFolder has one folder per class")
    return names


def image_paths(folder: str, depth: int = 0) -> Iterator[str]:
    """The images in ``folder`` and below, sorted within each folder; found by name alone, without a look at each file.

    Raises:
        BadInput: a folder cannot be read, or folders are too deep, as those of a link that leads back are.
    """
    try:
        with os.scandir(folder) as listing:
            entries = sorted((entry.name, entry.is_dir()) for entry in listing)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", hint="make it readable, or leave it out") from error
    if depth > MAX_DEPTH:
        raise BadInput(f"{folder}: folders too deep", hint="does a link lead back to a folder above it?")
    for name, is_folder in entries:
        if is_folder:
            yield from image_paths(f"{folder}/{name}", depth + 1)
        elif not not_an_image(name):
            yield f"{folder}/{name}"


def not_an_image(name: str) -> str:
    """Why file ``name`` is not treated as an image, or "": decided by its suffix, as in torchvision.

    >>> not_an_image("cat/1.JPEG"), not_an_image("cat/1.avif"), not_an_image("cat/README")
    ('', 'not an image suffix: .avif', 'no suffix')
    >>> not_an_image("cat/._1.jpg")
    'a macOS metadata file'
    """
    last = name.rpartition("/")[2]
    if last.startswith("._"):
        return "a macOS metadata file"
    suffix = Path(last).suffix.lower()
    if suffix in SUFFIXES:
        return ""
    return f"not an image suffix: {suffix}" if suffix else "no suffix"


def _files(root: Path, relative: str, depth: int) -> Iterator[tuple[str, os.stat_result | None, str]]:
    """Path below ``root``, status, and the reason to leave it out, of all files below a folder, sorted by name."""
    with os.scandir(root / relative) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{relative}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if depth == MAX_DEPTH:
                yield path, None, "folders too deep"
            else:
                yield from _files(root, path, depth + 1)
            continue
        if entry.is_symlink() and not is_inside(root, path):
            yield path, None, LINK
            continue
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            yield path, None, "a link to a folder"
        else:
            yield path, status, "" if stat.S_ISREG(status.st_mode) else "not a regular file"


def is_inside(root: Path, relative: str) -> bool:
    """Whether ``relative`` is there and no link leads it out of the resolved folder ``root``."""
    try:
        return (root / relative).resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):
        return False


def read_inside(root: Path, relative: str, limit_bytes: int = MAX_SOURCE_BYTES) -> bytes:
    """The bytes of a regular file below the resolved folder ``root``.

    Raises:
        Refused: it is missing, not a regular file, outside ``root``, or is larger than ``limit_bytes``.
    """
    if not is_inside(root, relative):
        raise Refused("missing, or a link out of the source")
    try:
        with os.fdopen(regular(root / relative), "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error
    if len(data) > limit_bytes:
        raise Refused("a file too large for an image")
    return data
