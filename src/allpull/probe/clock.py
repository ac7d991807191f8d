"""Compare the clocks of hosts by ping-pong: one rank of ``allpull probe clock``.

The first rank of each host pings host 0 for a while, with the protocol that sidecars use during a job
(``observe.clock_pings``), and then sends what it noted to rank 0 over the process group.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from allpull.observe import clock_pings
from allpull.probe.ranks import ProbeGroup, join_group, leave_group, write_result
from allpull.rundir.job_file import JobFile

PAUSE_S = 0.2  # between bursts
CONNECT_S = 60.0
STAMPS = 8  # of a ping: four moments on each of two clocks


def main(job_file: str) -> None:
    """Compare all hosts with host 0; rank 0 writes ``probes/clock.json``."""
    job = JobFile.read(job_file)
    group = join_group(job.spec["launch"]["threads"])
    hosts = group.ranks // group.ranks_per_host
    against = [{"host": host, "pings": rows} for host, rows in compare(job, group, hosts)]
    if group.rank == 0:
        write_result(job, "clock", {"schema": "allpull.clock/1.0", "hosts": hosts, "against": against})
    leave_group()


def compare(job: JobFile, group: ProbeGroup, hosts: int) -> Iterator[tuple[int, list[clock_pings.Row]]]:
    """On rank 0 each other host with its pings, elsewhere nothing; one host after the other, so that no ping waits."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    server = None
    port = torch.zeros(1, dtype=torch.int64)
    if group.rank == 0:
        listener = clock_pings.listen(address)
        port[0] = listener.getsockname()[1]
        server = clock_pings.Server(listener, job.nonce)
    if group.ranks > 1:
        dist.broadcast(port, 0)
    for host in range(1, hosts):
        asker = host * group.ranks_per_host
        if group.rank == asker:
            place = {"address": address, "port": int(port)}
            send(pings(place, job.nonce, host=str(host), seconds=job.options["seconds"]))
        elif group.rank == 0:
            yield host, receive(asker)
        group.wait()
    if server is not None:
        server.finish(0)


def pings(place: dict[str, object], nonce: str, *, host: str, seconds: float) -> list[clock_pings.Row]:
    """Pings to ``place``, burst after burst, for ``seconds``.

    Raises:
        OSError: as ``clock_pings.burst``.
    """
    end_s = time.monotonic() + seconds
    rows: list[clock_pings.Row] = []
    while True:
        rows += clock_pings.burst(place, nonce, host=host, is_last=True, limit_s=CONNECT_S)
        if time.monotonic() >= end_s:
            return rows
        time.sleep(PAUSE_S)


def send(rows: list[clock_pings.Row]) -> None:
    """Send ``rows`` to rank 0."""
    dist.send(torch.tensor([len(rows)]), 0)
    dist.send(torch.tensor(rows), 0)


def receive(rank: int) -> list[clock_pings.Row]:
    """The rows that ``rank`` sends."""
    count = torch.zeros(1, dtype=torch.int64)
    dist.recv(count, rank)
    table = torch.zeros(int(count), STAMPS, dtype=torch.int64)
    dist.recv(table, rank)
    rows: list[clock_pings.Row] = table.tolist()
    return rows


if __name__ == "__main__":
    main(sys.argv[1])
