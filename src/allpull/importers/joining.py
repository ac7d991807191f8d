"""Join the files of all ranks into one run: the rank of each file, common step numbers, matching collectives."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from allpull.importers import one_job
from allpull.importers.called_reductions import why_called
from allpull.importers.clocks import Key
from allpull.importers.kineto.calls import Call
from allpull.importers.kineto.measure import Step
from allpull.importers.part import Part, sized, with_numbers
from allpull.schema.gap import named_ranks
from allpull.traces.kineto import MAX_RANKS
from allpull.units import counted

MAX_DIGITS = 18  # of a number in a path
MAX_ALIKE = 100  # files with one number that are compared with each other
FAR_APART_NS = 600_000_000_000  # host clocks in one job differ by seconds at worst; ten minutes mean another run

_DATE = r"(?:19|20)\d\d[-_.]\d\d[-_.]\d\d"
_RANK_IN_NAME = re.compile(rf"(?:rank|worker|device|gpu|trace)[-_. ]?(?!{_DATE})(\d{{1,6}})(?!\d)", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")
_LAST_NUMBER = re.compile(r"(\d{1,6})(?:\.[A-Za-z.]+)?$")


Process = tuple[str, str, int, int]
Ordered = tuple[tuple[str, int], ...]
Place = tuple[Ordered, int, Ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of the run: ``rank`` in the run, ``stated_rank`` in its traces; its steps in order, with numbers.

    ``windows`` are its traces with the numbers of the first and last step in each; ``dumps`` are flight-recorder dumps.
    """

    rank: int
    stated_rank: int
    host: str
    pid: int
    steps: tuple[tuple[int, Step], ...]
    windows: tuple[tuple[Part, int, int], ...]
    dumps: tuple[Part, ...]
    boundary: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """All ranks in order; ``size`` is the world size that the traces state. ``gaps`` are sentences."""

    ranks: tuple[Rank, ...]
    size: int
    versions: dict[str, str]
    gaps: tuple[str, ...]

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, each once, in the order of ranks."""
        return list(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def host_of(self) -> dict[int, str]:
        """The host of each rank."""
        return {rank.rank: rank.host for rank in self.ranks}


def join(parts: Sequence[Part]) -> Joined:
    """Join ``parts`` into one run; parts without a step are left out and named in ``gaps``.

    Raises:
        BadInput: their recordings are too far apart in time to be one run.
    """
    gaps = [gap for part in parts for gap in part.gaps]
    by_rank = _by_rank(parts, gaps)
    one_job.check_times(by_rank)
    size = _size(by_rank, gaps)
    by_rank = _sized(by_rank, size)
    merged = {
        stated_rank: usable for stated_rank, files in by_rank.items() if (usable := _merged(stated_rank, files, gaps))
    }
    why = why_called({stated_rank: steps for stated_rank, (_, steps) in merged.items()}, size)
    if why is not None:
        gaps.append(why)
        merged = {
            stated_rank: (files, [step.called or step for step in steps])
            for stated_rank, (files, steps) in merged.items()
        }
    numbers = _numbers({stated_rank: steps for stated_rank, (_, steps) in merged.items()}, gaps)
    hosts = {
        stated_rank: next((part.host for part in files if part.host), None)
        for stated_rank, (files, _) in merged.items()
    }
    gaps += _gaps_of_ranks(list(merged), size, hosts)
    is_dense = sorted(merged) == list(range(len(merged)))
    ranks = [
        Rank(
            rank=stated_rank if is_dense else place,
            stated_rank=stated_rank,
            host=hosts[stated_rank] or f"host-of-rank-{stated_rank}",
            pid=next((part.pid for part in files if part.pid), 0),
            steps=tuple(zip(numbers[stated_rank], steps, strict=True)),
            windows=tuple(_windows([part for part in files if not part.is_dump], steps, numbers[stated_rank])),
            dumps=tuple(part for part in by_rank[stated_rank] if part.is_dump),
            boundary=", ".join(sorted({part.boundary for part in files if part.boundary})),
            sources=tuple(dict.fromkeys(source for part in files for source in part.sources)),
        )
        for place, (stated_rank, (files, steps)) in enumerate(sorted(merged.items()))
    ]
    versions = {name: version for part in parts for name, version in part.versions.items()}
    return Joined(ranks=tuple(ranks), size=size, versions=versions, gaps=tuple(gaps))


def keyed(rank: Rank) -> dict[Key, Call]:
    """The calls of a rank by a key that all calls of one collective share: number in the group, or position."""
    by_key: dict[Key, Call] = {}
    for number, step in rank.steps:
        repeats: Counter[Key] = Counter()
        reductions = step.reduction.calls if step.reduction else ()
        for call in (*reductions, *(call for call, _ in step.calls)):
            use = call.use
            if call.seq is not None:
                by_key[(use.group, use.group_ranks, call.seq, use.family)] = call
                continue
            alike: Key = (use.group, use.group_ranks, number, use.family, use.size_bytes, call.is_reduction)
            by_key[(*alike, repeats[alike])] = call
            repeats[alike] += 1
    return by_key


def rank_in_name(name: str) -> int | None:
    """The rank in a file's name.

    >>> rank_in_name("rank-3.json.gz"), rank_in_name("nccl_trace_rank_12"), rank_in_name("host_4711.pt.trace.json")
    (3, 12, None)
    >>> rank_in_name("rank3-14-05-59.json"), rank_in_name("trace_2026-11-29_10.json")  # a time and a date
    (3, None)
    """
    numbers = _RANK_IN_NAME.findall(name)
    return int(numbers[-1]) if numbers else None


def _by_rank(parts: Sequence[Part], gaps: list[str]) -> dict[int, list[Part]]:
    """Parts by the rank that they state, that their calls or their names do; others get the free numbers in order."""
    by_rank: dict[int, list[Part]] = defaultdict(list)
    unstated = [part for part in parts if part.rank is None]
    callers = [part.caller for part in unstated if part.caller is not None]
    by_calls = len(callers) == len(unstated) and not _clash(zip(unstated, callers, strict=True))
    named: list[Part] = []
    unknown: list[Part] = []
    for part in parts:
        rank = part.caller if part.rank is None and by_calls else part.rank
        if rank is not None:
            by_rank[rank].append(part)
        elif _named(part) is None:
            unknown.append(part)
        else:
            named.append(part)
    for part, rank in zip(named, _ranks_by_name(named, gaps), strict=True):
        by_rank[rank].append(part)
    free = iter(number for number in range(len(parts) + len(by_rank)) if number not in by_rank)
    for part, number in zip(unknown, list(free), strict=False):
        by_rank[number].append(part)
    if unknown:
        files = f"{counted(len(unknown), 'file')} ({unknown[0].source.shown}) state{'s' if len(unknown) == 1 else ''}"
        gaps.append(f"{files} no rank, neither inside nor in the name: numbered in the order of names")
    return by_rank


def _named(part: Part) -> int | None:
    """The number in the name of its file."""
    rank = rank_in_name(part.source.path.name)
    if rank is None and part.is_dump:
        last = _LAST_NUMBER.search(part.source.path.name)
        rank = int(last.group(1)) if last else None
    return rank


def _ranks_by_name(parts: Sequence[Part], gaps: list[str]) -> list[int]:
    """The ranks of ``parts``, all of which have a number in their names: that, unless it cannot be their rank.

    Two processes that ran at the same time have one number each: it is that of a rank on its host. Where as many are
    numbered from 1 as the job has ranks, they are counted from there.
    """
    numbers = [number for part in parts if (number := _named(part)) is not None]
    if _clash(zip(parts, numbers, strict=True)):
        places: dict[Process, Place] = {}
        processes = [_process(part, number) for part, number in zip(parts, numbers, strict=True)]
        for part, process in zip(parts, processes, strict=True):
            if not part.is_dump:  # torch names those by their rank
                places[process] = min(places.get(process, _place(part, process)), _place(part, process))
        rank_of = {process: rank for rank, process in enumerate(sorted(places, key=lambda one: places[one]))}
        gaps.append(
            f"files of processes that ran at once have one number ({parts[0].source.shown}): taken for the number on "
            "each host, and ranks counted in the order of folders and names"
        )
        ranks = zip(parts, processes, numbers, strict=True)
        return [number if part.is_dump else rank_of[process] for part, process, number in ranks]
    size = max((part.stated_ranks for part in parts), default=0)
    if numbers and size and set(numbers) == set(range(1, size + 1)):
        gaps.append(f"the names of the files count ranks from 1 to {size:,}: rank 1 becomes 0")
        return [number - 1 for number in numbers]
    return numbers


def _clash(numbered: Iterable[tuple[Part, int]]) -> bool:
    """Whether parts of one number are of different processes that ran at the same time."""
    alike: dict[int, list[Part]] = defaultdict(list)
    for part, number in numbered:
        alike[number].append(part)
    return any(_at_once(one, other) for those in alike.values() for one, other in combinations(those[:MAX_ALIKE], 2))


def _at_once(one: Part, other: Part) -> bool:
    """Whether two traces are of different processes that ran at the same time; a copy of one is of the same.

    Containers number their processes alike, so one number tells nothing.
    """
    if one.is_dump or other.is_dump or not one.steps or not other.steps:
        return False
    begins, others = ({step.begin_ns for step in part.steps} for part in (one, other))
    if (one.host, one.pid) == (other.host, other.pid) and not begins.isdisjoint(others):
        return False
    return one.steps[0].begin_ns < other.steps[-1].end_ns and other.steps[0].begin_ns < one.steps[-1].end_ns


def _process(part: Part, number: int) -> Process:
    """What the files of one process have in common: host, folder, number and pid."""
    return part.host or "", str(part.source.path.parent), number, part.pid or 0


def _place(part: Part, process: Process) -> Place:
    """The folder and the name up to its number, the number, and the whole name: in this order ranks are counted."""
    _, folder, number, _ = process
    name = part.source.path.name
    found = list(_RANK_IN_NAME.finditer(name))
    return _in_order(f"{folder}/{name[: found[-1].start()] if found else ''}"), number, _in_order(name)


def _in_order(text: str) -> Ordered:
    """A key by which node2 comes before node10."""
    parts = _DIGITS.split(text)
    return tuple(zip(parts[::2], [*(int(digits[:MAX_DIGITS]) for digits in parts[1::2]), -1], strict=True))


def _size(by_rank: Mapping[int, Sequence[Part]], gaps: list[str]) -> int:
    """The world size: as the traces state, and at least as large as the ranks present require."""
    parts = [part for its in by_rank.values() for part in its]
    size = max((part.stated_ranks for part in parts), default=0)
    if not size and len(by_rank) == 1 and any(part.calls for part in parts):
        gaps.append(
            "the traces do not state the world size: because there are collectives, at least one more rank is assumed"
        )
        size = 2
    return min(MAX_RANKS, max([size, *(rank + 1 for rank in by_rank)]))


def _sized(by_rank: Mapping[int, Sequence[Part]], size: int) -> dict[int, list[Part]]:
    """The parts with missing sizes of groups filled in: the world size if all ranks use the group, else its users."""
    users: dict[str, set[int]] = defaultdict(set)
    for rank, its in by_rank.items():
        for part in its:
            for call in part.calls:
                users[call.use.group].add(rank)
    sizes = {group: size if len(its) == len(by_rank) else len(its) for group, its in users.items()}
    return {rank: [sized(part, sizes) for part in its] for rank, its in by_rank.items()}


def _merged(rank: int, parts: Sequence[Part], gaps: list[str]) -> tuple[list[Part], list[Step]] | None:
    """The usable parts of one rank in order of time, and their steps; None: there is no step."""
    dumps = [part for part in parts if part.is_dump]
    traces = [part for part in parts if not part.is_dump]
    for dump in dumps if traces else ():
        traces = [with_numbers(trace, dump) for trace in traces]
    used = sorted((part for part in traces or dumps if part.steps), key=lambda part: part.steps[0].begin_ns)
    if not used:
        reason = "no step was found" if parts else "no file"
        gaps.append(f"rank {rank}: {reason} in {parts[0].source.shown}: left out")
        return None
    steps: list[Step] = []
    left_out = 0
    kept: list[Part] = []
    for part in used:
        kept_steps = []
        for step in part.steps:
            if steps and step.begin_ns < steps[-1].end_ns:
                left_out += 1
                continue
            kept_steps.append(step)
            steps.append(step)
        if kept_steps:
            kept.append(replace(part, steps=tuple(kept_steps)))
    if left_out:
        gaps.append(
            f"rank {rank}: {counted(left_out, 'step')} recorded in more than one file of this rank, counted once"
        )
    return kept, steps


def _numbers(steps: Mapping[int, Sequence[Step]], gaps: list[str]) -> dict[int, list[int]]:
    """Numbers of all steps: the program's own, or else chosen so that a number means the same step on all ranks."""
    stated = {rank: [step.number for step in its if step.number is not None] for rank, its in steps.items()}
    in_order = all(all(later > earlier for earlier, later in pairwise(its)) for its in stated.values())
    if in_order and all(len(stated[rank]) == len(its) for rank, its in steps.items()):
        gaps += _gaps_of_times(steps)
        return stated
    if not steps:
        return {}
    first = min(steps)
    shifts: dict[int, int] = {first: 0}
    for rank, its in steps.items():
        if rank != first:
            shift = _shift(steps[first], its)
            if shift is None:
                gaps.append(f"rank {rank}: its steps could not be matched with those of rank {first}: numbered from 0")
            shifts[rank] = shift or 0
    least = min(shifts.values())
    return {rank: [place + shifts[rank] - least for place in range(len(its))] for rank, its in steps.items()}


