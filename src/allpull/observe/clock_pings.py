"""Compare the clocks of hosts while their job runs: one host answers pings, the others ask.

Each ping records four moments on both clocks, monotonic and real: sent by the asker, received, answered, and back (RFC
5905 §8). A burst is a hundred pings over one TCP connection; the fastest few carry the information of all. The host
that answers listens on one interface, and serves only callers that prove knowledge of the job's nonce: it sends a
random challenge, and they return its HMAC, so that nothing on the wire can be replayed. Callers are served one after
the other, so that no ping waits for another host's. The address of the server is in ``job/clock.json``.

Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Dict, List, Optional, Set, Tuple

from ..rundir import layout
from ..rundir.write import whole_json

NONCE_VARIABLE = "ALLPULL_NONCE"  # passes the nonce to a sidecar: command lines are public, the environment is not
Row = List[int]
"""[sent, received, answered, back] on the monotonic clocks, then the same on the real-time clocks, in ns."""

STAMPS = struct.Struct("!4q")  # received (monotonic, real), answered (monotonic, real)
HELLO = struct.Struct("!32s?B")  # proof, whether this is the caller's last burst, bytes of its name
PING = b"p"
CHALLENGE_BYTES = 16
PINGS = 100
FASTEST = 8  # of a burst that are kept: the fastest gives the bound, the others show its spread
BURST_S = 1.0  # the longest that a burst takes on a slow network
TURN_S = 10.0  # how long a caller waits while other hosts are served
SILENCE_S = 0.5  # after which the server drops a caller: others wait
LOOK_S = 0.1
LONGEST_PAUSE_S = 5.0  # between attempts to reach the server
MAX_PLACE_BYTES = 4096


class Server:
    """Answers pings in its own thread, until ``finish``.

    Raises:
        ValueError: there is no nonce, and anybody would be served.
    """

    def __init__(self, listener: socket.socket, nonce: str) -> None:
        if not nonce:
            raise ValueError("no nonce")
        self._listener = listener
        self._nonce = nonce
        self._expected: Set[str] = set()  # hosts that will ask again
        self._over = threading.Event()
        listener.settimeout(LOOK_S)
        threading.Thread(target=self._serve, name="clock", daemon=True).start()

    def finish(self, limit_s: float) -> None:
        """Stop when every host that pinged has sent its last ping, after at most ``limit_s`` seconds."""
        end_s = time.monotonic() + limit_s
        while self._expected and time.monotonic() < end_s:
            time.sleep(LOOK_S / 10)
        self._over.set()
        self._listener.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except socket.timeout:
                continue
            except OSError:
                self._over.wait(LOOK_S)  # closed; or out of descriptors, which may be temporary
                continue
            with connection:
                try:
                    self._answer(connection)
                except OSError:
                    continue  # the caller disconnected, and will ask again

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = os.urandom(CHALLENGE_BYTES)
        connection.sendall(challenge)
        proof, is_last, size = HELLO.unpack(read(connection, HELLO.size))
        if not hmac.compare_digest(proof, proof_of(self._nonce, challenge)):
            return
        host = read(connection, size).decode("utf-8", "replace")
        self._expected.add(host)
        end_s = time.monotonic() + 2 * BURST_S
        while time.monotonic() < end_s and connection.recv(1) == PING:
            received = (time.monotonic_ns(), time.time_ns())
            connection.sendall(STAMPS.pack(*received, time.monotonic_ns(), time.time_ns()))
        if is_last:
            self._expected.discard(host)


class Asker:
    """Pings the server that ``job/clock.json`` names, in a thread: at once, every ``every_s``, and at the end."""

    def __init__(self, directory: str, *, host: str, nonce: str, every_s: float) -> None:
        self._directory = directory
        self._host = host
        self._nonce = nonce
        self._every_s = every_s
        self._bursts: "SimpleQueue[Tuple[str, List[Row]]]" = SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="clock", daemon=True)
        self._thread.start()

    def news(self) -> Dict[str, Any]:
        """``against`` and ``pings`` of ``schema.counters.CounterSample`` since the last call; empty without pings."""
        against = ""
        pings: List[Row] = []
        while True:
            try:
                against, rows = self._bursts.get_nowait()
            except Empty:
                return {"against": against, "pings": pings} if pings else {}
            pings += rows

    def finish(self, limit_s: float) -> None:
        """Ping for the last time, for at most ``limit_s`` seconds."""
        self._over.set()
        self._thread.join(limit_s)

    def _ask(self) -> None:
        pause_s = LOOK_S
        while not self._over.is_set():
            done = self._burst(is_last=False, limit_s=TURN_S)
            pause_s = self._every_s if done else min(2 * pause_s, LONGEST_PAUSE_S)
            self._over.wait(pause_s)
        self._burst(is_last=True, limit_s=BURST_S)

    def _burst(self, *, is_last: bool, limit_s: float) -> bool:
        place = server_address(self._directory)
        if place is None:
            return False
        try:
            rows = fastest(burst(place, self._nonce, host=self._host, is_last=is_last, limit_s=limit_s))
        except OSError:
            return False
        self._bursts.put((place["host"], rows))
        return True


def burst(place: Dict[str, Any], nonce: str, *, host: str, is_last: bool, limit_s: float) -> List[Row]:
    """The pings of one burst to ``place``, in the order in which they were sent.

    Raises:
        OSError: there is no answer within ``limit_s``, or the connection ended: the other side refused our proof, say.
    """
    name = host.encode()[:255]
    with socket.create_connection((place["address"], place["port"]), timeout=limit_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = read(connection, CHALLENGE_BYTES)
        connection.sendall(HELLO.pack(proof_of(nonce, challenge), is_last, len(name)) + name)
        connection.settimeout(BURST_S)
        rows = [ping(connection)]
        end_s = time.monotonic() + BURST_S
        while len(rows) < PINGS and time.monotonic() < end_s:
            rows.append(ping(connection))
    return rows


def fastest(rows: List[Row]) -> List[Row]:
    """The ``FASTEST`` pings of a burst, in the order in which they were sent."""
    return sorted(sorted(rows, key=round_trip_ns)[:FASTEST])


def ping(connection: socket.socket) -> Row:
    """One ping.

    Raises:
        OSError: no answer.
    """
    sent = (time.monotonic_ns(), time.time_ns())
    connection.sendall(PING)
    received, received_real, answered, answered_real = STAMPS.unpack(read(connection, STAMPS.size))
    back = (time.monotonic_ns(), time.time_ns())
    return [sent[0], received, answered, back[0], sent[1], received_real, answered_real, back[1]]


def round_trip_ns(row: Row) -> int:
    """Time that a ping was on the network, without the time that the server took."""
    sent, received, answered, back = row[:4]
    return (back - sent) - (answered - received)


def proof_of(nonce: str, challenge: bytes) -> bytes:
    """The HMAC of ``challenge``, which proves knowledge of ``nonce`` and does not reveal it."""
    return hmac.new(nonce.encode(), challenge, hashlib.sha256).digest()


def read(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes.

    Raises:
        OSError: the other side closed the connection, or is silent.
    """
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the other host hung up")
        data += more
    return data


