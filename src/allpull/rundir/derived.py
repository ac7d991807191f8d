"""Cache what was computed from a run in its ``derived`` folder; a missing cache is computed again.

Each file has a key: a digest of the sizes and times of the records, of allpull's version, and of itself. A file
that no longer matches its key is not read: the records have changed, or another version of allpull made it. Nor is
the folder used where another user can write: a key can be computed by anybody.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.explained import ExplainResult
from allpull.schema.run import UNENDED, RunRecord
from allpull.version import __version__

MAX_BYTES = 64 << 20  # seconds of every phase of 100,000 ranks


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
    """The digest that binds ``blob`` to the records in ``root`` and to this version of allpull.

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
    whole = hashlib.sha256(f"{__version__} {hashlib.sha256(blob).hexdigest()}".encode())
    for name, record in records.items():
        whole.update(f"\n{name} {record}".encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def _files(root: Path, folder: str) -> list[str]:
    """Regular files of ``folder``."""
    return [name for name in safe_open.file_names(root, folder, "") if (root / folder / name).is_file()]
