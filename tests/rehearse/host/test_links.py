"""What the kernel says of TCP connections between hosts, on links whose rate and load are known."""

from __future__ import annotations

import polars as pl
import pytest

from allpull.rehearse.host.network import payload_bytes_per_s
from allpull.rundir.read.run import read_run

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.ranks, pytest.mark.usefixtures("leaves_nothing")]

MBIT, SLOWER = 200, 0.4
ELEMENTS, TIMES = 500_000, 9
CLUSTER = f"""
[cluster]
hosts = 4
ranks_per_host = 1
link = "{MBIT} Mbit/s"

[[faults]]
kind = "slow-link"
host = 2
factor = {SLOWER}
"""
PROGRAM = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.ones({ELEMENTS})
for _ in range({TIMES}):
    dist.all_reduce(values)
dist.barrier()
import time; time.sleep(0.5)  # a last look while connections are open
dist.destroy_process_group()
"""


def test_bytes_and_rates_of_links_are_those_of_a_ring(rehearsed):
    """2(N−1)/N · S bytes a rank on each of four links; the two of the slow host give what is left of its rate."""
    record, job = rehearsed(CLUSTER, PROGRAM, counters=True)
    assert record.exit is not None
    assert record.exit.code == 0, record.exit.log_tail
    links = read_run(job.directory).links
    host_of = dict(links.select("local", "host").unique().iter_rows())
    assert len(host_of) == 4
    expected = 2 * 3 / 4 * 4 * ELEMENTS * TIMES
    last = links.group_by("host", "peer").last()
    ring = last.filter(pl.col("sent_bytes") > expected / 2)
    assert ring.height == 4
    slow = payload_bytes_per_s(MBIT * 1e6 * SLOWER)
    for host, peer, sent, busy_ns in ring.select("host", "peer", "sent_bytes", "busy_ns").iter_rows():
        assert sent == pytest.approx(expected, rel=0.05)
        if "node3" in (host, host_of[peer]):
            assert slow / 2 < sent / busy_ns * 1e9 < slow * 1.1, (host, peer)
