"""Read a run directory: its records as columns, and gaps for what is missing from it.

What cannot be trusted is an error that names file, line and field. What is merely absent (a rank that was killed, a
host that kept its files) is a gap, which every result repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.read import buckets, collectives, column_cache, gaps, named_phases, reductions, unfinished
from allpull.rundir.read.column_cache import Columns
from allpull.rundir.read.counters import (
    CPUS_SCHEMA,
    GPUS_SCHEMA,
    LINKS_SCHEMA,
    NICS_SCHEMA,
    PINGS_SCHEMA,
    read_counters,
)
from allpull.rundir.read.events import EventLog, read_events
from allpull.rundir.read.headers import USER_STARTED, process_records, with_recorded_ranks
from allpull.rundir.read.steps import read_steps
from allpull.rundir.run_record import read_record
from allpull.schema.gap import Gap
from allpull.schema.host import HostRecord
from allpull.schema.run import UNENDED, RunRecord
from allpull.schema.steps import PROFILER, StepsHeader
from allpull.units import counted

MAX_HOST_JSON_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunData:
    """One run as stored on disk.

    ``directory`` is absolute, and outlives a change of the working directory; ``place`` is as the caller gave it.
    ``steps`` has the columns of ``steps.SCHEMA``, sorted by rank and step; ``collectives`` those of
    ``collectives.SCHEMA``, ``ready``, ``reductions`` (of steps that list them) and ``named`` those of their schemas, in
    the same order; ``counters``, ``pings``, ``gpus``, ``nics``, ``links`` and ``cpus`` those of the schemas
    in ``counters``.
    ``headers`` and ``events`` go by rank; ranks that left none are absent. ``gaps``: what is missing or was left out.
    """

    directory: Path
    record: RunRecord
    hosts: tuple[HostRecord, ...]
    steps: pl.DataFrame
    headers: dict[int, StepsHeader]
    events: dict[int, EventLog]
    counters: pl.DataFrame
    gaps: tuple[Gap, ...]
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=collectives.SCHEMA))
    ready: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=buckets.SCHEMA))
    reductions: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=reductions.SCHEMA))
    named: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=named_phases.SCHEMA))
    pings: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PINGS_SCHEMA))
    gpus: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GPUS_SCHEMA))
    nics: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=NICS_SCHEMA))
    links: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINKS_SCHEMA))
    cpus: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CPUS_SCHEMA))
    place: Path | None = None

    @property
    def shown_directory(self) -> str:
        """The run directory as results name it: as the caller gave it."""
        return safe_open.shown_path(self.place or self.directory)

    @property
    def is_from_traces(self) -> bool:
        """Whether the steps of every rank were read from traces of torch.profiler."""
        return bool(self.headers) and all(PROFILER in header.sources for header in self.headers.values())


def read_run(directory: Path, *, skip_damaged: bool = False) -> RunData:
    """The run in ``directory``, whole; the second time from ``column_cache``, where it is large and nothing changed.

    Unfinished last lines are dropped, and files of ranks or hosts may be missing: ``gaps`` names both. With
    ``skip_damaged`` other lines that cannot be read are left out too, and counted in ``gaps``.

    Raises:
        RunDirError: there is no readable ``run.json``; a file is damaged, larger than its budget, not readable, or
            a link that leaves the directory; or it was written by a newer major version.
    """
    root = safe_open.checked_directory(directory)
    record = read_record(root)
    missing: list[Gap] = [Gap(kind="recorded", text=text) for text in record.gaps]
    if record.status in UNENDED:
        missing.append(Gap(kind="unfinished", text=unfinished.why(root, record)))
    record = _with_recorded_ranks(root, record, missing)
    hosts = _hosts(root, record)
    ranks = _ranks_in(root, layout.steps_file, record, missing)
    columns = _columns(root, record, ranks, skip_damaged=skip_damaged)
    steps, tables = columns.files, columns.tables
    events = _event_logs(root, record, missing, skip_damaged=skip_damaged)
    if record.kind == "run":
        processes = process_records(root)
        missing += gaps.of_processes(processes)
        if not steps:
            missing.append(Gap(kind="no rank", text=gaps.why_no_rank(processes, record.exit)))
    missing += gaps.of_steps(record, steps, events)
    missing += gaps.of_events(record, set(steps), events)
    missing += gaps.of_hosts(record, hosts, columns.hosts)
    headers = {rank: file.header for rank, file in steps.items()}
    unread = len(_host_files(root, record, layout.COUNTERS, ".jsonl")) - len(columns.hosts)
    samples = gaps.Counted(files=columns.hosts, unread=unread, samples=columns.samples["cpus"])
    missing += gaps.of_counters(record, headers, tables.steps, samples)
    return RunData(
        directory=root,
        place=directory,
        record=record,
        hosts=hosts,
        steps=tables.steps,
        headers=headers,
        events=events,
        counters=columns.samples["ranks"],
        gaps=tuple(missing),
        collectives=_with_calls_after_steps(tables.calls, steps, events),
        ready=tables.ready,
        reductions=tables.reduced,
        named=tables.named,
        pings=columns.samples["pings"],
        gpus=columns.samples["gpus"],
        nics=columns.samples["nics"],
        links=columns.samples["links"],
        cpus=columns.samples["cpus"],
    )


def _columns(root: Path, record: RunRecord, ranks: list[int], *, skip_damaged: bool) -> Columns:
    """The step records of ``ranks`` and the counters of all hosts, from the cache where they have not changed."""
    hosts = _host_files(root, record, layout.COUNTERS, ".jsonl")
    paths = [*map(layout.steps_file, ranks), *hosts]
    sources = column_cache.sources(root, paths, record.ranks) if record.status not in UNENDED else None
    cached = column_cache.load(sources) if sources is not None else None
    if cached is not None:
        return cached
    files, tables = read_steps(root, ranks, skip_damaged=skip_damaged)
    counters, samples = read_counters(root, hosts, record.ranks, skip_damaged=skip_damaged)
    columns = Columns(files=files, tables=tables, hosts=counters, samples=samples)
    if sources is not None:
        column_cache.store(sources, columns)
    return columns


def _with_calls_after_steps(calls: pl.DataFrame, ranks: Iterable[int], events: dict[int, EventLog]) -> pl.DataFrame:
    """``calls`` of steps with those that ``ranks`` made after their last step, which follow it."""
    rows = [
        (rank, event.step, *call)
        for rank in ranks
        for event in (events[rank].after_steps if rank in events else ())
        for call in event.collectives
    ]
    if not rows:
        return calls
    after = pl.DataFrame(rows, schema=collectives.SCHEMA, orient="row")
    return pl.concat([calls, after]).sort("rank", maintain_order=True)


def _with_recorded_ranks(root: Path, record: RunRecord, missing: list[Gap]) -> RunRecord:
    """``record`` with the ranks and hosts of a command's own records, where its launcher did not live to learn them."""
    corrected = with_recorded_ranks(record, root)
    if corrected.ranks != record.ranks:
        contradiction = f"{layout.RUN_JSON} says {counted(record.ranks, 'rank')}, the records {corrected.ranks:,}"
        missing.append(Gap(kind="rank count", text=f"{contradiction}: read as {corrected.ranks:,}"))
    return corrected


