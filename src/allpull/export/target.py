"""A folder that is complete or not there: written under another name, renamed at the end, replaced only on request."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allpull.errors import BadInput
from allpull.output_folder import make_folder
from allpull.report.printable import printable
from allpull.rundir.write import SCRATCH, whole_file
from allpull.schema.exported import Export

MANIFEST = "export.json"
"""What is in an exported folder; only a folder that has one is ever replaced."""


def check_free(place: Path, *, replace: bool) -> None:
    """Check that ``place`` does not exist, or is an export that may be replaced.

    Raises:
        BadInput: it is something else, or ``replace`` is False.
    """
    if not os.path.lexists(place):
        return
    shown = printable(str(place))
    if place.is_symlink() or not (place / MANIFEST).is_file():
        raise BadInput(f"{shown} exists and is not an export of allpull", hint="choose another folder (--out)")
    if not replace:
        raise BadInput(f"{shown} exists", hint="add --replace, or choose another folder (--out)")


@contextmanager
def new_folder(place: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to write into that becomes ``place`` when the block ends, or disappears on an error.

    Raises:
        BadInput: as ``check_free``, or nothing can be written there.
    """
    check_free(place, replace=replace)
    make_folder(place.parent)
    token = secrets.token_hex(8)
    scratch = place.with_name(f".{place.name[:100]}.{token}{SCRATCH}")
    try:
        scratch.mkdir(mode=0o700)
        try:
            yield scratch
            check_free(place, replace=replace)
            _put(scratch, place, place.with_name(f".{place.name[:100]}.{token}.old"))
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(
            f"cannot write {printable(str(place))}: {reason}", hint="choose another place, or make room there"
        ) from error


def write_manifest(folder: Path, export: Export) -> None:
    """Write what ``folder`` holds.

    Raises:
        OSError: it cannot be written.
    """
    whole_file(str(folder / MANIFEST), export.model_dump_json(by_alias=True, indent=1) + "\n")


def _put(scratch: Path, place: Path, old: Path) -> None:
    """Rename ``scratch`` to ``place``; what is there now goes only once that has worked."""
    if not place.exists():
        scratch.rename(place)
        return
    place.rename(old)
    try:
        scratch.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old)
