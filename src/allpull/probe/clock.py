"""Compare the clocks of hosts by ping-pong: one rank of ``allpull probe clock``.

The first rank of each host answers or asks over a TCP connection of its own, beside the process group. Host 0
listens on the interface that the job uses, and hears only who knows the job's nonce. For each ping four times are
noted on both clocks, monotonic and real (RFC 5905): sent by the asker, received, answered, and back.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist

from allpull.probe.ranks import answer, meet, part, read_job

STAMPS = struct.Struct("!4q")  # received (monotonic, real), answered (monotonic, real)
PING = b"p"
PINGS_A_BURST = 100
PAUSE_S = 0.2
CONNECT_S = 60.0
SAY_S = 5.0  # in which a caller has to say the nonce: the asker says it at once, a port scanner never


def main(job_file: str) -> None:
    """Compare all hosts with host 0; rank 0 writes ``probes/clock.json``."""
    job = read_job(job_file)
    meeting = meet(job["spec"]["launch"]["threads"])
    ranks_per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    hosts = meeting.ranks // ranks_per_host
    speaks = int(os.environ.get("LOCAL_RANK", "0")) == 0
    bursts: list[list[list[int]]] = [[] for _ in range(hosts)]
    listener = listen(os.environ.get("MASTER_ADDR", "127.0.0.1")) if meeting.rank == 0 else None
    port = share(listener.getsockname()[1] if listener else 0, meeting.ranks)
    for host in range(1, hosts):  # one after the other, so that no ping waits for another host's
        if listener is not None:
            bursts[host] = serve(listener, job["nonce"])
        elif speaks and meeting.rank == host * ranks_per_host:
            ask(port, job["nonce"], job["options"]["seconds"])
        if meeting.ranks > 1:
            dist.barrier()
    if meeting.rank == 0:
        found = [{"host": host, "pings": rows} for host, rows in enumerate(bursts) if host > 0]
        answer(job, "clock", {"schema": "allpull.clock/1.0", "hosts": hosts, "against": found})
    part()


def listen(address: str) -> socket.socket:
    """A listening socket on the interface of ``address`` alone."""
    listener = socket.socket()
    listener.bind((socket.gethostbyname(address), 0))
    listener.listen()
    listener.settimeout(CONNECT_S)
    return listener


def share(port: int, ranks: int) -> int:
    """Rank 0's ``port``, on every rank."""
    value = torch.tensor([port])
    if ranks > 1:
        dist.broadcast(value, 0)
    return int(value)


def serve(listener: socket.socket, nonce: str) -> list[list[int]]:
    """Answer one host's pings and return its rows: eight times in ns each, as ``ask`` lists them.

    A caller without the nonce is hung up on, and the next is heard.

    Raises:
        OSError: nobody called, or the asker was lost.
    """
    while True:
        connection, _ = listener.accept()
        with connection:
            if not knows(connection, nonce.encode()):
                continue
            connection.settimeout(CONNECT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(1) == PING:
                received = (time.monotonic_ns(), time.time_ns())
                connection.sendall(STAMPS.pack(*received, time.monotonic_ns(), time.time_ns()))
            count = struct.unpack("!q", read(connection, 8))[0]
            raw = read(connection, count * 64)
            return [list(struct.unpack_from("!8q", raw, row * 64)) for row in range(count)]


def knows(connection: socket.socket, nonce: bytes) -> bool:
    """Whether the caller says ``nonce`` within ``SAY_S``; one that hangs up does not."""
    said, deadline = b"", time.monotonic() + SAY_S
    try:
        while len(said) < len(nonce):
            connection.settimeout(max(1e-3, deadline - time.monotonic()))
            heard = connection.recv(len(nonce) - len(said))
            if not heard:
                return False
            said += heard
    except OSError:  # it hung up, or took too long
        return False
    return hmac.compare_digest(said, nonce)


def ask(port: int, nonce: str, seconds: float) -> None:
    """Ping for ``seconds``, in bursts, and hand the rows over.

    A row is [sent, received, answered, back] on the monotonic clocks, then the same on the real-time clocks.
    """
    rows: list[list[int]] = []
    with socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=CONNECT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(nonce.encode())
        end = time.monotonic() + seconds
        while True:
            rows += [ping(connection) for _ in range(PINGS_A_BURST)]
            if time.monotonic() >= end:
                break
            time.sleep(PAUSE_S)
        connection.sendall(b"." + struct.pack("!q", len(rows)))
        connection.sendall(b"".join(struct.pack("!8q", *row) for row in rows))


def ping(connection: socket.socket) -> list[int]:
    """One ping, as a row."""
    sent = (time.monotonic_ns(), time.time_ns())
    connection.sendall(PING)
    theirs = STAMPS.unpack(read(connection, STAMPS.size))
    back = (time.monotonic_ns(), time.time_ns())
    return [sent[0], theirs[0], theirs[2], back[0], sent[1], theirs[1], theirs[3], back[1]]


def read(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes.

    Raises:
        ConnectionError: the other side hung up.
    """
    data = bytearray()
    while len(data) < size:
        part_ = connection.recv(min(size - len(data), 1 << 16))
        if not part_:
            raise ConnectionError("the other host hung up")
        data += part_
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
