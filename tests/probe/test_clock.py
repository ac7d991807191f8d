"""``probe clock``: it pings as sidecars do, and its rows reach rank 0 whole."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from allpull.analyse.clock.host_clocks import BURST_NS
from allpull.analyse.probes.clock import PAUSE_NS
from allpull.observe import clock_pings
from allpull.probe import clock
from allpull.probe.ranks import ProbeGroup, join_group, leave_group
from allpull.rundir.job_file import JobFile

pytestmark = pytest.mark.torch
NONCE = "0123456789abcdef" * 2
HERE = "127.0.0.1"


def reset(caller: socket.socket) -> None:
    """Close with a reset, as port scanners do, and hosts that have crashed."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


@pytest.mark.parametrize("sent", [b"", NONCE[:5].encode(), b"GET / HTTP/1.0\r\n\r\n" + bytes(100)])
@pytest.mark.parametrize("end", [reset, socket.socket.close, lambda _: None], ids=["reset", "close", "silence"])
def test_a_stray_caller_does_not_keep_the_host_from_being_served(sent, end):
    listener = clock_pings.listen(HERE)
    place = {"address": HERE, "port": listener.getsockname()[1]}
    server = clock_pings.Server(listener, NONCE)
    with socket.create_connection((HERE, place["port"]), timeout=20) as stray:
        stray.sendall(sent)
        end(stray)
        rows = clock.pings(place, NONCE, host="1", seconds=0.0)
    server.finish(0)
    assert 0 < len(rows) <= clock_pings.PINGS
    assert all(row[:4] == sorted(row[:4]) for row in rows)  # one machine has one monotonic clock


def _rank(rank: int, ranks: int, port: int, results: multiprocessing.Queue) -> None:
    """One rank of a job of two hosts with two ranks each."""
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": HERE, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    group: ProbeGroup = join_group(1)
    job = JobFile(directory="", nonce=NONCE, options={"seconds": 0.0})
    results.put((rank, list(clock.compare(job, group, hosts=2))))
    leave_group()


@pytest.mark.slow
@pytest.mark.ranks
def test_rank_0_has_the_pings_of_the_first_rank_of_every_other_host():
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, 4, port, results)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    told = dict(results.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    ((host, rows),) = told[0]
    assert host == 1
    assert len(rows[0]) == clock.STAMPS
    assert all(row[:4] == sorted(row[:4]) for row in rows)
    assert [told[rank] for rank in (1, 2, 3)] == [[], [], []]


def test_the_analysis_cuts_bursts_where_they_end():
    """It may not import what pings: it is read where no job runs."""
    assert BURST_NS == clock_pings.BURST_S * 1e9
    assert PAUSE_NS < clock.PAUSE_S * 1e9
