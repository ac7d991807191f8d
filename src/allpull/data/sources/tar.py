"""Tar files in WebDataset's layout: files of one stem are one sample, with its label in ``.cls`` or the class folder.

Nothing is unpacked: members are read in place, so paths, links, devices and permissions in the archive have no effect.
Compressed archives are refused, because their members cannot be read at random.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from allpull.data.images import MAX_SOURCE_BYTES, Refused
from allpull.data.pack_format import MAX_RECORDS, Kind, PackError
from allpull.data.regular_files import open_regular
from allpull.data.sources import Entry, Listing, Sample
from allpull.data.sources.imagefolder import SUFFIXES, not_an_image
from allpull.errors import BadInput

MAX_LABEL_BYTES = 4096
NO_IMAGE = "a label without an image"
Member = tuple[int, int, int]  # number of the tar file, offset, bytes


class Tars:
    """Members of one or several tar files."""

    name = "tar"
    multi_label = False
    kind: Kind = "jpeg"
    dtype = "|u1"

    def __init__(self, files: tuple[Path, ...], classes: tuple[str, ...]) -> None:
        self.files, self.classes = files, classes

    def read(self, entry: Entry) -> Sample:
        """The member's bytes."""
        number, offset, size = (int(part) for part in entry.place)
        if size > MAX_SOURCE_BYTES:
            raise Refused("a file too large for an image")
        return _read_at(self.files[number], offset, size)


def listing(path: Path, classes: int | None = None) -> Listing:
    """The samples of ``path``, a tar file or a folder of them.

    Raises:
        BadInput: one of them is damaged or compressed, or they hold no samples with labels.
    """
    files = (path,) if path.is_file() else tuple(sorted(path.glob("*.tar")))
    images: dict[str, tuple[str, Member]] = {}
    labels: dict[str, Member] = {}
    pending: list[tuple[str, str, str]] = []  # part of a sample if an image of the same stem exists
    left_out: list[tuple[str, str]] = []
    for number, file in enumerate(files):
        for name, member, fault in _members(file, number):
            stem, suffix = _parts(name)
            key = f"{number}/{stem}"  # the same stem in another tar is another sample
            if fault:
                left_out.append((f"{file.name}:{name}", fault))
            elif suffix == ".cls":
                labels[key] = member
            elif reason := not_an_image(name):
                pending.append((key, f"{file.name}:{name}", reason))
            elif key in images:
                left_out.append((f"{file.name}:{name}", "a second image of the same name"))
            else:
                images[key] = (name, member)
            if len(images) > MAX_RECORDS:
                raise BadInput(f"{path}: more than {MAX_RECORDS:,} images", hint="make several packs")
    if not images:
        raise BadInput(f"{path}: no images", hint=f"image names end in {' '.join(SUFFIXES)}")
    left_out += [(name, reason) for key, name, reason in pending if key not in images]
    left_out += [
        (f"{files[labels[key][0]].name}:{key.partition('/')[2]}.cls", NO_IMAGE)
        for key in sorted(labels.keys() - images)
    ]
    label_of = {key: _label_name(files, labels.get(key), name) for key, (name, _) in images.items()}
    names = _class_names(set(label_of.values()), classes, path)
    numbers = {name: number for number, name in enumerate(names)}
    entries = [
        Entry(
            key=f"{files[member[0]].name}:{name}",
            place=member,
            size_bytes=member[2],
            labels=(numbers[label_of[key]],),
        )
        for key, (name, member) in images.items()
    ]
    return Listing(source=Tars(files, names), entries=entries, left_out=left_out)


def _members(file: Path, number: int) -> Iterator[tuple[str, Member, str]]:
    descriptor = open_regular(file.resolve())
    size = os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "rb") as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r:") as archive:  # ":": no compression
                for count, member in enumerate(archive):
                    archive.members = []  # type: ignore[attr-defined]  # otherwise every header stays in memory
                    if count > 4 * MAX_RECORDS:
                        raise BadInput(f"{file}: too many members", hint="check that it is a data set")
                    place = number, member.offset_data, member.size
                    if member.isdir():
                        continue
                    if not member.isreg() or member.sparse is not None:
                        yield member.name, place, "not a regular file"
                    elif member.size < 0 or member.offset_data + member.size > size:
                        yield member.name, place, "truncated"
                        return  # later members would be past the end
                    else:
                        yield member.name, place, ""
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            hint = "decompress archives first (gunzip); compressed ones cannot be read at random"
            raise BadInput(f"{file}: not a complete tar file: {error}", hint=hint) from error


def _parts(name: str) -> tuple[str, str]:
    """Stem and suffix in WebDataset's sense: the suffix starts at the first dot of the last path component.

    >>> _parts("n01/img.1.jpg")
    ('n01/img', '.1.jpg')
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower()


def _label_name(files: tuple[Path, ...], member: Member | None, name: str) -> str:
    """The label as text: from the ``.cls`` member, otherwise the name of the folder."""
    if member is None:
        folder = name.rpartition("/")[0].rpartition("/")[2]
        if not folder:
            raise BadInput(f"{name}: no label", hint="add NAME.cls for NAME.jpg, or put the images into class folders")
        return folder
    if member[2] > MAX_LABEL_BYTES:
        raise BadInput(f"{name}: a label of {member[2]} bytes", hint="a .cls member holds one number")
    text = _read_at(files[member[0]], member[1], member[2]).decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return str(value)[:MAX_LABEL_BYTES]


def _class_names(names: set[str], classes: int | None, path: Path) -> tuple[str, ...]:
    """Classes by name; if all are numbers, 0 to the largest (or the requested number)."""
    if all(word.isascii() and word.isdigit() and len(word) < 8 for word in names):
        count = classes or max(int(word) for word in names) + 1
        if any(int(word) >= count for word in names):
            raise BadInput(f"{path}: labels beyond {count} classes", hint="increase --classes")
        return tuple(str(number) for number in range(count))
    if classes is not None and classes != len(names):
        raise BadInput(f"{path}: {len(names)} classes, not {classes}", hint="omit --classes")
    return tuple(sorted(names))


def _read_at(file: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = open_regular(file.resolve())
    except PackError as error:
        raise Refused(f"cannot be read: {error}") from error
    with os.fdopen(descriptor, "rb") as opened:
        data = os.pread(opened.fileno(), size, offset)
    if len(data) != size:
        raise Refused("truncated")
    return data
