"""Cache what was computed from a run in its ``derived`` folder; a missing cache is computed again.

Each file has a key: a digest of the records that it was computed from, of allpull's version, and of itself. A file
that no longer matches its key is not read: the records have changed, or another version of allpull made it. Nor is
the folder used where another user can write: a key can be computed by anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.explained import ExplainResult
from allpull.schema.run import RunRecord
from allpull.version import __version__

MAX_BYTES = 64 << 20  # seconds of every phase of 100,000 ranks
UNENDED = frozenset({"created", "running"})
"""States of a run whose records still grow: results of it are outdated at once."""
CHUNK = 1 << 20


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
        whole_file(str(path), text)
        whole_file(str(key), _key(root, text.encode()) + "\n")
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
        if safe_open.read_whole(root, layout.EXPLANATION_KEY, MAX_BYTES).decode("ascii", "replace").strip() != _key(
            root, blob
        ):
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
            safe_open.others_can_write(path) for path in (root, *([folder] if folder.exists() else []), *files)
        )
    except OSError:
        return False


def _key(root: Path, blob: bytes) -> str:
    """The digest that binds ``blob`` to the records in ``root`` and to this version of allpull.

    Raises:
        RunDirError: a record cannot be read.
    """
    whole = hashlib.sha256(f"{__version__} {hashlib.sha256(blob).hexdigest()}".encode())
    for part in _parts(root):
        whole.update(part.encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def _parts(root: Path) -> Iterator[str]:
    """Each record with its digest; profiler traces, which may take gigabytes, with their sizes."""
    names = [layout.RUN_JSON, *(f"{folder}/{name}" for folder in layout.RECORDS for name in _files(root, folder))]
    for name in names:
        digest = hashlib.sha256()
        with safe_open.opened(root, name) as (file, _):
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        yield f"\n{name} {digest.hexdigest()}"
    for name in _files(root, layout.TRACES):
        with safe_open.opened(root, f"{layout.TRACES}/{name}") as (_, size_bytes):
            yield f"\n{layout.TRACES}/{name} {size_bytes}"


def _files(root: Path, folder: str) -> list[str]:
    """Regular files of ``folder``."""
    return [name for name in safe_open.file_names(root, folder, "") if (root / folder / name).is_file()]
