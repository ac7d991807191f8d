"""The all-reduce of a virtual cluster against 2(N-1)/N · S/B: hosts, link rates, measured and ideal times.

    python benchmarks/allreduce_table.py [--hosts 2,4,8] [--mbit 50,200,500] [--repeats 7] [--output FILE]

One rank a host; S is such that the ideal time is ``--seconds``; B is what TCP can carry over the link (4.4 % of it are
headers). The time of one all-reduce is the maximum over ranks, the measured time the median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.rehearse.host.network import payload_bytes_per_s
from allpull.rehearse.launcher import Rehearse
from allpull.rundir import layout
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec
from stored import keep

HERE = Path(__file__).resolve().parent


def measure(hosts: int, mbit_per_s: int, size_bytes: int, repeats: int) -> list[float]:
    """Seconds of each all-reduce of ``size_bytes`` over ``hosts`` hosts, the maximum over ranks."""
    os.environ |= {
        "PYTHONPATH": str(HERE),
        "ALL_REDUCE_BYTES": str(size_bytes),
        "ALL_REDUCE_REPEATS": str(repeats),
    }
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "cluster.toml"
        cluster.write_text(f'[cluster]\nhosts = {hosts}\nlink = "{mbit_per_s} Mbit/s"\n')
        spec = RunSpec(name="table", launch=LaunchSpec(ranks=hosts), observe=ObserveSpec(counters=False))
        job = prepare(spec, kind="run", module="all_reduce_rank", command=["table"], out=Path(folder) / "runs")
        record = execute(job, Rehearse(cluster), lambda: None)
        if record.status != "completed":
            raise SystemExit(f"{hosts} hosts at {mbit_per_s} Mbit/s: {record.exit}")
        logs = [(job.directory / layout.log_file(rank)).read_text() for rank in range(hosts)]
    return [max(times) for times in zip(*(json.loads(log.splitlines()[-1]) for log in logs), strict=True)]


def row(hosts: int, mbit_per_s: int, ideal_s: float, repeats: int) -> dict[str, Any]:
    """One line of the table."""
    payload = payload_bytes_per_s(mbit_per_s * 1e6)
    size_bytes = round(ideal_s * payload * hosts / (2 * (hosts - 1))) // 4 * 4
    times_s = measure(hosts, mbit_per_s, size_bytes, repeats)
    ideal_s = 2 * (hosts - 1) / hosts * size_bytes / payload
    measured_s = statistics.median(times_s)
    return {
        "hosts": hosts,
        "link_bytes_per_s": mbit_per_s * 1e6 / 8,
        "payload_bytes_per_s": round(payload),
        "size_bytes": size_bytes,
        "ideal_s": round(ideal_s, 6),
        "measured_s": round(measured_s, 6),
        "ratio": round(measured_s / ideal_s, 4),
        "ratios": [round(time_s / ideal_s, 4) for time_s in times_s],
    }


def main() -> None:
    """Measure, print the table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4,8", help="numbers of hosts")
    parser.add_argument("--mbit", default="50,200,500", help="rates of a link in Mbit/s")
    parser.add_argument("--seconds", type=float, default=0.5, help="ideal time of one all-reduce")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'hosts':>5} {'Mbit/s':>7} {'MB':>7} {'ideal ms':>9} {'measured ms':>12} {'ratio':>6}", flush=True)
    for hosts in map(int, options.hosts.split(",")):
        for mbit_per_s in map(int, options.mbit.split(",")):
            found = row(hosts, mbit_per_s, options.seconds, options.repeats)
            rows.append(found)
            print(
                f"{hosts:5} {mbit_per_s:7} {found['size_bytes'] / 1e6:7.2f} {found['ideal_s'] * 1e3:9.1f} "
                f"{found['measured_s'] * 1e3:12.1f} {found['ratio']:6.3f}",
                flush=True,
            )
    keep(options.output, {"rows": rows, "worst": max((abs(found["ratio"] - 1) for found in rows), default=None)})


if __name__ == "__main__":
    main()
