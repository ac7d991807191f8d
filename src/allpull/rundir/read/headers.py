"""Read the ranks and hosts of a run from the first lines of its files.

This tells the number of ranks of a run whose ranks allpull did not start. Little is read of each file, and damage is
skipped here: ``read.run`` reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.rundir import layout
from allpull.rundir.read.lenient import file_names, first_record, json_object
from allpull.schema.run import RunRecord

SCRIPT = "script"
USER_STARTED = frozenset({"command", SCRIPT})
"""Launchers under which the user's own program starts the ranks: an unchanged command, or a script with our lines."""

MAX_RANKS = 1_000_000
MAX_PROCESSES = 10_000  # that are read
VERSIONS = ("python", "torch", "torch_cpu")  # fields of a process record


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeader:
    """The header of one rank's steps; ``ranks`` is its world size.

    ``boot_id`` is that of its monotonic clock; real time was ``realtime_ahead_ns`` ahead of that clock.
    """

    rank: int
    ranks: int
    host: str
    pid: int | None
    boot_id: str | None = None
    realtime_ahead_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
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


def rank_headers(root: Path) -> list[RankHeader]:
    """The headers of the ranks that have recorded steps in the resolved run directory ``root``, by rank."""
    headers = (rank_header(root, rank) for rank in recorded_ranks(root))
    return [header for header in headers if header is not None]


def recorded_ranks(root: Path) -> list[int]:
    """The ranks with a file of steps in the resolved run directory ``root``, in order."""
    ranks = map(layout.rank_of, file_names(root, layout.STEPS, ".jsonl"))
    return sorted({rank for rank in ranks if rank is not None})


def rank_header(root: Path, rank: int) -> RankHeader | None:
    """The header of the steps of ``rank`` in the resolved run directory ``root``; None: none that makes sense."""
    header = _rank(first_record(root, layout.steps_file(rank)))
    return header if header is not None and header.rank == rank else None


def process_records(root: Path) -> list[ProcessRecord]:
    """The processes that left a record, at most ``MAX_PROCESSES``."""
    names = file_names(root, layout.PROCESSES, ".json")[:MAX_PROCESSES]
    processes = (_process(json_object(root, f"{layout.PROCESSES}/{name}")) for name in names)
    return [process for process in processes if process is not None]


def rank_files(root: Path) -> int:
    """How many files of steps there are: a quick check for new ranks."""
    return len(file_names(root, layout.STEPS, ".jsonl"))


def with_recorded_ranks(record: RunRecord, root: Path) -> RunRecord:
    """``record`` with what only the ranks in ``root`` know, where the user's program started them.

    That is their number, their hosts, their versions of Python and torch, and in a script with our lines their command.
    """
    ranks = rank_headers(root) if record.launcher in USER_STARTED else []
    if not ranks:
        return record
    count = max(max(rank.ranks, rank.rank + 1) for rank in ranks)
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    first = min((one for one in process_records(root) if one.rank is not None), key=_rank_of, default=None)
    update: dict[str, Any] = {"ranks": count, "hosts": hosts}
    if first is not None:
        update["versions"] = {**record.versions, **first.versions}
    if first is not None and first.command and record.launcher == SCRIPT:
        update["command"] = list(first.command)
    return record.model_copy(update=update)


def _rank_of(process: ProcessRecord) -> int:
    return process.rank or 0


def _rank(header: dict[str, Any]) -> RankHeader | None:
    rank, ranks, host, pid = (header.get(name) for name in ("rank", "ranks", "host", "pid"))
    if type(rank) is not int or type(ranks) is not int or not isinstance(host, str):
        return None
    if not 0 <= rank < MAX_RANKS or not 1 <= ranks <= MAX_RANKS:
        return None
    boot_id = header.get("boot_id")
    return RankHeader(
        rank=rank,
        ranks=ranks,
        host=host[:255],
        pid=pid if type(pid) is int else None,
        boot_id=boot_id if isinstance(boot_id, str) else None,
        realtime_ahead_ns=_realtime_ahead_ns(header.get("clock")),
    )


def _realtime_ahead_ns(clock: object) -> int:
    fields = clock if isinstance(clock, dict) else {}
    monotonic_ns, realtime_ns = fields.get("monotonic_ns"), fields.get("realtime_ns")
    return realtime_ns - monotonic_ns if type(monotonic_ns) is int and type(realtime_ns) is int else 0


def _process(fields: dict[str, Any]) -> ProcessRecord | None:
    pid, host, rank, reason, argv = (fields.get(name) for name in ("pid", "host", "rank", "reason", "argv"))
    refused = fields.get("refused_rank")
    if type(pid) is not int or not isinstance(host, str):
        return None
    arguments = [word[:1000] for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return ProcessRecord(
        pid=pid,
        host=host[:255],
        rank=rank if type(rank) is int else None,
        command=tuple(arguments[:50]),
        versions={name: fields[name][:100] for name in VERSIONS if isinstance(fields.get(name), str)},
        reason=reason[:500] if isinstance(reason, str) else None,
        refused_rank=refused if type(refused) is int else None,
    )
