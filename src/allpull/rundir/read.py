"""Read a run directory: its records as columns, and in words what is missing from it.

What cannot be trusted is an error that names file, line and field. What is merely absent (a rank that was killed, a
host that kept its files) is a gap: a sentence beside the data, which every result carries on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from allpull.errors import RunDirError
from allpull.rundir import bounded, layout
from allpull.rundir.beside import COUNTERS_SCHEMA, CountersFile, EventLog, read_counters, read_events
from allpull.rundir.records import SCHEMA, StepsFile, read_steps
from allpull.schema.host import HostRecord
from allpull.schema.run import RunRecord
from allpull.schema.steps import StepsHeader

MAX_RUN_JSON_BYTES = 16 << 20
MAX_HOST_JSON_BYTES = 1 << 20
SHOWN_RANKS = 3  # named in one gap; the others are counted

_RANK_FILE = re.compile(r"rank-([0-9]{5,7})\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunData:
    """One run as it stands on disk.

    ``steps`` has the columns of ``records.SCHEMA``, sorted by rank and step, and ``counters`` those of
    ``beside.COUNTERS_SCHEMA``. ``headers`` and ``events`` go by rank; ranks that left none are absent. ``gaps`` says
    in words what is missing or was left out.
    """

    directory: Path
    record: RunRecord
    hosts: tuple[HostRecord, ...]
    steps: pl.DataFrame
    headers: dict[int, StepsHeader]
    events: dict[int, EventLog]
    counters: pl.DataFrame
    gaps: tuple[str, ...]


def find_runs(path: Path) -> list[Path]:
    """``path`` itself if it is a run directory, else those directly in it, by name. Links in it are not followed.

    Raises:
        RunDirError: ``path`` is neither, or cannot be looked at.
    """
    root = bounded.checked_directory(path)
    if layout.RUN_JSON in bounded.file_names(root, ".", layout.RUN_JSON):
        return [path]
    inside = [name for name in bounded.file_names(root, ".", "") if _is_run(root / name)]
    if not inside:
        raise RunDirError(
            f"{bounded.shown_path(path)}: no {layout.RUN_JSON} here or in a folder of it",
            hint="give a run directory, or the folder that holds them (allpull prints it when a run ends)",
        )
    return [path / name for name in inside]


def read_run(directory: Path, *, skip_damaged: bool = False) -> RunData:
    """The run in ``directory``, whole: about two seconds for a million step records.

    Unfinished last lines are dropped, and files of ranks or hosts may be missing: ``gaps`` names both. With
    ``skip_damaged`` other lines that cannot be read are left out too, and counted in ``gaps``.

    Raises:
        RunDirError: there is no readable ``run.json``; a file is damaged, larger than its budget, not readable, or
            a link that leaves the directory; or it was written by a newer major version.
    """
    root = bounded.checked_directory(directory)
    record = _run_record(root)
    gaps: list[str] = []
    if record.status in {"created", "running"}:
        gaps.append(f"{layout.RUN_JSON} says '{record.status}': the job has not ended, or its launcher was killed")
    hosts = _hosts(root, record)
    steps = _step_files(root, record, gaps, skip_damaged=skip_damaged)
    events = _event_logs(root, record, gaps, skip_damaged=skip_damaged)
    counters = _counter_files(root, record, skip_damaged=skip_damaged)
    frames = [file.frame for file in steps.values()]
    gaps += _gaps_of_steps(record, steps)
    gaps += _gaps_of_events(record, set(steps), events)
    gaps += _gaps_of_hosts(record, hosts, counters)
    return RunData(
        directory=directory,
        record=record,
        hosts=hosts,
        steps=pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA),
        headers={rank: file.header for rank, file in steps.items()},
        events=events,
        counters=pl.DataFrame([row for file in counters for row in file.rows], schema=COUNTERS_SCHEMA),
        gaps=tuple(gaps),
    )


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and (path / layout.RUN_JSON).is_file()
    except OSError:
        return False


def _run_record(root: Path) -> RunRecord:
    where = bounded.shown_path(root)
    names = bounded.file_names(root, ".", "")
    if layout.RUN_JSON not in names:
        what = f"it has no {layout.RUN_JSON}" if names else "it is empty"
        raise RunDirError(
            f"{where}: not a run directory: {what}",
            hint=f"a run that was copied only in part lacks {layout.RUN_JSON}; copy the whole directory",
        )
    blob = bounded.read_whole(root, layout.RUN_JSON, MAX_RUN_JSON_BYTES)
    return bounded.document(RunRecord, "run", blob, f"{where}/{layout.RUN_JSON}")


def _hosts(root: Path, record: RunRecord) -> tuple[HostRecord, ...]:
    names = _at_most(record.ranks, bounded.file_names(root, "hosts", ".json"), f"{bounded.shown_path(root)}/hosts")
    found = []
    for name in names:
        relative = f"hosts/{name}"
        blob = bounded.read_whole(root, relative, MAX_HOST_JSON_BYTES)
        found.append(bounded.document(HostRecord, "host", blob, f"{bounded.shown_path(root)}/{relative}"))
    return tuple(found)


def _step_files(root: Path, record: RunRecord, gaps: list[str], *, skip_damaged: bool) -> dict[int, StepsFile]:
    found = {}
    for rank in _ranks_in(root, layout.steps_file, record, gaps):
        file = read_steps(root, rank, skip_damaged=skip_damaged)
        if file is not None:
            found[rank] = file
    return found


def _event_logs(root: Path, record: RunRecord, gaps: list[str], *, skip_damaged: bool) -> dict[int, EventLog]:
    found = {}
    for rank in _ranks_in(root, layout.events_file, record, gaps):
        log = read_events(root, rank, skip_damaged=skip_damaged)
        if log is not None:
            found[rank] = log
    return found


def _counter_files(root: Path, record: RunRecord, *, skip_damaged: bool) -> list[CountersFile]:
    names = bounded.file_names(root, "counters", ".jsonl")
    names = _at_most(record.ranks, names, f"{bounded.shown_path(root)}/counters")
    files = (read_counters(root, f"counters/{name}", record.ranks, skip_damaged=skip_damaged) for name in names)
    return [file for file in files if file is not None]


def _at_most(ranks: int, names: list[str], where: str) -> list[str]:
    if len(names) > ranks:
        raise RunDirError(
            f"{where}: {len(names):,} hosts for {ranks:,} rank{'s' if ranks > 1 else ''}",
            hint="the files of several runs were put together: one directory holds one run",
        )
    return names


def _ranks_in(root: Path, path_of: Callable[[int], str], record: RunRecord, gaps: list[str]) -> list[int]:
    """Ranks that have a file, from the listing of its folder: ``record.ranks`` may be any number."""
    folder = path_of(0).partition("/")[0]
    names = bounded.file_names(root, folder, ".jsonl")
    numbers = {int(match.group(1)) for match in map(_RANK_FILE.fullmatch, names) if match}
    paths = {f"{folder}/{name}" for name in names}
    own = sorted(rank for rank in numbers if rank < record.ranks and path_of(rank) in paths)
    strange = len(names) - len(own)
    if strange:
        gaps.append(f"{folder}: {_count(strange, 'file')} of no rank of this run (it has {record.ranks:,}): not read")
    return own


def _gaps_of_steps(record: RunRecord, files: dict[int, StepsFile]) -> Iterator[str]:
    if len(files) < record.ranks:
        missing = (rank for rank in range(record.ranks) if rank not in files)
        names = _ranks(missing, record.ranks - len(files))
        yield f"{names} left no step records (run.json says {_count(record.ranks, 'rank')})"
    other_size = [rank for rank, file in files.items() if file.header.ranks != record.ranks]
    if other_size:
        said = files[other_size[0]].header.ranks
        yield f"{_ranks(other_size)}: recorded in a job of {_count(said, 'rank')}; run.json says {record.ranks:,}"
    cut_off = [rank for rank, file in files.items() if file.cut_off]
    if cut_off:
        yield f"{_ranks(cut_off)}: the last line of the step records is cut off; it was left out"
    damaged = {rank: file.damaged for rank, file in files.items() if file.damaged}
    if damaged:
        yield f"{_ranks(damaged)}: {_count(sum(damaged.values()), 'damaged step record')} left out"
    lost = {rank: _numbers_missing(file.frame) for rank, file in files.items()}
    lost = {rank: count for rank, count in lost.items() if count}
    if lost:
        yield f"{_ranks(lost)}: {_count(sum(lost.values()), 'step')} between first and last without a record"


def _gaps_of_events(record: RunRecord, ranks: set[int], events: dict[int, EventLog]) -> Iterator[str]:
    silent = sorted(rank for rank in ranks | set(events) if rank not in events or events[rank].end is None)
    raised = [rank for rank in silent if rank in events and events[rank].exceptions]
    killed = [rank for rank in silent if rank not in set(raised)]
    if killed and record.status in {"created", "running"}:
        yield f"{_ranks(killed)} had not ended yet, or was killed"
    elif killed:
        yield f"{_ranks(killed)} ended without saying so (killed?)"
    if raised:
        yield f"{_ranks(raised)} ended by an exception: {events[raised[0]].exceptions[-1].type[:80]}"
    again = {rank: log for rank, log in events.items() if log.restarted and log.epochs}
    if again:
        rank, log = next(iter(again.items()))
        redone = max(0, log.restarted[-1].steps_before - log.epochs[0].step)
        times = _count(log.restarted[-1].attempt, "time")
        yield f"{_ranks(again)} started again {times}; {_count(redone, 'step')} of rank {rank} were lost and done again"
    for rank, log in islice(((r, log) for r, log in events.items() if log.switched_off), SHOWN_RANKS):
        yield f"rank {rank}: recording stopped before the end: {log.switched_off[-1].reason[:200]}"
    thinned = {rank: log.thinned[-1].keep_one_in for rank, log in events.items() if log.thinned}
    if thinned:
        yield f"{_ranks(thinned)}: records were thinned to one in {max(thinned.values()):,} to stay within the budget"
    cut_off = [rank for rank, log in events.items() if log.cut_off]
    if cut_off:
        yield f"{_ranks(cut_off)}: the last line of the events is cut off; it was left out"
    damaged = {rank: log.damaged for rank, log in events.items() if log.damaged}
    if damaged:
        yield f"{_ranks(damaged)}: {_count(sum(damaged.values()), 'damaged event')} left out"


def _gaps_of_hosts(record: RunRecord, hosts: tuple[HostRecord, ...], counters: list[CountersFile]) -> Iterator[str]:
    missing = len(record.hosts) - len(hosts)
    if missing > 0:
        yield f"{_count(missing, 'host')} of {len(record.hosts):,} left no description of itself"
    damaged = sum(file.damaged for file in counters)
    if damaged:
        yield f"counters: {_count(damaged, 'damaged sample')} left out"
    if any(file.cut_off for file in counters):
        yield "counters: a last line is cut off; it was left out"


def _numbers_missing(frame: pl.DataFrame) -> int:
    if frame.is_empty():
        return 0
    steps = frame["step"]
    return int(steps[-1]) - int(steps[0]) + 1 - frame.height


def _ranks(ranks: Iterable[int], count: int | None = None) -> str:
    """``rank 3``, or ``ranks 0, 1, 2 and 61 more``; ``count`` is how many there are, if ``ranks`` must not be run out.

    >>> _ranks([3]), _ranks(range(64)), _ranks(range(10**9), 10**9)
    ('rank 3', 'ranks 0, 1, 2 and 61 more', 'ranks 0, 1, 2 and 999,999,997 more')
    """
    total = len(list(ranks)) if count is None else count
    shown = ", ".join(str(rank) for rank in islice(ranks, SHOWN_RANKS))
    more = f" and {total - SHOWN_RANKS:,} more" if total > SHOWN_RANKS else ""
    return f"rank{'s' if total > 1 else ''} {shown}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
