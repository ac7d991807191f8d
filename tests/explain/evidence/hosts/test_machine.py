"""What counters say of a machine: rates over the steps of the window, on each host's own clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.explain.made import hosts_of

from allpull.explain.evidence.hosts.machine import Connection, Machine, machine_of
from allpull.rundir.read.counters import COUNTERS_SCHEMA, GPUS_SCHEMA, LINKS_SCHEMA, PINGS_SCHEMA
from allpull.rundir.read.run import RunData, read_run
from allpull.rundir.read.steps import SCHEMA

S = 10**9


def run(tmp_path, *, counters=(), links=(), pings=(), offset_ns: int = 7 * 10**12) -> RunData:
    """A run of two ranks on two hosts, ten steps of 1 s from 10 s on; the clock of the second host is ahead."""
    kept = read_run(Path(__file__).resolve().parents[3] / "runs" / "v1.1")
    steps = pl.DataFrame(
        [
            {"rank": rank, "step": step, "epoch": 0, "begin_ns": rank * offset_ns + (10 + step) * S,
             "end_ns": rank * offset_ns + (11 + step) * S, "recording_ns": 5 * 10**6}
            for rank in range(2)
            for step in range(10)
        ],
        schema_overrides=SCHEMA,
    )  # fmt: skip
    headers = {rank: kept.headers[0].model_copy(update={"rank": rank, "host": f"node{rank + 1}"}) for rank in range(2)}
    return RunData(
        directory=tmp_path,
        record=kept.record,
        hosts=kept.hosts,
        steps=steps,
        headers=headers,
        events={},
        counters=pl.DataFrame(list(counters), schema=COUNTERS_SCHEMA),
        links=pl.DataFrame(list(links), schema=LINKS_SCHEMA),
        pings=pl.DataFrame(list(pings), schema=PINGS_SCHEMA),
        gaps=(),
    )


def sampled(offset_ns: int = 7 * 10**12):
    """A sample a second from 0 to 30 s: outside of the steps everything grows ten times as fast."""
    for rank in range(2):
        grown = 0
        for second in range(30):
            grown += 10 if second < 11 or second > 19 else 1
            yield {
                "host": f"node{rank + 1}", "rank": rank, "t_ns": rank * offset_ns + second * S, "processes": 3,
                "queued_ns": grown * S // 4, "cpu_ns": grown * S * (rank + 1),
            }  # fmt: skip


def test_rates_are_those_of_the_window_on_each_hosts_own_clock(tmp_path):
    machine = machine_of(run(tmp_path, counters=sampled()), np.arange(1, 9))
    assert machine.hosts == ("node1", "node2")
    assert machine.queued_s == pytest.approx([0.25, 0.25])
    assert machine.cpu_s == pytest.approx([1.0, 2.0])
    assert machine.started == 3
    assert machine.recording_share == pytest.approx(0.005)


def test_without_two_samples_of_every_rank_nothing_is_known(tmp_path):
    one = [row for row in sampled() if row["rank"] == 0]
    machine = machine_of(run(tmp_path, counters=one), np.arange(10))
    assert (machine.queued_s, machine.cpu_s, machine.connections, machine.round_trip_s) == (None, None, (), None)
    assert machine.busy_share("node1") is None


def test_a_way_between_hosts_has_the_rate_that_it_gave_while_it_was_busy(tmp_path):
    links = [
        {"host": host, "t_ns": offset + second * S, "peer": peer, "local": local, "sent_bytes": second * 5 * 10**6,
         "busy_ns": second * S // 2, "retransmits": second // 10, "rtt_ns": 10**6}
        for host, local, peer, offset in (
            ("node1", "10.0.0.1", "10.0.0.2", 0),
            ("node2", "10.0.0.2", "10.0.0.1", 7 * 10**12),
        )
        for second in range(30)
    ]  # fmt: skip
    machine = machine_of(run(tmp_path, links=links), np.arange(10))
    there, back = machine.connections
    assert there == Connection(
        source="node1",
        target="node2",
        seconds=10.0,
        sent_bytes=50 * 10**6,
        bytes_per_s=1e7,
        busy_share=0.5,
        retransmits=1,
    )  # fmt: skip
    assert (back.source, back.target, back.bytes_per_s) == ("node2", "node1", 1e7)


def test_a_connection_that_ends_and_one_to_nobody_of_the_job_do_no_harm(tmp_path):
    row = {"host": "node1", "peer": "10.0.0.9", "local": "10.0.0.1", "retransmits": 0, "rtt_ns": 1}
    strange = [{**row, "t_ns": second * S, "sent_bytes": 10**6 * (second % 3), "busy_ns": S} for second in range(30)]
    assert machine_of(run(tmp_path, links=strange), np.arange(10)).connections == ()


def test_the_round_trip_is_that_of_the_fastest_ping(tmp_path):
    pings = [
        {
            "host": "node2",
            "against": "node1",
            "sent_ns": 0,
            "received_ns": 0,
            "answered_ns": 1000,
            "back_ns": 1000 + back,
        }
        for back in (400_000, 90_000, 250_000)
    ]
    assert machine_of(run(tmp_path, pings=pings), np.arange(10)).round_trip_s == pytest.approx(90e-6)


def test_hosts_and_their_ranks():
    machine = Machine(hosts=hosts_of(4), cpus={"node1": 4.0}, cpu_s=np.array([1.0, 2.0, 1.0, 1.0]))
    assert machine.host_names == ("node1", "node2")
    assert machine.ranks_of("node2") == (2, 3)
    assert machine.busy_share("node1") == pytest.approx(0.75)
    assert machine.busy_share("node2") is None


def told(tmp_path, kind: str, **train: object) -> Machine:
    data = run(tmp_path)
    data = replace(data, record=data.record.model_copy(update={"kind": kind, "spec": {"train": train}}))
    return machine_of(data, np.arange(10))


def test_what_the_trainer_was_told_is_known_of_its_own_runs_alone(tmp_path):
    trained = told(tmp_path, "train", precision="bf16", compile="reduce-overhead")
    assert (trained.precision, trained.compiled) == ("bf16", True)
    assert told(tmp_path, "train", precision="fp32", compile="none").compiled is False
    script = told(tmp_path, "run", precision="bf16", compile="default")
    assert (script.precision, script.compiled) == (None, None)
    odd = told(tmp_path, "train", precision=3, compile=None)
    assert (odd.precision, odd.compiled) == (None, None)


def test_accelerators_are_those_of_each_host():
    machine = Machine(hosts=hosts_of(4), gpus={"node1": ("V100", "V100"), "node2": ()})
    assert machine.accelerators == ("V100",)
    assert Machine(hosts=hosts_of(4)).accelerators == ()


def test_the_share_of_the_time_with_a_kernel_is_that_of_accelerators_in_use(tmp_path):
    made = run(tmp_path)
    rows = [
        {"host": "node1", "t_ns": second * S, "gpu": gpu, "busy_share": share if 10 <= second <= 20 else 1.0}
        for second in range(30)
        for gpu, share in (("0", 0.6), ("1", 0.0), ("2", 0.4))
    ]
    sampled_gpus = replace(made, gpus=pl.DataFrame(rows, schema=GPUS_SCHEMA))
    assert machine_of(made, np.arange(10)).device_busy_share is None
    assert machine_of(sampled_gpus, np.arange(10)).device_busy_share == pytest.approx(0.5)
