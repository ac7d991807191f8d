"""Sources of packs: each lists its samples cheaply, and reads any of them in any process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from allpull.data.pack_format import Kind
from allpull.errors import BadInput
from allpull.registry import Table
from allpull.regular_file import regular

MAX_ONLY_BYTES = 1 << 30
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4", ".tar.Z")
PLAIN = "unpack it and give the folder, or decompress it to .tar: gunzip, bunzip2, unxz, zstd -d"
PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
BIGEARTHNET_BAND = "_B02.tif"
KEYS_HINT = "names are as in names.txt of a pack: paths below SRC, patches, or members as FILE.tar:NAME"

Sample = bytes | npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One sample before it is read: its name in the source, its position there, its size and labels.

    ``size_bytes`` is that of the source's data; ``labels`` are class numbers, one unless the source is multi-label.
    """

    key: str
    place: tuple[int | str, ...]
    size_bytes: int
    labels: tuple[int, ...]


class Source(Protocol):
    """A data set that can be packed. Other processes read it, so a source is small and can be pickled."""

    name: str
    classes: tuple[str, ...]
    multi_label: bool
    kind: Kind
    dtype: str

    def read(self, entry: Entry) -> Sample:
        """The file's bytes, or pixels [height, width, channels].

        Raises:
            Refused: this sample cannot be used; the message says why.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A source with its entries in a reproducible order, and the names that were left out, with reasons."""

    source: Source
    entries: Sequence[Entry]
    left_out: Sequence[tuple[str, str]]


def only_these(entries: Sequence[Entry], file: Path) -> list[Entry]:
    """The entries whose keys are in ``file``: one per line, or the first column of a CSV, as in BigEarthNet's splits.

    Raises:
        BadInput: the file cannot be read, or names an unknown sample.
    """
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", opener=regular) as names:
            text = names.read(MAX_ONLY_BYTES + 1)
        if len(text) > MAX_ONLY_BYTES:
            raise BadInput(f"{file}: too large for a list of names", hint="one name per line")
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}", hint="one name per line") from error
    wanted = {line.partition(",")[0].strip() for line in text.splitlines()} - {""}
    selected = [entry for entry in entries if entry.key in wanted]
    missing = sorted(wanted - {entry.key for entry in selected})
    if missing:
        raise BadInput(f"{file}: {len(missing):,} names are not in the source, such as {missing[0]!r}", hint=KEYS_HINT)
    return selected


SOURCES = Table(
    kind="source",
    group="allpull.sources",
    builtin={
        "imagefolder": "allpull.data.sources.imagefolder:listing",
        "tar": "allpull.data.sources.tar:listing",
        "idx": "allpull.data.sources.idx:listing",
        "bigearthnet": "allpull.data.sources.bigearthnet:listing",
        "arrays": "allpull.data.sources.arrays:listing",
    },
)
"""Name → function from a path and the number of classes wanted (None: the source's own) to a ``Listing``."""


def guess(path: Path) -> str:
    """The kind of source of ``path``, guessed from file names.

    Raises:
        BadInput: it does not exist, or is not a known kind.
    """
    if path.is_file() and path.suffix == ".npz":
        return "arrays"
    if path.is_file() and path.name.endswith(".tar"):
        return "tar"
    if path.is_file() and path.name.endswith(COMPRESSED):
        raise BadInput(f"{path}: a compressed tar file, whose members cannot be read at random", hint=PLAIN)
    if path.is_file():
        raise BadInput(
            f"{path}: a file that is neither tar nor npz", hint="give the folder of the data set, or use --source"
        )
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder, tar or npz file", hint="give the folder of the data set")
    names = sorted(entry.name for entry in path.iterdir())
    if any("-images-idx" in name or "-images.idx" in name for name in names):
        return "idx"
    if {"images.npy", "labels.npy"} <= set(names):
        return "arrays"
    if any(name.endswith(".tar") for name in names):
        return "tar"
    first = next((path / name for name in names if (path / name).is_dir()), None)
    if first is None and any(name.endswith(COMPRESSED) for name in names):
        raise BadInput(f"{path}: holds compressed tar files, which cannot be read at random", hint=PLAIN)
    if first is None:
        hint = "an ImageFolder has one folder per class; see --source"
        raise BadInput(f"{path}: holds no known data set", hint=hint)
    patches = any(entry.name.endswith("_labels_metadata.json") for entry in first.iterdir())
    if not patches:
        _refuse_parent_of_data_sets(path, [name for name in names if (path / name).is_dir()])
    return "bigearthnet" if patches else "imagefolder"


def _refuse_parent_of_data_sets(path: Path, folders: Sequence[str]) -> None:
    """Refuse ``folders`` of ``path`` that are parts of a data set: they would be learned as classes."""
    parts = [folder for folder in folders if folder.lower() in PARTS]
    if len(parts) == len(folders) or len(parts) > 1:  # there may also be label files, or files of an editor
        raise BadInput(
            f"{path}: holds parts of a data set instead of classes: {', '.join(parts)}",
            hint=f"pack each one separately: allpull pack {shlex.quote(str(path / parts[0]))} my-packs/{parts[0]};"
            " with --source imagefolder they are treated as classes",
        )
    below = next((entry for entry in (path / folders[0]).iterdir() if entry.is_dir()), None)
    if below is not None and any(entry.name.endswith(BIGEARTHNET_BAND) for entry in below.iterdir()):
        raise BadInput(
            f"{path}: patches in tile folders, as in BigEarthNet 2; allpull reads version 1",
            hint="put all patches into one folder, each with its labels in PATCH_labels_metadata.json",
        )
