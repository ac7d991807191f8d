"""What the ranks of a run say of themselves, from the first line of each file: who they are, and on which hosts.

Of a run whose ranks allpull did not start, this is how their number is known. Little is read of each file, and what
cannot be trusted is passed over: ``read`` is there to complain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.schema.run import RunRecord

COUNTED = frozenset({"command", "script"})
"""Names of launchers that start no rank themselves: the user's command as it is, or a script with pasted lines."""

MAX_RANKS = 1_000_000
MAX_LINE_BYTES = 1 << 16
MAX_PROCESSES = 10_000  # looked at; more of them say nothing new
SAID = ("python", "torch", "torch_cpu")  # what a process says of versions


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """What the header of one rank's steps says; ``ranks`` is its world size."""

    rank: int
    ranks: int
    host: str
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process that imported torch: the rank it became, or why it became none, and versions of Python and torch.

    ``refused_rank``: the rank that it would have become, had another process not been recorded as that rank before.
    """

    pid: int
    host: str
    rank: int | None
    command: tuple[str, ...]
    versions: Mapping[str, str]
    reason: str | None
    refused_rank: int | None = None


def ranks_of(root: Path) -> list[SeenRank]:
    """The ranks that have recorded something in the resolved run directory ``root``, in order."""
    found = []
    for name in _names(root, layout.STEPS, ".jsonl"):
        rank = _rank(_first_line(root, f"{layout.STEPS}/{name}"))
        if rank is not None and rank.rank == layout.rank_of(name):
            found.append(rank)
    return sorted(found, key=lambda rank: rank.rank)


def has_ended(root: Path, rank: int) -> bool:
    """Whether ``rank`` of the resolved run directory ``root`` has said that it ended, by an exception or well."""
    try:
        with safe_open.opened(root, layout.events_file(rank)) as (file, size):
            file.seek(max(0, size - MAX_LINE_BYTES))
            lines = file.read(MAX_LINE_BYTES).splitlines()
    except RunDirError:
        return False
    return any(_value(line).get("kind") in {"end", "exception"} for line in lines if b'"kind"' in line)


def processes_of(root: Path) -> list[SeenProcess]:
    """The processes that told what they were, at most ``MAX_PROCESSES``."""
    names = _names(root, layout.PROCESSES, ".json")[:MAX_PROCESSES]
    processes = (_process(_whole(root, f"{layout.PROCESSES}/{name}")) for name in names)
    return [process for process in processes if process is not None]


def rank_files(root: Path) -> int:
    """How many files of steps there are: that this has changed is quickly seen."""
    return len(_names(root, layout.STEPS, ".jsonl"))


def corrected(record: RunRecord, root: Path) -> RunRecord:
    """``record`` with what only the ranks in ``root`` know, where nothing of ours started them.

    That is their number, their hosts, and the versions of Python and torch that they run.
    """
    ranks = ranks_of(root) if record.launcher in COUNTED else []
    if not ranks:
        return record
    said = max(max(rank.ranks, rank.rank + 1) for rank in ranks)
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    versions = next((process.versions for process in processes_of(root) if process.rank is not None), {})
    return record.model_copy(update={"ranks": said, "hosts": hosts, "versions": {**record.versions, **versions}})


def _rank(header: dict[str, Any]) -> SeenRank | None:
    rank, ranks, host, pid = (header.get(name) for name in ("rank", "ranks", "host", "pid"))
    if type(rank) is not int or type(ranks) is not int or not isinstance(host, str):
        return None
    if not 0 <= rank < MAX_RANKS or not 1 <= ranks <= MAX_RANKS:
        return None
    return SeenRank(rank=rank, ranks=ranks, host=host[:255], pid=pid if type(pid) is int else None)


def _process(told: dict[str, Any]) -> SeenProcess | None:
    pid, host, rank, reason, argv = (told.get(name) for name in ("pid", "host", "rank", "reason", "argv"))
    refused = told.get("refused_rank")
    if type(pid) is not int or not isinstance(host, str):
        return None
    words = [word[:1000] for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return SeenProcess(
        pid=pid,
        host=host[:255],
        rank=rank if type(rank) is int else None,
        command=tuple(words[:50]),
        versions={name: told[name][:100] for name in SAID if isinstance(told.get(name), str)},
        reason=reason[:500] if isinstance(reason, str) else None,
        refused_rank=refused if type(refused) is int else None,
    )


def _names(root: Path, folder: str, suffix: str) -> list[str]:
    try:
        return safe_open.file_names(root, folder, suffix)
    except RunDirError:
        return []


def _first_line(root: Path, relative: str) -> dict[str, Any]:
    try:
        with safe_open.opened(root, relative) as (file, _):
            line = file.readline(MAX_LINE_BYTES)
    except RunDirError:
        return {}
    return _value(line)


def _whole(root: Path, relative: str) -> dict[str, Any]:
    try:
        return _value(safe_open.read_whole(root, relative, MAX_LINE_BYTES))
    except RunDirError:
        return {}


def _value(blob: bytes) -> dict[str, Any]:
    try:
        value = safe_open.parsed(blob)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
