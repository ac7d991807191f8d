"""What is missing from the records of a run: gaps, which every result repeats.

A rank that was killed, a host that kept its files, records that were thinned: none of them is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir import layout
from allpull.rundir.read.counters import CountersFile
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.headers import ProcessRecord
from allpull.rundir.read.steps import StepsFile, spans
from allpull.schema.counters import CountersHeader
from allpull.schema.events import Raised, Watching
from allpull.schema.gap import SHOWN_RANKS, Gap, named_ranks, of_ranks
from allpull.schema.host import HostRecord
from allpull.schema.run import UNENDED, Exit, RunRecord
from allpull.schema.steps import StepsHeader
from allpull.units import counted

LAST_SAMPLES = 8  # show how far apart samples are at the end: starting takes long, and a budget thins them
MAX_SILENT_SAMPLES = 2  # times the usual distance
LATE_S = 0.5  # and that much more: a busy machine delays samples
NAMED_RANKS = 1000  # that a gap holds by number: run.json may speak of any number of ranks
SHOWN_REASONS = 3
BY_SIGNAL = 128  # exit codes above it: 128 + the number of the signal
OLD_NO_COUNTERS = "no counters: "
"""Before format 1.4, an entry of a counters file's ``sources`` that begins so said why nothing was counted."""


def of_steps(record: RunRecord, files: Mapping[int, StepsFile], events: Mapping[int, EventLog]) -> Iterator[Gap]:
    """Ranks and steps that have no record."""
    if len(files) < record.ranks:
        missing = (rank for rank in range(record.ranks) if rank not in files)
        names = named_ranks(missing, record.ranks - len(files))
        yield Gap(
            kind="step records",
            text=f"{names} left no step records ({layout.RUN_JSON} says {counted(record.ranks, 'rank')})",
            ranks=tuple(islice((rank for rank in range(record.ranks) if rank not in files), NAMED_RANKS)),
        )
    other_size = [rank for rank, file in files.items() if file.header.ranks != record.ranks]
    if other_size:
        recorded = f"recorded in a job of {counted(files[other_size[0]].header.ranks, 'rank')}"
        yield of_ranks("rank count", other_size, f": {recorded}; {layout.RUN_JSON} says {record.ranks:,}")
    cut_off = [rank for rank, file in files.items() if file.cut_off]
    if cut_off:
        yield of_ranks("step records", cut_off, ": the last line of the step records is cut off; it was left out")
    damaged = {rank: file.damaged for rank, file in files.items() if file.damaged}
    if damaged:
        yield of_ranks("step records", damaged, f": {counted(sum(damaged.values()), 'damaged step record')} left out")
    unwatched = {
        rank: steps for rank, log in events.items() if (steps := _unwatched(log.watching, files.get(rank))) > 0
    }
    off = {rank: unwatched.get(rank, 0) + _off_at_ends(log, files.get(rank)) for rank, log in events.items()}
    off = {rank: steps for rank, steps in off.items() if steps > 0}
    if off:
        yield of_ranks(
            "observation off", off, f": observation was switched off for {counted(max(off.values()), 'step')}"
        )
    lost = {rank: _numbers_missing(file) - unwatched.get(rank, 0) for rank, file in files.items()}
    lost = {rank: count for rank, count in lost.items() if count > 0}
    if lost:
        yield of_ranks(
            "step records", lost, f": {counted(sum(lost.values()), 'step')} between first and last without a record"
        )

    first = {rank: _first_missing(log, files.get(rank)) for rank, log in events.items()}
    first = {rank: count for rank, count in first.items() if count > 0}
    if first:
        early = counted(max(first.values()), "step")
        yield of_ranks("step records", first, f": the first {early} left no record: what is shown rests on those after")
    last = {rank: _last_missing(log, files.get(rank)) - off.get(rank, 0) for rank, log in events.items()}
    last = {rank: count for rank, count in last.items() if count > 0}
    if last:
        most = max(last, key=last.__getitem__)
        yield of_ranks(
            "step records",
            last,
            f": the last {counted(last[most], 'step')} of {_made(events[most]):,} left no record: "
            "what is shown rests on those before",
        )


