"""Import third-party traces: read each file, join them into one job, write a run directory.

Files are read one at a time, so that memory holds the columns of one trace and the steps of all. Whatever the
traces lack is reported at once, in ``run.json``, and in every result of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allpull.errors import BadInput
from allpull.importers import one_job
from allpull.importers.clocks import Clocks, Key, contradictions_within_hosts, estimate
from allpull.importers.directory import write
from allpull.importers.joining import Joined, join, keyed
from allpull.importers.kineto.calls import Call
from allpull.importers.part import Part, read_part
from allpull.importers.sources import Source, find
from allpull.rundir.safe_open import shown_path
from allpull.schema.gap import named_ranks
from allpull.units import NS_PER_S, counted, show_bytes, show_time

MAX_GAPS = 200
MAX_GAP = 500  # characters
LARGE_BYTES = 64 << 20  # of a file that takes seconds to read
ONE_CLOCK_NS = 1_000_000  # by which ranks on one clock may contradict each other: drivers convert device time inexactly

Calls = Mapping[int, Mapping[Key, Call]]
"""The collectives of each rank by key; all calls of one collective share the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import: the run directory, a summary of its content, and its gaps.

    ``unmatched``: why no collective was recorded on all of its ranks, so that waiting is unknown; None: some were.
    """

    directory: Path
    summary: str
    gaps: tuple[str, ...]
    unmatched: str | None


def import_traces(
    places: Sequence[Path], *, out: Path, name: str | None = None, notify: Callable[[str], None] | None = None
) -> Imported:
    """Convert all traces and dumps in ``places``, files or folders, to one run directory below ``out``.

    ``notify`` is called with a message before each file that takes long.

    Raises:
        BadInput: there is no trace, none of them can be used, they belong to several jobs, or the directory cannot
            be written.
    """
    messages: list[str] = []
    parts = _read(find(places, messages), notify or _ignored)
    one_job.check(parts)
    joined = join(parts)
    if not joined.ranks:
        reasons = "; ".join([*messages, *joined.gaps][:3])
        raise BadInput(
            f"no step was found in {counted(len(parts), 'file')}: {reasons}",
            hint="record whole steps, with prof.step() after each, and with ProfilerActivity.CPU among the activities",
        )
    calls = {rank.rank: keyed(rank) for rank in joined.ranks}
    joined = _with_own_clocks(joined, calls)
    clocks = estimate(calls, joined.host_of) if len(joined.ranks) > 1 else None
    counts = _counts(calls)
    unmatched = _why_unmatched(joined, counts)
    gaps = _bounded([*([unmatched] if unmatched else []), *messages, *joined.gaps, *_gaps(joined, calls, clocks)])
    directory = write(joined, clocks, gaps, out=out, name=name or _name(places), places=places)
    summary = f"{_summary(joined, counts)}{_clock_summary(clocks)}"
    return Imported(directory=directory, summary=summary, gaps=tuple(gaps), unmatched=unmatched)


def _ignored(_: str) -> None:
    """Drop a progress message."""


def _read(sources: Sequence[Source], notify: Callable[[str], None]) -> list[Part]:
    """All files in order; the collectives of a step, found in one file, also cut the files after it."""
    pattern = None
    parts = []
    for number, source in enumerate(sources):
        if source.size_bytes > LARGE_BYTES:
            notify(f"reading {source.shown} ({show_bytes(source.size_bytes)}; {number + 1:,} of {len(sources):,})")
        part = read_part(source, pattern)
        pattern = pattern or part.pattern
        parts.append(part)
    return parts


def _with_own_clocks(joined: Joined, calls: Calls) -> Joined:
    """``joined``, with separate hosts for ranks that name the same host but contradict each other."""
    misses = {host: ns for host, ns in contradictions_within_hosts(calls, joined.host_of).items() if ns > ONE_CLOCK_NS}
    gaps = [
        f"ranks that name the same host, {host[:80]}, contradict each other by up to {show_time(miss_ns / NS_PER_S)}:"
        " each is assumed to have its own clock"
        for host, miss_ns in misses.items()
    ]
    ranks = (
        replace(rank, host=f"{rank.host}/{rank.stated_rank}") if rank.host in misses else rank for rank in joined.ranks
    )
    return replace(joined, ranks=tuple(ranks), gaps=(*joined.gaps, *gaps))


def _name(places: Sequence[Path]) -> str:
    place = places[0].resolve()
    name = place.name if len(places) == 1 or place.is_dir() else place.parent.name
    return shown_path(Path(name)).partition(".")[0] or "traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCounts:
    """How many collectives were recorded in total, on more than one rank, and on every participating rank.

    Only for the last can the analysis tell which rank waited for which.
    """

    total: int
    shared: int
    whole: int


def _counts(calls: Calls) -> CollectiveCounts:
    ranks = Counter(key for its in calls.values() for key in its)
    group_ranks = {key: call.use.group_ranks for its in calls.values() for key, call in its.items()}
    return CollectiveCounts(
        total=len(ranks),
        shared=sum(1 for count in ranks.values() if count > 1),
        whole=sum(1 for key, count in ranks.items() if count == group_ranks[key]),
    )


def _why_unmatched(joined: Joined, counts: CollectiveCounts) -> str | None:
    """Why no collective was recorded on all of its ranks; None where some were."""
    if len(joined.ranks) == 1 or counts.whole:
        return None
    if not counts.total:
        return (
            f"NOTHING MATCHED: no collective was recognised in the traces of {len(joined.ranks):,} ranks, by metadata"
            " or by name; how long ranks waited for each other is unknown, and counts towards their other phases"
        )
    if counts.shared:
        return (
            f"NOTHING MATCHED: {counts.shared:,} of {counted(counts.total, 'collective')} were recorded on several"
            " ranks, none on every participating rank: the others left no traces, so who waited for whom is unknown"
        )
    return (
        f"NOTHING MATCHED: none of {counted(counts.total, 'collective')} was recorded on more than one rank; how"
        " long ranks waited for each other is unknown (are these traces of one run, and of the same steps?)"
    )


def _gaps(joined: Joined, calls: Calls, clocks: Clocks | None) -> Iterator[str]:
    all_calls = [call for its in calls.values() for call in its.values()]
    dumped = [rank.rank for rank in joined.ranks if not rank.windows]
    if dumped:
        yield (
            f"{named_ranks(dumped)}: flight-recorder dumps show when collectives were called, but not when they"
            " began or ended: no phases, no waiting and no transfer; traces of torch.profiler have them"
        )
    never_ran = sum(1 for call in all_calls if call.ran_ns is None)
    if never_ran and not dumped:
        yield (
            f"{counted(never_ran, 'collective')} of {len(all_calls):,} were called but not seen to run: was the device"
            " profiled too (ProfilerActivity.CUDA)?"
        )
    unsized = sum(1 for call in all_calls if not call.use.size_bytes and call.use.family != "barrier")
    if unsized:
        yield f"{counted(unsized, 'collective')} have no size, and so no rate (record_shapes=True records sizes)"
    if clocks is None:
        return
    if clocks.unknown:
        hosts = ", ".join(host[:40] for host in clocks.unknown[:3])
        more = f" and {len(clocks.unknown) - 3:,} more" if len(clocks.unknown) > 3 else ""
        yield f"clocks of {hosts}{more} are unknown: they share no recorded synchronising collective with other hosts"
    for host, miss_ns in list(clocks.contradictions.items())[:3]:
        yield (
            f"the clock of {host[:80]} jumped, or its ranks use several clocks: collectives there end up"
            f" to {show_time(miss_ns / NS_PER_S)} before other ranks began them, and waits may be wrong by as much"
        )


def _bounded(gaps: Sequence[str]) -> list[str]:
    cut = [gap[:MAX_GAP] for gap in gaps]
    return cut if len(cut) <= MAX_GAPS else [*cut[: MAX_GAPS - 1], f"and {len(cut) - MAX_GAPS + 1:,} more such gaps"]


def _summary(joined: Joined, counts: CollectiveCounts) -> str:
    steps = [len(rank.steps) for rank in joined.ranks]
    span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    boundary = ", ".join(sorted({rank.boundary for rank in joined.ranks}))
    plural = "s" if max(steps) > 1 else ""
    summary = f"{counted(len(joined.ranks), 'rank')}, {span} step{plural} each, delimited by {boundary}"
    if len(joined.ranks) == 1:
        return f"{summary}; {counted(counts.total, 'collective')}"
    return f"{summary}; {counts.whole:,} of {counted(counts.total, 'collective')} recorded on every participating rank"


def _clock_summary(clocks: Clocks | None) -> str:
    if clocks is None or not clocks.looks:
        return ""
    worst_ns = max(look.bound_ns for looks in clocks.looks.values() for look in looks)
    hosts = counted(len(clocks.looks) + 1, "host")
    collectives = counted(clocks.meetings, "collective")
    return f"; clocks of {hosts} compared through {collectives}, to within {show_time(worst_ns / NS_PER_S)}"
