"""All-reduce by hand: the sum over all ranks by a ring, a tree and a naive gather, over plain sockets.

Rank r begins with 2^r in every place, so a sum shows whose numbers are in it. Each rank sends nothing but numbers, so
that what the kernel counts on its sockets is what the algorithm moves.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 python ring_by_hand.py OUT --port 29400 --sizes 65536,1048576
"""

import argparse
import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np

BYTES_RECEIVED = 128  # offset of tcpi_bytes_received in struct tcp_info (linux/tcp.h)
PATIENCE_S = 60.0


class Peers:
    """Connections among all ranks: ``links`` for numbers, and one each to rank 0 for meeting."""

    def __init__(self, rank, ranks, host, port):
        self.rank, self.ranks = rank, ranks
        self.messages = 0
        listener = socket.create_server(("", 0), backlog=ranks)
        listener.settimeout(PATIENCE_S)
        if rank == 0:
            with socket.create_server(("", port), backlog=ranks) as door:
                door.settimeout(PATIENCE_S)
                self._meeting = [door.accept() for _ in range(ranks - 1)]
            arrived = [(*json.loads(_line(one)), address[0], one) for one, address in self._meeting]
            arrived.sort(key=lambda each: each[0])
            self._meeting = [one for *_, one in arrived]
            places = [(host, listener.getsockname()[1]), *((address, number) for _, number, address, _ in arrived)]
            for one in self._meeting:
                one.sendall(json.dumps(places).encode() + b"\n")
        else:
            hub = _connect(host, port)
            hub.sendall(json.dumps([rank, listener.getsockname()[1]]).encode() + b"\n")
            self._meeting = [hub]
            places = json.loads(_line(hub))
        self.links = {}
        for other in range(rank):
            self.links[other] = _connect(*places[other])
            self.links[other].sendall(rank.to_bytes(4, "big"))
        for _ in range(rank + 1, ranks):
            one, _ = listener.accept()
            one.settimeout(PATIENCE_S)
            self.links[int.from_bytes(_exactly(one, 4), "big")] = one
        for one in self.links.values():
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()

    def meet(self):
        """Wait until every rank is here; over sockets of its own, which nobody counts."""
        if self.rank == 0:
            for one in self._meeting:
                _exactly(one, 1)
            for one in self._meeting:
                one.sendall(b".")
        else:
            self._meeting[0].sendall(b".")
            _exactly(self._meeting[0], 1)

    def received(self):
        """Bytes that the kernel has received from each other rank."""
        return {
            other: struct.unpack_from("q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), BYTES_RECEIVED)[0]
            for other, one in self.links.items()
        }

    def send(self, other, numbers):
        """Send ``numbers`` to rank ``other``."""
        self.messages += 1
        self.links[other].sendall(memoryview(numbers).cast("B"))

    def receive(self, other, like):
        """As many numbers as ``like`` has, from rank ``other``."""
        return np.frombuffer(_exactly(self.links[other], like.nbytes), dtype=like.dtype)


def ring(peers, numbers, ranks, look=None):
    """Reduce-scatter, then all-gather: 2(N−1) messages of S/N each, all ranks at once, to the next in the ring."""
    rank, following, before = peers.rank, (peers.rank + 1) % ranks, (peers.rank - 1) % ranks
    chunks = np.array_split(numbers, ranks)  # views
    for step in range(2 * (ranks - 1)):
        is_sum = step < ranks - 1
        sent, got = (rank - step) % ranks, (rank - step - 1) % ranks
        sending = threading.Thread(target=peers.send, args=(following, chunks[sent].copy()))
        sending.start()
        arrived = peers.receive(before, chunks[got])
        sending.join()
        chunks[got][:] = chunks[got] + arrived if is_sum else arrived
        if look is not None:
            look(step, sent, following, chunks[sent].nbytes, chunks)


def tree(peers, numbers, ranks):
    """Sum along a binomial tree to rank 0, then send the sum back along it: 2⌈log2 N⌉ messages follow one another."""
    rank, reach = peers.rank, 1
    while reach < ranks:
        if rank % (2 * reach) == reach:
            peers.send(rank - reach, numbers)
            break
        if rank % (2 * reach) == 0 and rank + reach < ranks:
            numbers += peers.receive(rank + reach, numbers)
        reach *= 2
    reach = 1 << (ranks - 1).bit_length() >> 1
    while reach:
        if rank % (2 * reach) == 0 and rank + reach < ranks:
            peers.send(rank + reach, numbers)
        elif rank % (2 * reach) == reach:
            numbers[:] = peers.receive(rank - reach, numbers)
        reach //= 2


def naive(peers, numbers, ranks):
    """All send everything to rank 0, which adds it up and sends the sum to each."""
    if peers.rank:
        peers.send(0, numbers)
        numbers[:] = peers.receive(0, numbers)
        return
    for other in range(1, ranks):
        numbers += peers.receive(other, numbers)
    for other in range(1, ranks):
        peers.send(other, numbers)


ALGORITHMS = {"ring": ring, "tree": tree, "naive": naive}


def exchange(peers, algorithm, ranks, count, repeats):
    """Sum over the first ``ranks``, ``repeats`` times; what this rank sent, received and took."""
    times, right = [], True
    messages, received = peers.messages, peers.received()
    for _ in range(repeats):
        numbers = np.full(count, 2.0**peers.rank, dtype=np.float32)
        peers.meet()
        began = time.perf_counter()
        if peers.rank < ranks:
            ALGORITHMS[algorithm](peers, numbers, ranks)
            right = right and bool((numbers == 2.0**ranks - 1).all())
        times.append(time.perf_counter() - began)
        peers.meet()
    after = peers.received()
    peers.meet()  # the end of a connection counts as a byte
    return {
        "algorithm": algorithm,
        "ranks": ranks,
        "size_bytes": 4 * count,
        "times_s": times,
        "right": right,
        "messages": (peers.messages - messages) / repeats,
        "received": {other: (after[other] - received[other]) / repeats for other in after},
    }


def main():
    """Count and time every algorithm, and write what this rank saw to OUT/rank-N.json."""
    parser = argparse.ArgumentParser(description="All-reduce by hand.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("--sizes", default="1048576", help="bytes, smallest first")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers = Peers(rank, ranks, os.environ["MASTER_ADDR"], arguments.port)
    counts = [int(size) // 4 for size in arguments.sizes.split(",")]

    looks = []
    numbers = np.full(max(counts[-1], ranks), 2.0**rank, dtype=np.float32)
    inside = [[int(chunk[0]) for chunk in np.array_split(numbers, ranks)]]

    def look(step, sent, receiver, size, chunks):
        looks.append({"step": step, "chunk": sent, "receiver": receiver, "size_bytes": size})
        inside.append([int(chunk[0]) for chunk in chunks])

    ring(peers, numbers, ranks, look)
    peers.meet()
    sums = [
        exchange(peers, algorithm, taking_part, count, arguments.repeats)
        for count in counts
        for taking_part in sorted({*(1 << power for power in range(1, ranks.bit_length())), ranks})
        if taking_part <= ranks
        for algorithm in ALGORITHMS
    ]
    seen = {"rank": rank, "messages": looks, "inside": inside, "exchanges": sums}
    (arguments.out / f"rank-{rank}.json").write_text(json.dumps(seen))


def _connect(host, port):
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            one = socket.create_connection((host, port), timeout=PATIENCE_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return one


def _line(one):
    text = b""
    while not text.endswith(b"\n"):
        text += _exactly(one, 1)
    return text


def _exactly(one, count):
    content = bytearray(count)
    view = memoryview(content)
    while view:
        arrived = one.recv_into(view)
        if not arrived:
            raise ConnectionError("another rank has gone")
        view = view[arrived:]
    return content


if __name__ == "__main__":
    main()
