"""Which of a user's code to copy to hosts that share no folder with this one.

What git ignores is left out, or else environments and run directories; so are files larger than code and its
configuration come to. The copy lies in the folder of the job on that host, and is removed with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.units import counted, show_bytes

MAX_FILE_BYTES = 16 << 20  # larger files are data, weights or traces
MAX_BYTES = 512 << 20
MAX_FILES = 100_000
SHOWN = 3
NOT_CODE = ("pyvenv.cfg", layout.RUN_JSON)  # a folder with one of these is an environment, or a run directory
LEFT_OUT = {".git", "__pycache__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedCode:
    """The files of ``folder`` to copy, by their paths in it; and what is left out."""

    folder: Path
    files: tuple[str, ...]
    size_bytes: int
    too_large: tuple[str, ...]
    by_git: bool
    """Whether git chose the files."""

    def __str__(self) -> str:
        what = f"ssh.carry: {counted(len(self.files), 'file')} ({show_bytes(self.size_bytes)}) of {self.folder}"
        left_out = ["what git ignores"] if self.by_git else ["environments and run directories"]
        if self.too_large:
            more = f" and {len(self.too_large) - SHOWN} more" if len(self.too_large) > SHOWN else ""
            large = f"{', '.join(self.too_large[:SHOWN])}{more}"
            left_out.append(f"files over {show_bytes(MAX_FILE_BYTES)} ({large})")
        return f"{what} are copied to each host that does not share the run directory; left out: {'; '.join(left_out)}"


def working_folder(carry: str) -> tuple[Path, str]:
    """The folder that ``ssh.carry`` names, and the path of the working directory in it.

    Raises:
        BadInput: there is no such folder, or the working directory lies elsewhere.
    """
    folder, here = Path(carry).resolve(), Path.cwd()
    if not folder.is_dir():
        raise BadInput(f"ssh.carry: no folder {carry}", hint="such as ssh.carry=. for the working directory")
    if not here.is_relative_to(folder):
        raise BadInput(
            f"ssh.carry: the working directory {here} is not in {folder}",
            hint="programs start there: name it, or a folder above it",
        )
    return folder, str(here.relative_to(folder))


def select(folder: Path) -> CarriedCode:
    """The files of ``folder`` that are code: those that git does not ignore, or all where it is no working tree.

    Raises:
        BadInput: they are too many or too large.
    """
    tracked = _known_to_git(folder)
    files, too_large, total = [], [], 0
    for name in _walk(folder) if tracked is None else tracked:
        path = folder / name
        if not path.is_file():  # deleted and not yet committed, a submodule, a socket
            continue
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            too_large.append(name)
            continue
        files.append(name)
        total += size
        if total > MAX_BYTES or len(files) > MAX_FILES:
            raise BadInput(
                f"ssh.carry: {folder} has more than {show_bytes(MAX_BYTES)} or {MAX_FILES:,} files of code",
                hint="name a smaller folder, or list data and results in its .gitignore",
            )
    if not files:
        raise BadInput(f"ssh.carry: {folder} has no files to copy", hint="name the folder of your program")
    return CarriedCode(
        folder=folder, files=tuple(files), size_bytes=total, too_large=tuple(too_large), by_git=tracked is not None
    )


def _known_to_git(folder: Path) -> list[str] | None:
    """Files of ``folder`` that git does not ignore; None where it is no working tree, or there is no git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return sorted({os.fsdecode(name) for name in answer.stdout.split(b"\0") if name})


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT and not any(Path(place, name, marker).exists() for marker in NOT_CODE)
        )
        for name in sorted(files):
            yield os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118  names may be any bytes