def _shift(ours: Sequence[Step], theirs: Sequence[Step]) -> int | None:
    """How many steps after ``ours`` the recording of ``theirs`` begins: by matching collectives, or by time."""
    place_of = {mark: place for place, step in enumerate(ours) if (mark := _mark(step)) is not None}
    votes = Counter(
        place_of[mark] - place
        for place, step in enumerate(theirs)
        if (mark := _mark(step)) is not None and mark in place_of
    )
    if votes:
        return votes.most_common(1)[0][0]
    if any(_mark(step) for step in theirs) and place_of:
        return None
    begins = np.array([step.begin_ns for step in ours], dtype=np.int64)
    lengths = np.array([step.end_ns - step.begin_ns for step in ours], dtype=np.int64)
    near = []
    for place, step in enumerate(theirs):
        at = int(np.abs(begins - step.begin_ns).argmin())
        if abs(int(begins[at]) - step.begin_ns) <= int(lengths[at]):
            near.append(at - place)
    return Counter(near).most_common(1)[0][0] if len(near) > len(theirs) // 2 else None


def _mark(step: Step) -> Key | None:
    """The first collective of a step that has a sequence number in its group."""
    calls = (*(step.reduction.calls if step.reduction else ()), *(call for call, _ in step.calls))
    numbered = [call for call in calls if call.seq is not None]
    if not numbered:
        return None
    first = min(numbered, key=lambda call: call.called_ns)
    return (first.use.group, first.seq, first.use.family)


