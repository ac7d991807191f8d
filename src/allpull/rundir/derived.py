"""Cache what was computed from a run in its ``derived`` folder; a missing cache is computed again.

Each file has a key: a digest of the sizes and times of the records, of this build of allpull, and of itself. A file
that no longer matches its key is not read: the records have changed, or another build of allpull made it. Nor is
the folder used where another user can write: a key can be computed by anybody.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.build import build
from allpull.rundir.run_record import read_record
from allpull.rundir.write import private_folder, replaced_file, whole_file
from allpull.schema.explained import ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.run import UNENDED, RunRecord

MAX_BYTES = 64 << 20  # seconds of every phase of 100,000 ranks
MIN_BYTES = 8 << 20  # of all files of a run; fewer are read in less time than it takes to start
SETTLED_NS = 2_000_000_000  # a file that changed later than this before it was read may change again unnoticed
MAX_FILES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultKey:
    """What a result belongs to: the run in the resolved ``root``, its files as in ``digest``, and options ``text``."""

    root: Path
    text: str
    digest: str


def result_key(directory: Path, text: str, *, least_bytes: int | None = None) -> ResultKey | None:
    """The key of results of the run in ``directory`` as it is now, with options ``text``; take it before reading.

    None where a result is not worth keeping or could become wrong unnoticed: the run has under ``least_bytes`` (by
    default ``MIN_BYTES``) or has
    not ended, a file has just changed or is a link, or another user can write to the directory.
    """
    now_ns = time.time_ns()
    try:
        root = safe_open.checked_directory(directory)
        if not is_private(root) or read_record(root).status in UNENDED:
            return None
        files = dict(_identities(root))
    except (OSError, ValueError, RunDirError):
        return None
    if sum(size for _, _, size, _, _ in files.values()) < (MIN_BYTES if least_bytes is None else least_bytes):
        return None
    if max(max(identity[3:]) for identity in files.values()) > now_ns - SETTLED_NS:
        return None
    whole = hashlib.sha256(f"{build()} {(root / layout.TIMELINE).exists()}".encode())
    for name, identity in files.items():
        whole.update(f"\n{name} {identity}".encode("utf-8", "backslashreplace"))
    return ResultKey(root=root, text=text, digest=whole.hexdigest())


def cached_report(key: ResultKey) -> ScalingReport | None:
    """The result that was kept for ``key``; None where there is none, or it is of other files."""
    name = layout.SHOWN.rpartition("/")[2]
    try:
        if name not in safe_open.file_names(key.root, layout.DERIVED, name) or not is_private(key.root):
            return None
        digest, _, blob = safe_open.read_whole(key.root, layout.SHOWN, MAX_BYTES).partition(b"\n")
        return _report(key, blob) if digest == _bound(key, blob) else None
    except RunDirError:
        return None


def cache_report(key: ResultKey, result: ScalingReport) -> None:
    """Keep ``result`` for ``key``, unless files have changed meanwhile, or it would be read back as another."""
    blob = result.model_dump_json(by_alias=True).encode()
    try:
        if result_key(key.root, key.text) != key or _report(key, blob) != result:
            return
        private_folder(str(key.root / layout.DERIVED))
        if is_private(key.root):
            with replaced_file(str(key.root / layout.SHOWN)) as file:
                file.write(_bound(key, blob) + b"\n" + blob)
    except (OSError, RunDirError):
        return


def _report(key: ResultKey, blob: bytes) -> ScalingReport:
    return safe_open.document(ScalingReport, "report", blob, f"{safe_open.shown_path(key.root)}/{layout.SHOWN}")


def _bound(key: ResultKey, blob: bytes) -> bytes:
    """The digest that binds ``blob`` to ``key``."""
    text = f"{key.digest} {key.text} {hashlib.sha256(blob).hexdigest()}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest().encode()


def _identities(root: Path) -> Iterator[tuple[str, safe_open.Identity]]:
    """Every file below ``root`` except in ``derived``, by its relative path, in order.

    Raises:
        OSError: one is gone.
        ValueError: one is a link or a pipe, or there are more than ``MAX_FILES``.
    """
    folders, count = [""], 0
    for folder in folders:
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                relative = f"{folder}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                count += 1
                if stat.S_ISDIR(status.st_mode):
                    folders += [] if relative == layout.DERIVED else [f"{relative}/"]
                elif stat.S_ISREG(status.st_mode) and count < MAX_FILES:
                    yield (
                        relative,
                        (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
                    )
                else:
                    raise ValueError(f"{relative} is not a file")


def cache_explanation(directory: Path, record: RunRecord, result: ExplainResult) -> None:
    """Cache ``result``, unless the run has not ended or its directory cannot be written."""
    path, key = directory / layout.EXPLANATION, directory / layout.EXPLANATION_KEY
    if record.status in UNENDED:
        return
    text = result.model_dump_json(by_alias=True, indent=1) + "\n"
    try:
        root = safe_open.checked_directory(directory)  # else a run that was deleted meanwhile would reappear
        if not is_private(root):
            return
        private_folder(str(path.parent))
        digest = _key(root, text.encode())
        if digest is not None:
            whole_file(str(path), text)
            whole_file(str(key), f"{digest}\n")
    except (OSError, RunDirError):
        return


def cached_explanation(directory: Path, record: RunRecord) -> ExplainResult | None:
    """The cached result of `allpull explain` for this run; None where there is none that matches its records.

    An explanation against a reference is not returned: it says more than an explanation of the run alone.
    """
    if record.status in UNENDED:
        return None
    try:
        root = safe_open.checked_directory(directory)
        kept = {f"{layout.DERIVED}/{name}" for name in safe_open.file_names(root, layout.DERIVED, "")}
        if not is_private(root) or not {layout.EXPLANATION, layout.EXPLANATION_KEY} <= kept:
            return None
        blob = safe_open.read_whole(root, layout.EXPLANATION, MAX_BYTES)
        key = safe_open.read_whole(root, layout.EXPLANATION_KEY, MAX_BYTES).decode("ascii", "replace").strip()
        if key != _key(root, blob):
            return None
        where = f"{safe_open.shown_path(root)}/{layout.EXPLANATION}"
        result = safe_open.document(ExplainResult, "explain", blob, where)
    except RunDirError:
        return None
    return result if result.run == record.id and result.reference is None else None


def is_private(root: Path) -> bool:
    """Whether only this user can have written the ``derived`` folder of ``root``, which may be missing.

    A link in its place would lead out of the run directory.

    Raises:
        RunDirError: the folder cannot be listed.
    """
    folder = root / layout.DERIVED
    if folder.is_symlink():
        return False
    files = [folder / name for name in safe_open.file_names(root, layout.DERIVED, "")]
    try:
        return not any(
            safe_open.others_can_write(path.lstat()) for path in (root, *([folder] if folder.exists() else []), *files)
        )
    except OSError:
        return False


def _key(root: Path, blob: bytes) -> str | None:
    """The digest that binds ``blob`` to the records in ``root`` and to this build of allpull.

    The size and times of a record stand for its content, so that listing runs does not read them. None: one is gone.

    Raises:
        RunDirError: a folder cannot be listed.
    """
    folders = (*layout.RECORDS, layout.TRACES)
    names = [layout.RUN_JSON, *(f"{folder}/{name}" for folder in folders for name in _files(root, folder))]
    try:
        records = {name: safe_open.file_identity(root, name) for name in names}
    except (OSError, ValueError):
        return None
    whole = hashlib.sha256(f"{build()} {hashlib.sha256(blob).hexdigest()}".encode())
    for name, record in records.items():
        whole.update(f"\n{name} {record}".encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def _files(root: Path, folder: str) -> list[str]:
    """Regular files of ``folder``."""
    return [name for name in safe_open.file_names(root, folder, "") if (root / folder / name).is_file()]