def of_events(record: RunRecord, ranks: set[int], events: Mapping[int, EventLog]) -> Iterator[Gap]:
    """How ranks ended, and what they could not record; ``ranks`` are those that left step records."""
    silent = sorted(rank for rank in ranks | set(events) if rank not in events or events[rank].end is None)
    raised = [rank for rank in silent if rank in events and events[rank].exceptions]
    killed = [rank for rank in silent if rank not in set(raised)]
    if killed and record.status in UNENDED:
        yield of_ranks("rank ended", killed, f" had not ended yet, or {'was' if len(killed) == 1 else 'were'} killed")
    elif killed and record.exit is not None and record.exit.ended_by is not None:
        pass  # its study did, which had measured enough: nothing is missing
    elif killed and record.kind == "run" and record.exit is not None and record.exit.code == 0:
        text = " ended without Python's exit functions, although the command succeeded: last records may be missing"
        yield of_ranks("rank ended", killed, text)
    elif killed:
        yield of_ranks("rank ended", killed, " ended without saying so (killed?)")
    unheard = sorted(ranks - set(events)) if events else []
    if unheard:
        yield of_ranks("event records", unheard, " left no events: of epochs, evaluations and metrics these have none")
    yield from _raised(record, {rank: events[rank].exceptions[-1] for rank in raised})
    again = {rank: log for rank, log in events.items() if log.restarted and log.epochs}
    if again:
        rank, log = next(iter(again.items()))
        times = counted(log.restarted[-1].attempt, "time")
        yield of_ranks("restarted", again, f" started again {times}; {_lost(log, rank)}")
    remarks = dict.fromkeys(one.text[:300] for log in events.values() for one in log.remarks[:SHOWN_RANKS])
    yield from (Gap(kind="remark", text=text) for text in remarks)
    yield from _switched_off(events)
    thinned = {rank: log.thinned[-1].keep_one_in for rank, log in events.items() if log.thinned}
    if thinned:
        most = f"one in {max(thinned.values()):,}"
        yield of_ranks("thinned", thinned, f": records were thinned to {most} to stay within the budget")
    cut_off = [rank for rank, log in events.items() if log.cut_off]
    if cut_off:
        yield of_ranks("event records", cut_off, ": the last line of the events is cut off; it was left out")
    damaged = {rank: log.damaged for rank, log in events.items() if log.damaged}
    if damaged:
        yield of_ranks("event records", damaged, f": {counted(sum(damaged.values()), 'damaged event')} left out")


def _raised(record: RunRecord, last: Mapping[int, Raised]) -> Iterator[Gap]:
    """The exceptions that ended ranks, those of one type together, and that of the rank that failed first before all.

    The others may have failed because that one was gone, as Gloo has it: "Connection closed by peer".
    """
    failed_first = None if record.exit is None else record.exit.rank
    in_order = sorted(last, key=lambda rank: rank != failed_first)
    for name in dict.fromkeys(last[rank].type for rank in in_order):
        ranks = [rank for rank in sorted(last) if last[rank].type == name]
        after = " after that" if failed_first in last and failed_first not in ranks else ""
        yield of_ranks("rank ended", ranks, f" ended{after} by an exception: {name[:80]}")


