"""Read what NCCL wrote about its transports, from events of ranks and from logs in the run directory.

NCCL writes such lines where the user sets ``NCCL_DEBUG=INFO``, to standard output or to ``NCCL_DEBUG_FILE``. Their
form has changed little since NCCL 2.4: a prefix of host, process, thread and device, then one of the facts below. Lines
of any other form are passed over, so a log may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.read.events import EventLog

MOST_LOG_BYTES = 8 << 20  # read of one log: NCCL describes its transports when it connects, near the begin
MOST_LOGS_BYTES = 128 << 20  # of all logs together
MOST_LINE_BYTES = 2000
MOST_PROCESSES = 100_000
MOST_FACTS = 64  # of one kind and process: interfaces, devices, transports
MOST_NAME = 64  # characters

_LINE = re.compile(rb"([\w.:-]{1,253}):(\d{1,9}):\d{1,9} \[\d{1,5}\] NCCL INFO (.*)")
_NETWORK = re.compile(r"Using network ([\w. -]{1,64})")
_INTERFACES = re.compile(r"NET/Socket : Using (.*)")
_INTERFACE = re.compile(r"\[(\d{1,3})\]([^\s:\[\]]{1,64}):")
_DEVICES = re.compile(r"NET/IB : Using ([^;]*)")
_DEVICE = re.compile(r"\[\d{1,3}\]([\w.-]{1,64}):\d{1,3}/(\w{1,16})")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d{1,3}(?:/\w{1,4})? : \d{1,7}(?:\[\w{1,16}\])? -> \d{1,7}(?:\[\w{1,16}\])? "
    r"(?:\[(?:send|receive)\] )?via (.{1,80})"
)
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]{1,48}) set (?:by environment )?to ([^\s]{0,64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How one process sends to another: ``kind`` is P2P, SHM or NET.

    ``network``: Socket, IB or the name of a plug-in; ``interface``: its number there; ``direct``: the network card
    reads and writes the memory of the GPU (GPUDirect RDMA).
    """

    kind: str
    network: str | None = None
    interface: int | None = None
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTransports:
    """What the log says of one process. ``interfaces``: number → name of those for sockets; ``settings``: of NCCL."""

    host: str
    pid: int
    networks: frozenset[str] = frozenset()
    interfaces: Mapping[int, str] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()
    transports: frozenset[Transport] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Process:
    networks: set[str] = field(default_factory=set)
    interfaces: dict[int, str] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    transports: set[Transport] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)


def read_transports(directory: Path, events: Mapping[int, EventLog]) -> tuple[ProcessTransports, ...]:
    """The transports of all processes whose NCCL described them; empty where none did.

    Logs that are no regular files of the run directory, or cannot be read, are passed over.
    """
    recorded = (line.encode() for log in events.values() for event in log.nccl for line in event.lines)
    return parse_transports([*recorded, *_lines_of_logs(directory)])


def parse_transports(lines: Iterable[bytes]) -> tuple[ProcessTransports, ...]:
    """The facts in ``lines``, by process; lines of no known form say nothing.

    >>> (one,) = parse_transports([b"n1:7:9 [0] NCCL INFO Channel 00/02 : 0[0] -> 1[0] [send] via NET/Socket/0"])
    >>> sorted(transport.network for transport in one.transports)
    ['Socket']
    """
    processes: dict[tuple[str, int], _Process] = {}
    for line in lines:
        match = _LINE.search(line[:MOST_LINE_BYTES])
        if match is None:
            continue
        key = (match.group(1).decode("ascii", "replace"), int(match.group(2)))
        if key not in processes and len(processes) >= MOST_PROCESSES:
            continue
        _add(processes.setdefault(key, _Process()), match.group(3).decode("utf-8", "replace"))
    return tuple(
        ProcessTransports(
            host=host,
            pid=pid,
            networks=frozenset(one.networks),
            interfaces=one.interfaces,
            devices=frozenset(one.devices),
            transports=frozenset(one.transports),
            settings=one.settings,
        )
        for (host, pid), one in processes.items()
        if one.networks or one.transports
    )


def _lines_of_logs(directory: Path) -> Iterator[bytes]:
    left = MOST_LOGS_BYTES
    try:
        root = safe_open.checked_directory(directory)
        names = safe_open.file_names(root, layout.LOGS, layout.LOG_ENDING)
    except RunDirError:
        return
    for name in names:
        if left <= 0:
            return
        try:
            with safe_open.opened(root, f"{layout.LOGS}/{name}") as (file, _):
                text = file.read(min(MOST_LOG_BYTES, left))
        except RunDirError:
            continue
        left -= len(text)
        yield from (line for line in text.splitlines() if b" NCCL INFO " in line)


def _add(process: _Process, fact: str) -> None:
    """Add what one line says."""
    if channel := _CHANNEL.search(fact):
        transport = _transport(channel.group(1))
        if transport is not None and len(process.transports) < MOST_FACTS:
            process.transports.add(transport)
    elif network := _NETWORK.fullmatch(fact.strip()):
        if len(process.networks) < MOST_FACTS:
            process.networks.add(network.group(1).strip())
    elif interfaces := _INTERFACES.match(fact):
        for number, name in _INTERFACE.findall(interfaces.group(1))[:MOST_FACTS]:
            process.interfaces[int(number)] = name
    elif devices := _DEVICES.match(fact):
        process.devices.update(name for name, _ in _DEVICE.findall(devices.group(1))[:MOST_FACTS])
    elif (setting := _SETTING.match(fact)) and len(process.settings) < MOST_FACTS:
        process.settings[setting.group(1)] = setting.group(2).rstrip(".")


def _transport(via: str) -> Transport | None:
    """What follows ``via``, such as ``P2P/CUMEM/read``, ``SHM/direct/direct`` or ``NET/IB/0(1)/GDRDMA/Shared``."""
    kind, *parts = via.strip().split("/")
    if kind == "direct shared memory":  # NCCL before 2.8
        return Transport(kind="SHM")
    if kind in {"P2P", "SHM"}:
        return Transport(kind=kind)
    if kind != "NET" or not parts:
        return None
    interface = re.match(r"\d{1,3}", parts[1]) if len(parts) > 1 else None
    return Transport(
        kind="NET",
        network=parts[0][:MOST_NAME],
        interface=None if interface is None else int(interface.group(0)),
        direct=any(part.startswith("GDRDMA") for part in parts),
    )
