"""Tar files, as WebDataset has them: files of one stem are one sample, its label in ``.cls`` or the class folder.

Nothing is unpacked: members are read where they lie, so paths, links, devices and permissions in the archive can do
nothing. Compressed archives are refused, because no member of them can be read without all before it.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from allpull.data.images import MAX_SOURCE_BYTES, Refused
from allpull.data.pack_format import MAX_RECORDS, Kind, PackError
from allpull.data.regular_files import open_plain
from allpull.data.sources import Entry, Listing, Sample
from allpull.data.sources.imagefolder import SUFFIXES, unlike_pictures
from allpull.errors import BadInput

MAX_LABEL_BYTES = 4096
ALONE = "a label without a picture"
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
            raise Refused("a file too large for a picture")
        return _read_at(self.files[number], offset, size)


def listing(path: Path, classes: int | None = None) -> Listing:
    """The samples of ``path``, a tar file or a folder of them.

    Raises:
        BadInput: one of them is damaged or compressed, or they hold no samples with labels.
    """
    files = (path,) if path.is_file() else tuple(sorted(path.glob("*.tar")))
    pictures: dict[str, tuple[str, Member]] = {}
    labels: dict[str, Member] = {}
    others: list[tuple[str, str, str]] = []  # belong to a sample where a picture of their stem comes, before or after
    left_out: list[tuple[str, str]] = []
    for number, file in enumerate(files):
        for name, member, odd in _members(file, number):
            stem, suffix = _parts(name)
            key = f"{number}/{stem}"  # the same stem in another tar is another sample
            if odd:
                left_out.append((f"{file.name}:{name}", odd))
            elif suffix == ".cls":
                labels[key] = member
            elif reason := unlike_pictures(name):
                others.append((key, f"{file.name}:{name}", reason))
            elif key in pictures:
                left_out.append((f"{file.name}:{name}", "a second picture of one name"))
            else:
                pictures[key] = (name, member)
            if len(pictures) > MAX_RECORDS:
                raise BadInput(f"{path}: more than {MAX_RECORDS:,} pictures", hint="make several packs")
    if not pictures:
        raise BadInput(f"{path}: no pictures", hint=f"they end in {' '.join(SUFFIXES)}")
    left_out += [(name, reason) for key, name, reason in others if key not in pictures]
    left_out += [
        (f"{files[labels[key][0]].name}:{key.partition('/')[2]}.cls", ALONE) for key in sorted(labels.keys() - pictures)
    ]
    words = {key: _word(files, labels.get(key), name) for key, (name, _) in pictures.items()}
    names = _class_names(set(words.values()), classes, path)
    numbers = {name: number for number, name in enumerate(names)}
    entries = [
        Entry(key=f"{files[member[0]].name}:{name}", place=member, size_bytes=member[2], labels=(numbers[words[key]],))
        for key, (name, member) in pictures.items()
    ]
    return Listing(source=Tars(files, names), entries=entries, left_out=left_out)


def _members(file: Path, number: int) -> Iterator[tuple[str, Member, str]]:
    descriptor = open_plain(file.resolve())
    size = os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "rb") as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r:") as archive:  # ":": no compression is guessed
                for count, member in enumerate(archive):
                    archive.members = []  # type: ignore[attr-defined]  # else every header stays in memory
                    if count > 4 * MAX_RECORDS:
                        raise BadInput(f"{file}: too many members", hint="is it a data set?")
                    place = number, member.offset_data, member.size
                    if member.isdir():
                        continue
                    if not member.isreg() or member.sparse is not None:
                        yield member.name, place, "not a plain file"
                    elif member.size < 0 or member.offset_data + member.size > size:
                        yield member.name, place, "cut short"
                        return  # what follows would lie behind the end
                    else:
                        yield member.name, place, ""
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            hint = "unpack compressed archives first (gunzip); they cannot be read at random"
            raise BadInput(f"{file}: not a whole tar file: {error}", hint=hint) from error


def _parts(name: str) -> tuple[str, str]:
    """Stem and suffix as WebDataset has them: the suffix begins at the first dot of the last part.

    >>> _parts("n01/img.1.jpg")
    ('n01/img', '.1.jpg')
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower()


def _word(files: tuple[Path, ...], member: Member | None, name: str) -> str:
    """The label as text: of the ``.cls`` member, else the name of the folder."""
    if member is None:
        folder = name.rpartition("/")[0].rpartition("/")[2]
        if not folder:
            raise BadInput(f"{name}: no label", hint="beside NAME.jpg belongs NAME.cls, or put it into a class folder")
        return folder
    if member[2] > MAX_LABEL_BYTES:
        raise BadInput(f"{name}: a label of {member[2]} bytes", hint="a .cls member holds one number")
    text = _read_at(files[member[0]], member[1], member[2]).decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return str(value)[:MAX_LABEL_BYTES]


def _class_names(words: set[str], classes: int | None, path: Path) -> tuple[str, ...]:
    """Classes by name; where all are numbers, 0 to the largest (or as many as were asked for)."""
    if all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        count = classes or max(int(word) for word in words) + 1
        if any(int(word) >= count for word in words):
            raise BadInput(f"{path}: labels of {count} classes and more", hint="give --classes as many as there are")
        return tuple(str(number) for number in range(count))
    if classes is not None and classes != len(words):
        raise BadInput(f"{path}: {len(words)} classes, not {classes}", hint="leave --classes out")
    return tuple(sorted(words))


def _read_at(file: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = open_plain(file.resolve())
    except PackError as error:
        raise Refused(f"cannot be read: {error}") from error
    with os.fdopen(descriptor, "rb") as opened:
        data = os.pread(opened.fileno(), size, offset)
    if len(data) != size:
        raise Refused("cut short")
    return data
