"""Read dumps of PyTorch's flight recorder: for each collective its sequence number, sizes, and when it was called.

A dump does not record when a collective began or ended: ``time_discovered_…`` are the moments of a watchdog's polls, up
to 0.1 s late, and are not used. It is JSON (``_dump_fr_trace_json``), or a pickle, which is read without ``pickle``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from allpull.importers.flight_recorder.unpickle import MAX_BYTES, data_of
from allpull.importers.kineto.calls import DEFAULT_GROUP, Call, Use
from allpull.importers.sources import Source, unpacked
from allpull.traces import classify
from allpull.traces.json_stream import Text, members
from allpull.traces.kineto import MAX_NAME, MAX_NS, MAX_RANKS, plain

MAX_ENTRIES = 500_000  # of one dump


@dataclass(kw_only=True)
class Dump:
    """One dump: ``calls`` in the order in which they were made; ``strange`` counts unusable entries."""

    rank: int | None = None
    host: str | None = None
    calls: list[Call] = field(default_factory=list)
    strange: int = 0
    fault: str | None = None


def read_dump(source: Source) -> Dump:
    """The dump in ``source``; where it is damaged, what precedes the damage, and ``fault`` says why.

    Raises:
        BadInput: the file cannot be opened.
    """
    dump = Dump()
    sizes: dict[str, int] = {}
    entries: list[Any] = []
    try:
        for name, value in _members(source):
            if name == "entries":
                if len(entries) >= MAX_ENTRIES:
                    raise ValueError(f"more than {MAX_ENTRIES:,} entries: the remaining ones were not read")
                entries.append(_essence(value))
            elif name == "pg_config":
                sizes = dict(_group_sizes(value))
            elif name == "rank" and type(value) is int and 0 <= value < MAX_RANKS:
                dump.rank = value
    except ValueError as fault:
        dump.fault = str(fault)[:MAX_NAME]
    calls = [_call(entry, sizes) for entry in entries]
    dump.calls = sorted((call for call in calls if call is not None), key=lambda call: call.called_ns)
    dump.strange = sum(1 for call in calls if call is None)
    return dump


def _members(source: Source) -> Iterator[tuple[str, Any]]:
    with unpacked(source) as file:
        if source.kind != "pickle":
            yield from members(Text(file.read), ("entries",))
            return
        value = data_of(file.read(MAX_BYTES + 1))
    for name, member in value.items() if isinstance(value, dict) else ():
        if name == "entries" and isinstance(member, list):
            yield from (("entries", entry) for entry in member)
        elif isinstance(name, str):
            yield name, member


_FIELDS = (
    "collective_seq_id",
    "is_p2p",
    "process_group",
    "profiling_name",
    "time_created_ns",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
)


def _essence(entry: Any) -> dict[str, Any]:
    """The fields of an entry that are used; most of an entry is its stack, which is dropped."""
    return {name: entry.get(name) for name in _FIELDS} if isinstance(entry, dict) else {}


def _call(entry: dict[str, Any], sizes: dict[str, int]) -> Call | None:
    """An entry as a call; None: it is not a collective, or implausible."""
    name, created_ns, seq = entry.get("profiling_name"), entry.get("time_created_ns"), entry.get("collective_seq_id")
    family = classify.operation(name) if isinstance(name, str) else None
    if family is None or type(created_ns) is not int or not 0 < created_ns < MAX_NS:
        return None
    types = entry.get("input_dtypes")
    dtype = types[0] if isinstance(types, (list, tuple)) and types else None
    ins, outs = (classify.elements([_lists(entry.get(name))]) for name in ("input_sizes", "output_sizes"))
    group, ranks = _group(entry.get("process_group"), sizes)
    return Call(
        use=Use(
            family=family,
            size_bytes=(classify.item_bytes(dtype) or 0) * max(ins or 0, outs or 0),
            dtype=classify.dtype_name(dtype),
            group=group,
            group_ranks=ranks,
        ),
        seq=seq if type(seq) is int and 0 <= seq < MAX_NS and entry.get("is_p2p") is not True else None,
        called_ns=created_ns,
        arrived_ns=created_ns,
        ready_ns=None,
    )


def _lists(value: Any) -> Any:
    """Sizes as lists, as in JSON: a pickle may hold tuples."""
    if not isinstance(value, (list, tuple)):
        return value
    return [list(one) if isinstance(one, (list, tuple)) else one for one in value]


def _group(value: Any, sizes: dict[str, int]) -> tuple[str, int]:
    """The name of a group, equal on all its ranks, and its number of ranks; 0: unknown."""
    name = value[0] if isinstance(value, (list, tuple)) and value and isinstance(value[0], str) else DEFAULT_GROUP
    return plain(name), sizes.get(name[:MAX_NAME], 0)


def _group_sizes(config: Any) -> Iterator[tuple[str, int]]:
    for name, one in config.items() if isinstance(config, dict) else ():
        ranks = one.get("ranks") if isinstance(one, dict) else None
        if isinstance(name, str) and isinstance(ranks, str) and ranks.strip("[] "):
            yield name[:MAX_NAME], min(MAX_RANKS, ranks.count(",") + 1)