def _windows(parts: Iterable[Part], steps: Sequence[Step], numbers: Sequence[int]) -> Iterator[tuple[Part, int, int]]:
    number_at = {step.begin_ns: number for step, number in zip(steps, numbers, strict=True)}
    for part in parts:
        yield part, number_at[part.steps[0].begin_ns], number_at[part.steps[-1].begin_ns]


def _gaps_of_ranks(ranks: Sequence[int], size: int, hosts: Mapping[int, str | None]) -> Iterator[str]:
    if 0 < len(ranks) < size:
        missing = (rank for rank in range(size) if rank not in set(ranks))
        names = named_ranks(missing, size - len(ranks))
        present = f"traces of {counted(len(ranks), 'rank')} of {size:,}"
        yield f"{present}: {names} left none; how long others waited for them is unknown"
    if ranks and sorted(ranks) != list(range(len(ranks))):
        shown = ", ".join(f"{rank} becomes {place}" for place, rank in enumerate(sorted(ranks)[:3]))
        yield f"ranks are renumbered because some are missing: rank {shown}"
    nameless = [rank for rank in sorted(ranks) if hosts[rank] is None]
    if nameless and len(ranks) > 1:
        yield f"{named_ranks(nameless)}: the traces name no host; each rank is assumed to have its own clock"


def _gaps_of_times(steps: Mapping[int, Sequence[Step]]) -> Iterator[str]:
    first = min(steps, default=0)
    ours = {step.number: step.begin_ns for step in steps.get(first, ())}
    for rank, its in steps.items():
        distances_ns = [abs(ours[step.number] - step.begin_ns) for step in its if step.number in ours]
        if rank != first and not distances_ns:
            yield f"ranks {first} and {rank} have no step in common: their traces cover different steps"
        elif distances_ns and float(np.median(distances_ns)) > FAR_APART_NS:
            minutes = np.median(distances_ns) / 60e9
            yield f"the same steps of ranks {first} and {rank} are {minutes:,.0f} minutes apart: are they of one run?"