def listen(address: str) -> socket.socket:
    """A listening socket on any free port of the interface of ``address`` alone.

    Raises:
        OSError: the address does not belong to this host.
    """
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(where[:2], family=family, backlog=1024)


def server_address(directory: str) -> Optional[Dict[str, Any]]:
    """The clock server of the run in ``directory``: ``address``, ``port`` and ``host``; None: not known yet."""
    try:
        with open(os.path.join(directory, layout.CLOCK), "rb") as file:
            place = json.loads(file.read(MAX_PLACE_BYTES))
        address, port, host = place["address"], place["port"], place["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (isinstance(address, str) and isinstance(host, str) and isinstance(port, int) and 0 < port < 1 << 16):
        return None
    return {"address": address, "port": port, "host": host}


def publish_server(directory: str, place: Dict[str, Any]) -> None:
    """Publish the clock server to the hosts that see ``directory``.

    Raises:
        OSError: it cannot be written.
    """
    whole_json(os.path.join(directory, layout.CLOCK), place)


def claim_server(directory: str, place: Dict[str, Any]) -> bool:
    """As ``publish_server``, but only for the first host to call it: False for later ones.

    Raises:
        OSError: it cannot be written.
    """
    try:
        descriptor = os.open(os.path.join(directory, layout.CLOCK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(place, file)
    return True


def withdraw_server(directory: str) -> None:
    """Remove the address of the clock server from ``directory``."""
    try:
        os.unlink(os.path.join(directory, layout.CLOCK))
    except OSError:
        pass  # hosts that still ask there get no answer


class ClockRole:
    """The role of a sidecar in comparing clocks: its options, and a descriptor that it inherits."""

    def __init__(self, *options: str, descriptor: Optional[int] = None) -> None:
        self.options = options
        self.descriptor = descriptor


NONE, ASK, AUTO = ClockRole(), ClockRole("--ask-clock"), ClockRole("--clock", "auto")
"""The role of a single host; of a host that asks; of a host without an agent, which serves if it is the first."""


def serving_role(directory: str, *, host: str, address: str) -> ClockRole:
    """The role of ``host``, which the others ping on the interface of ``address``; ``NONE`` if it cannot listen."""
    try:
        listener = listen(address)
    except OSError:
        return NONE
    with listener:
        publish_server(directory, {"address": address, "port": listener.getsockname()[1], "host": host})
        descriptor = listener.detach()
    return ClockRole("--serve-clock", str(descriptor), descriptor=descriptor)