def _hosts(root: Path, record: RunRecord) -> tuple[HostRecord, ...]:
    records = []
    for relative in _host_files(root, record, layout.HOSTS, ".json"):
        blob = safe_open.read_whole(root, relative, MAX_HOST_JSON_BYTES)
        records.append(safe_open.document(HostRecord, "host", blob, f"{safe_open.shown_path(root)}/{relative}"))
    return tuple(records)


def _event_logs(root: Path, record: RunRecord, missing: list[Gap], *, skip_damaged: bool) -> dict[int, EventLog]:
    logs = {}
    for rank in _ranks_in(root, layout.events_file, record, missing):
        log = read_events(root, rank, skip_damaged=skip_damaged)
        if log is not None:
            logs[rank] = log
    return logs


def _host_files(root: Path, record: RunRecord, folder: str, suffix: str) -> list[str]:
    """The files of hosts in ``folder``, at most as many as the run has ranks."""
    names, ranks = safe_open.file_names(root, folder, suffix), record.ranks
    login_hosts = int(record.launcher in USER_STARTED)  # one may have started the command, without a rank
    if len(names) > ranks + login_hosts:
        raise RunDirError(
            f"{safe_open.shown_path(root)}/{folder}: {len(names):,} hosts for {ranks:,} rank{'s' if ranks > 1 else ''}",
            hint="the files of several runs were put together: one directory holds one run",
        )
    return [f"{folder}/{name}" for name in names]


def _ranks_in(root: Path, path_of: Callable[[int], str], record: RunRecord, missing: list[Gap]) -> list[int]:
    """Ranks that have a file, from the listing of its folder: ``record.ranks`` may be any number."""
    folder = path_of(0).partition("/")[0]
    names = safe_open.file_names(root, folder, ".jsonl")
    numbers = {rank for rank in map(layout.rank_of, names) if rank is not None}
    paths = {f"{folder}/{name}" for name in names}
    own = sorted(rank for rank in numbers if rank < record.ranks and path_of(rank) in paths)
    strange = len(names) - len(own)
    if strange:
        text = f"{folder}: {counted(strange, 'file')} of no rank of this run (it has {record.ranks:,}): not read"
        missing.append(Gap(kind="foreign files", text=text))
    return own