def of_hosts(record: RunRecord, hosts: tuple[HostRecord, ...], counters: list[CountersFile]) -> Iterator[Gap]:
    """Hosts that left no description of themselves or no counters, and samples that could not be read."""
    missing = len(record.hosts) - len(hosts)
    if missing > 0:
        yield Gap(
            kind="host description",
            text=f"{counted(missing, 'host')} of {len(record.hosts):,} left no description of itself",
        )
    silent = [(file.header.host, why) for file in counters if (why := _no_counters(file.header)) is not None]
    for host, why in silent[:SHOWN_REASONS]:
        yield Gap(kind="host counters", text=f"no counters of host {host[:80]}: {why[:200]}")
    damaged = sum(file.damaged for file in counters)
    if damaged:
        yield Gap(kind="host counters", text=f"counters: {counted(damaged, 'damaged sample')} left out")
    if any(file.cut_off for file in counters):
        yield Gap(kind="host counters", text="counters: a last line is cut off; it was left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was read of counters: their files, how many more could not be, and the samples of ``RunData.cpus``."""

    files: Sequence[CountersFile]
    unread: int
    samples: pl.DataFrame


def of_counters(
    record: RunRecord, headers: Mapping[int, StepsHeader], steps: pl.DataFrame, read: Counted
) -> Iterator[Gap]:
    """Hosts whose counters do not cover the steps of their ranks, or not the time up to the end of these.

    ``steps`` is that of ``RunData``.
    """
    if read.unread:
        text = f"{layout.COUNTERS}: {counted(read.unread, 'file')} without a whole first line: not read"
        yield Gap(kind="host counters", text=text)
    hosts = pl.DataFrame(
        {"rank": list(headers), "host": [header.host for header in headers.values()]},
        schema={"rank": pl.Int64(), "host": pl.String()},
    )
    by_host = spans(steps).join(hosts, on="rank").group_by("host").agg(pl.col("begin_ns").min(), pl.col("end_ns").max())
    lasted = {host: (begin_ns, end_ns) for host, begin_ns, end_ns in by_host.sort("host").iter_rows()}
    silent = sorted(lasted.keys() - {file.header.host for file in read.files})
    if len(silent) > read.unread and _asks_for_counters(record):
        more = f" and of {len(silent) - SHOWN_REASONS:,} more" if len(silent) > SHOWN_REASONS else ""
        names = ", ".join(host[:80] for host in silent[:SHOWN_REASONS])
        yield Gap(kind="host counters", text=f"no counters of host {names}{more}: there is no file of them")
    boots = {header.host: header.boot_id for header in headers.values()}
    moments = {host: np.unique(times["t_ns"].to_numpy()) / 1e9 for (host,), times in read.samples.group_by("host")}
    for file in read.files:
        header, said = file.header, []
        if header.host in lasted and header.boot_id in (None, boots[header.host]):
            begin_ns, end_ns = lasted[header.host]
            said = list(_uncovered(header, moments.get(header.host, np.array([])), begin_ns / 1e9, end_ns / 1e9))
        yield from said
        if not said and header.marks_last and not file.ended and record.status not in UNENDED:
            text = f"counters of host {header.host[:80]}: the last samples are missing, or the sidecar was killed"
            yield Gap(kind="host counters", text=text)


def _asks_for_counters(record: RunRecord) -> bool:
    observe = record.spec.get("observe")
    return isinstance(observe, dict) and observe.get("counters") is True


def _uncovered(header: CountersHeader, times_s: NDArray[np.float64], begin_s: float, end_s: float) -> Iterator[Gap]:
    """What is missing of the samples at ``times_s``, ascending, of a host whose steps last from ``begin_s`` on."""
    said = f"counters of host {header.host[:80]}"
    if len(times_s) == 0:
        yield Gap(kind="host counters", text=f"{said}: there is no sample")
        return
    interval_s, apart_s = header.interval_ns / 1e9, np.diff(times_s)
    longest_s = MAX_SILENT_SAMPLES * max(interval_s, apart_s[-LAST_SAMPLES:].max(initial=0.0)) + LATE_S
    after_s = end_s - times_s[-1]
    if after_s > longest_s and (header.boot_id is not None or times_s[-1] >= begin_s):
        yield Gap(kind="host counters", text=f"{said} end {after_s:,.1f} s before its last step")
    before_s = times_s[0] - max(begin_s, header.clock.monotonic_ns / 1e9)
    if before_s > MAX_SILENT_SAMPLES * interval_s + LATE_S:
        yield Gap(kind="host counters", text=f"{said} begin {before_s:,.1f} s after its first step")
    # A budget thins samples, evenly from a moment on: a hole is longer than the distances on both sides of it.
    beside_s = np.maximum(np.append(apart_s, 0.0)[1:], np.append(0.0, apart_s)[:-1])
    is_hole = apart_s > MAX_SILENT_SAMPLES * np.maximum(interval_s, beside_s) + LATE_S
    is_hole &= (times_s[1:] > begin_s) & (times_s[:-1] < end_s)
    if is_hole.any():
        text = f"{said}: no sample for up to {apart_s[is_hole].max():,.1f} s of its steps"
        yield Gap(kind="host counters", text=text)


def why_no_rank(processes: Sequence[ProcessRecord], ended: Exit | None = None) -> str:
    """Why no process of an observed command became a rank, from their own records and how the job ``ended``."""
    if not processes and ended is not None and (ended.signal or ended.code > BY_SIGNAL):
        return (
            f"no process had begun to train when the job ended: {ended.describe()}. One that a signal ends before its "
            "first step leaves no record; of a job that hangs there, py-spy dump --pid PID shows where"
        )
    if not processes and ended is not None and ended.code:
        return f"no process that imports torch was seen before the job failed: {ended.describe()}"
    if not processes:
        return "no process that imports torch was seen: did Python start with -I or -S, or without our environment?"
    reasons = Counter(process.reason or "no reason given" for process in processes).most_common(SHOWN_REASONS)
    shown = "; ".join(f"{reason[:200]} ({count:,} times)" if count > 1 else reason[:200] for reason, count in reasons)
    return f"processes that imported torch: {len(processes):,}, of which none trained: {shown}"


def of_processes(processes: Sequence[ProcessRecord]) -> Iterator[Gap]:
    """Processes that trained under the number of a rank that another process was recorded as."""
    refused = [process.refused_rank for process in processes if process.refused_rank is not None]
    if refused:
        had = "processes had" if len(refused) > 1 else "process had"
        text = (
            f"{len(refused):,} {had} the number of a rank that was recorded already, and "
            f"{'were' if len(refused) > 1 else 'was'} left out: one run directory holds one training"
        )
        yield Gap(kind="processes left out", text=text, ranks=tuple(sorted(set(refused))))


def _no_counters(header: CountersHeader) -> str | None:
    """Why a host's ranks and interfaces were not counted; None: they were."""
    before_1_4 = (entry for entry in header.sources if entry.startswith(OLD_NO_COUNTERS))
    return header.no_counters or next((entry.removeprefix(OLD_NO_COUNTERS) for entry in before_1_4), None)


def _lost(log: EventLog, rank: int) -> str:
    """What the attempt before the last restart of ``rank`` had done in vain, or done without a record."""
    redone = log.restarted[-1].steps_before - log.epochs[0].step
    if redone < 0:
        return f"the last {counted(-redone, 'step')} of rank {rank} before that left no record"
    return f"rank {rank} lost {counted(redone, 'step')} and did them again"


def _switched_off(events: Mapping[int, EventLog]) -> Iterator[Gap]:
    whole = ((rank, one) for rank, log in events.items() for one in log.switched_off[-1:] if one.part is None)
    for rank, one in islice(whole, SHOWN_RANKS):
        yield of_ranks("recording stopped", [rank], f": recording stopped before the end: {one.reason[:200]}")
    parts: dict[str, dict[int, str]] = {}
    for rank, log in events.items():
        for one in log.switched_off:
            if one.part is not None:
                parts.setdefault(one.part, {}).setdefault(rank, one.reason)
    for part, reasons in islice(parts.items(), SHOWN_RANKS):
        reason = next(iter(reasons.values()))
        yield of_ranks("recording stopped", reasons, f": {part[:40]} could not be observed to the end: {reason[:200]}")


def _unwatched(marks: tuple[Watching, ...], file: StepsFile | None) -> int:
    """Steps between the first and the last record that passed while the user had observation switched off."""
    if file is None or file.first is None or file.last is None:
        return 0
    off = ((one.step, after.step) for one, after in pairwise(marks) if after.on and not one.on)
    return sum(max(0, min(end, file.last) - max(begin, file.first)) for begin, end in off)


def _off_at_ends(log: EventLog, file: StepsFile | None) -> int:
    """Steps that passed before the first record as observation was yet to begin, and after the last as it had ended."""
    marks, first = log.watching, _begun_at(log)
    after = 0
    if marks and not marks[-1].on and log.end is not None:
        recorded = 0 if file is None or file.last is None else file.last + 1
        after = max(0, first + log.end.steps - max(marks[-1].step, recorded))
    return _off_before(log) + after


def _off_before(log: EventLog) -> int:
    """Steps that passed before the first record as observation was yet to begin."""
    return max(0, log.watching[0].step - _begun_at(log)) if log.watching and log.watching[0].on else 0


def _begun_at(log: EventLog) -> int:
    """The number of the first step that a rank made: a resumed training continues counting."""
    return log.epochs[0].step if log.epochs else 0


def _first_missing(log: EventLog, file: StepsFile | None) -> int:
    """Steps before the first record of a rank that ended by itself, apart from those that were not observed."""
    if log.end is None or file is None or file.first is None:
        return 0
    made = log.end.steps - log.end.left_out  # traces count steps from any number on, and none of them is missing
    return min(file.first - _begun_at(log) - _off_before(log), made - file.records)


def _last_missing(log: EventLog, file: StepsFile | None) -> int:
    """Steps after the last record of a rank, which says at its end how many it made, or began another epoch later."""
    if log.thinned or file is None or (log.end is None and (log.watching or log.switched_off)):
        return 0
    first = _begun_at(log)
    recorded = first if file.last is None else file.last + 1
    left_out = 0 if log.end is None else log.end.left_out
    return first + _made(log) - left_out - recorded - file.cut_off  # a line cut off is a gap of its own


def _made(log: EventLog) -> int:
    """The steps that a rank made, as far as its events say so."""
    if log.end is not None:
        return log.end.steps
    return log.epochs[-1].step - log.epochs[0].step if log.epochs else 0


def _numbers_missing(file: StepsFile) -> int:
    if file.first is None or file.last is None:
        return 0
    return file.last - file.first + 1 - file.records
