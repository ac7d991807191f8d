"""Read the TCP connections of ranks to other hosts: bytes sent, and the time in which data was in flight.

The kernel keeps ``struct tcp_info`` for each connection, and reports it over netlink (sock_diag(7); ``ss -i`` prints
the same). Busy time is the time in which sent data was not yet acknowledged, so bytes ÷ busy time is the rate of the
path to that host while it was in use. Transports that are not TCP (InfiniBand verbs, shared memory) are not covered.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, DONE, ERROR = 20, 3, 2
DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
INET_DIAG_INFO = 2
ESTABLISHED = 1 << 1
HEADER = struct.Struct("=IHHII")
REQUEST = struct.Struct("=BBBxI48x")
FAMILIES = ((socket.AF_INET, 4), (socket.AF_INET6, 16))
LOCAL_AT, PEER_AT, INODE_AT, ATTRIBUTES_AT = 8, 24, 68, 72  # in struct inet_diag_msg
RTT_AT, RETRANSMITS_AT, ACKED_AT, BUSY_AT, INFO_BYTES = 68, 100, 120, 168, 176  # in struct tcp_info; busy since 4.9
MAX_PEERS = 256
ANSWER_S = 1.0

Totals = Dict[str, Any]


class Connection(NamedTuple):
    """One TCP connection: ``inode`` of its socket, both addresses, and its totals since it opened."""

    inode: int
    local: str
    peer: str
    sent_bytes: int
    busy_ns: int
    retransmits: int
    rtt_ns: int


class Links:
    """Tracks the connections of the processes that ``pids`` returns, from sample to sample."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._alive: Dict[int, Connection] = {}
        self._closed: Dict[str, Totals] = {}

    def look(self) -> Dict[str, Any]:
        """The links' part of ``schema.counters.CounterSample``, by address of the other host; cumulative."""
        try:
            own_inodes = _sockets(self._pids())
            now = {one.inode: one for one in connections() if one.inode in own_inodes and one.local != one.peer}
        except OSError:
            return {}  # no netlink in this container
        for inode, one in self._alive.items():
            if inode not in now or now[inode].sent_bytes < one.sent_bytes:  # closed; its inode may be another's by now
                _add(self._closed, one)
        self._alive = now
        links = {peer: dict(totals) for peer, totals in self._closed.items()}
        for one in now.values():
            _add(links, one)
        return {"links": dict(sorted(links.items())[:MAX_PEERS])}


def _add(links: Dict[str, Totals], one: Connection) -> None:
    totals = links.setdefault(
        one.peer, {"local": one.local, "sent_bytes": 0, "busy_ns": 0, "retransmits": 0, "rtt_ns": 0}
    )
    for name in ("sent_bytes", "busy_ns", "retransmits"):
        totals[name] += getattr(one, name)
    totals["rtt_ns"] = max(totals["rtt_ns"], one.rtt_ns)


def connections() -> Iterator[Connection]:
    """The established TCP connections of this network namespace that reach beyond loopback.

    Raises:
        OSError: the kernel does not report them.
    """
    for family, length in FAMILIES:
        for message in _dump(family):
            local, peer = (socket.inet_ntop(family, message[at : at + length]) for at in (LOCAL_AT, PEER_AT))
            if peer.startswith(("127.", "::1", "::ffff:127.")):
                continue
            info = _info(message)
            if len(info) >= INFO_BYTES:
                yield Connection(
                    inode=struct.unpack_from("=I", message, INODE_AT)[0],
                    local=local.replace("::ffff:", ""),
                    peer=peer.replace("::ffff:", ""),
                    sent_bytes=struct.unpack_from("=Q", info, ACKED_AT)[0],
                    busy_ns=struct.unpack_from("=Q", info, BUSY_AT)[0] * 1000,
                    retransmits=struct.unpack_from("=I", info, RETRANSMITS_AT)[0],
                    rtt_ns=struct.unpack_from("=I", info, RTT_AT)[0] * 1000,
                )


def _dump(family: int) -> List[bytes]:
    """The kernel's messages, one per connection: ``struct inet_diag_msg`` and attributes."""
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED)
    bodies: List[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(ANSWER_S)
        netlink.sendto(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, DUMP, 1, 0) + request, (0, 0))
        while True:
            answer = netlink.recv(1 << 18)
            for kind, body in _messages(answer):
                if kind == DONE:
                    return bodies
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "sock_diag")
                bodies.append(body)


def _messages(answer: bytes) -> Iterator[Tuple[int, bytes]]:
    at = 0
    while at + HEADER.size <= len(answer):
        length, kind, *_ = HEADER.unpack_from(answer, at)
        yield kind, answer[at + HEADER.size : at + length]
        at += max((length + 3) & ~3, HEADER.size)


def _info(message: bytes) -> bytes:
    """``struct tcp_info`` of a message; empty if it has none."""
    at = ATTRIBUTES_AT
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == INET_DIAG_INFO:
            return message[at + 4 : at + length]
        at += max((length + 3) & ~3, 4)
    return b""


def _sockets(pids: Iterable[int]) -> Set[int]:
    """Inodes of the sockets that these processes have open."""
    inodes = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # it has ended, or belongs to another user
        for name in names:
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes
