"""What was worked out of a run and kept beside it. These files are caches: whoever misses one makes it again.

Each is kept with a key: a digest of the records that it was made of, of allpull's version, and of itself. What does
not fit its key any more is not read: the records grew, were restored or were changed, or another allpull made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import allpull
from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.explained import ExplainResult
from allpull.schema.run import RunRecord

EXPLAINED = "derived/explain.json"
KEY = "derived/explain.key"
MAX_BYTES = 64 << 20  # seconds of every phase of 100,000 ranks
RECORDS = ("hosts", "steps", "events", "counters")
UNENDED = frozenset({"created", "running"})
"""States in which records still come: what is made of them now is of another run in a minute."""
CHUNK = 1 << 20


def keep_explained(directory: Path, record: RunRecord, result: ExplainResult) -> None:
    """Keep ``result`` beside the run; of a run that has not ended, or where nothing can be written, nothing is kept."""
    path, key = directory / EXPLAINED, directory / KEY
    if record.status in UNENDED or path.is_symlink() or path.parent.is_symlink() or key.is_symlink():
        return  # a link would lead out of the run directory
    text = result.model_dump_json(by_alias=True, indent=1) + "\n"
    try:
        private_folder(str(path.parent))
        whole_file(str(path), text)
        whole_file(str(key), _key(safe_open.checked_directory(directory), text.encode()) + "\n")
    except (OSError, RunDirError):
        return


def read_explained(directory: Path, record: RunRecord) -> ExplainResult | None:
    """What `allpull explain` kept of this very run; None where there is nothing, or it was made of something else.

    What was explained against a reference is left out, too: it says more than an explanation of the run alone.
    """
    if record.status in UNENDED:
        return None
    try:
        root = safe_open.checked_directory(directory)
        if not {Path(EXPLAINED).name, Path(KEY).name} <= set(safe_open.file_names(root, "derived", "")):
            return None
        blob = safe_open.read_whole(root, EXPLAINED, MAX_BYTES)
        if safe_open.read_whole(root, KEY, MAX_BYTES).decode("ascii", "replace").strip() != _key(root, blob):
            return None
        found = safe_open.document(ExplainResult, "explain", blob, f"{safe_open.shown_path(root)}/{EXPLAINED}")
    except RunDirError:
        return None
    return found if found.run == record.id and found.reference is None else None


def _key(root: Path, blob: bytes) -> str:
    """What binds ``blob`` to the records in ``root`` and to this allpull.

    Raises:
        RunDirError: a record cannot be read.
    """
    whole = hashlib.sha256(f"{allpull.__version__} {hashlib.sha256(blob).hexdigest()}".encode())
    for part in _parts(root):
        whole.update(part.encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def _parts(root: Path) -> Iterator[str]:
    """Each record with its digest; traces of a profiler, which may be gigabytes, with their sizes."""
    names = [layout.RUN_JSON, *(f"{folder}/{name}" for folder in RECORDS for name in _files(root, folder))]
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
    """Files of ``folder`` that are written whole or to the end; scratch files and folders are none of them."""
    return [name for name in safe_open.file_names(root, folder, "") if (root / folder / name).is_file()]
