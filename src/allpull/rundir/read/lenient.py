"""Read small pieces of files that may be missing, damaged or still growing: what cannot be read is left out.

``read.run`` reports what is wrong with a file; these serve those who ask while a job runs, or just after it died.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import redact, safe_open

MAX_BYTES = 1 << 16  # of one piece; a file of records has some hundred records in as much
LOG_LINES = 20
MAX_LOG_LINE = 500  # characters


def file_names(root: Path, folder: str, suffix: str) -> list[str]:
    """Sorted names in ``folder`` of the resolved directory ``root`` that end with ``suffix``."""
    try:
        return safe_open.file_names(root, folder, suffix)
    except RunDirError:
        return []


def json_object(root: Path, relative: str) -> dict[str, Any]:
    """The JSON object that a small file of the resolved directory ``root`` holds; empty without one."""
    try:
        return _object(safe_open.read_whole(root, relative, MAX_BYTES))
    except RunDirError:
        return {}


def first_record(root: Path, relative: str) -> dict[str, Any]:
    """The JSON object on the first line of a file of the resolved directory ``root``; empty without one."""
    try:
        with safe_open.opened(root, relative) as (file, _):
            return _object(file.readline(MAX_BYTES))
    except RunDirError:
        return {}


def last_records(root: Path, relative: str, limit_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """The JSON objects on the lines of the last ``limit_bytes`` of a file of the resolved directory ``root``."""
    return [value for value in map(_object, _tail(root, relative, limit_bytes).split(b"\n")) if value]


def log_tail(root: Path, relative: str, lines: int = LOG_LINES) -> tuple[str, ...]:
    """The last ``lines`` lines of a log of the resolved directory ``root``, secrets masked; empty without a log."""
    clean, _ = redact.text(_tail(root, relative, MAX_BYTES).decode("utf-8", "replace"))
    return tuple(deque((line[:MAX_LOG_LINE] for line in clean.splitlines() if line.strip()), maxlen=lines))


def _tail(root: Path, relative: str, limit_bytes: int) -> bytes:
    try:
        with safe_open.opened(root, relative) as (file, size):
            file.seek(max(0, size - limit_bytes))
            return file.read(limit_bytes)
    except RunDirError:
        return b""


def _object(blob: bytes) -> dict[str, Any]:
    try:
        value = safe_open.parsed(blob)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
