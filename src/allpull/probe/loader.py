"""Time the loader without a model: one rank of ``allpull probe loader``.

A point is a number of ranks at once, each with a number of threads (of worker processes for image files that are read
one by one), and files in one cache state. Its time is divided
into consecutive windows, so that rates come with their spread; none includes the first batch, which waits for threads
to start. All cold and warm points come before the cached ones: the files are read into the page cache once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from allpull.data.loader.batches import Batch
from allpull.data.loader.folder_batches import FolderBatches
from allpull.data.loader.pack_batches import PackBatches
from allpull.data.loader.throughput import drain
from allpull.kernel import usable_cpus
from allpull.probe import pagecache
from allpull.probe.loader_data import LoaderInput, again, describe_input, epochs, shuffle, until
from allpull.probe.ranks import ProbeGroup, join_group, leave_group, rank_counts, run, write_result
from allpull.rundir.job_file import JobFile

WINDOWS = 5  # of a point: the fewest that show a spread
UNKNOWN = -1.0  # represents None in tensors
FILES_STATES = ("cold", "warm", "cached")
PASSES = (("cold", "warm"), ("cached",), ("memory",))
PREPARED = {"cold": pagecache.drop, "cached": pagecache.fill}


@dataclass(frozen=True, slots=True)
class LoaderTimings:
    """One rank's result of a point: samples and seconds of each window, all samples, CPU seconds, bad records."""

    windows: list[tuple[int, float]]
    samples: int
    cpu_s: float
    bad_samples: frozenset[int] = frozenset()


def main(job_file: str) -> None:
    """Measure all points of the job; rank 0 writes ``probes/loader.json``."""
    job = JobFile.read(job_file)
    options, group = job.options, join_group(job.spec["launch"]["threads"])
    subject = describe_input(options["data"], job.spec["data"], batch=options["batch"], ranks=group.ranks)
    cores = int(group.gather(torch.tensor([usable_cpus()])).min())
    threads = options["threads"] or rank_counts(cores, 1)
    points, left_out = measure(group, subject, options, threads if subject.shards else [1])
    if group.rank == 0:
        source = subject.open(rank=0, ranks=1, threads=1)
        write_result(
            job,
            "loader",
            {
                "schema": "allpull.loader/1.5",
                **{name: getattr(subject, name) for name in ("kind", "records", "bytes_per_sample", "size", "batch")},
                "data": subject.name,
                "resizer": getattr(source, "resizer", None),
                "ranks": group.ranks,
                "ranks_per_host": group.ranks_per_host,
                "cores": cores,
                "shuffle": shuffle(subject, group.ranks),
                "odd": len(set().union(*(point.pop("odd") for point in points))),
                "points": points,
                "left_out": left_out,
            },
        )
    leave_group()


def measure(
    group: ProbeGroup, subject: LoaderInput, options: dict[str, Any], threads: list[int]
) -> tuple[list[dict[str, Any]], list[str]]:
    """All points that can be measured, and the reasons why others cannot."""
    wanted = [state for state in FILES_STATES if state in options["states"]] if subject.shards else ["memory"]
    cells = [(active, each) for active in rank_counts(group.ranks, group.ranks_per_host) for each in threads]
    points: list[dict[str, Any]] = []
    left_out: list[str] = []
    for states in PASSES:
        for active, each in cells:
            for state in [one for one in states if one in wanted]:
                trouble = prepare(group, subject, state)
                result = None if trouble else point(group, subject, (active, each, state), options["seconds"])
                if result:
                    points.append(result)
                else:
                    alone = f"an epoch of {active} rank{'s' * (active != 1)} has one batch; take a smaller --batch"
                    left_out.append(f"{state}: {trouble or alone}")
    return points, list(dict.fromkeys(left_out))


def prepare(group: ProbeGroup, subject: LoaderInput, state: str) -> str:
    """Bring the files of every host into ``state``; returns why that failed on any host, or ""."""
    trouble = ""
    if group.first_here and state in PREPARED:
        trouble = PREPARED[state](subject.shards)
    troubled = group.gather(torch.tensor([1 if trouble else 0])).flatten().tolist()
    if any(troubled):
        return trouble or f"not so on the host of rank {troubled.index(1)}"
    return ""


def point(group: ProbeGroup, subject: LoaderInput, cell: tuple[int, int, str], seconds: float) -> dict[str, Any] | None:
    """One point: ranks below the first number of ``cell`` load, the others wait. None: some rank had only one batch."""
    active, threads, state = cell
    resident = pagecache.resident_share(subject.shards) if group.rank == 0 else None
    timings = LoaderTimings([], 0, 0.0)
    source = subject.open(rank=group.rank, ranks=active, threads=threads) if group.rank < active else None
    group.wait()
    if source is not None:
        timings = load(source, seconds, once=state == "cold")
    gathered = group.gather(flat(timings))[:active]
    draws = [unflat(row) for row in gathered.tolist()]
    if any(not sum(samples for samples, _ in draw.windows) for draw in draws):
        return None
    return {
        "ranks": active,
        "threads": threads,
        "state": state,
        "resident": resident,
        "odd": timings.bad_samples,
        "draws": [
            {
                "windows": [{"samples": samples, "seconds": wall_s} for samples, wall_s in draw.windows],
                "samples": draw.samples,
                "cpu_s": draw.cpu_s,
            }
            for draw in draws
        ],
    }


def load(source: Any, seconds: float, *, once: bool) -> LoaderTimings:
    """Take batches from ``source`` for ``seconds``, or, with ``once``, at most until the end of its epoch."""
    windows: list[tuple[int, float]] = []
    samples = 0
    last: Batch | None = None
    began, cpu_began = time.perf_counter(), time.process_time()

    def counted(batches: Iterator[Batch]) -> Iterator[Batch]:
        nonlocal samples, last
        for batch in batches:
            samples, last = samples + batch.samples, batch
            yield batch

    with closing(epochs(source, once=once)) as made:
        batches = counted(made)
        next(batches, None)
        for number in range(1, WINDOWS + 1):
            end = began + seconds * number / WINDOWS
            window = drain(again(last, until(batches, lambda end=end: time.perf_counter() >= end)))
            if window.batches:
                windows.append((window.samples, window.wall_s))
        cpu_s = time.process_time() - cpu_began
    if not isinstance(source, PackBatches | FolderBatches):
        return LoaderTimings(windows, samples, cpu_s)
    children_s = _children_cpu_s()
    source.close()
    cpu_s += _children_cpu_s() - children_s  # of worker processes, which have ended now
    source.bad_samples.warn(str(source.pack.directory) if isinstance(source, PackBatches) else "image files")
    return LoaderTimings(windows, samples, cpu_s, frozenset(remark.record for remark in source.bad_samples.listed))


def _children_cpu_s() -> float:
    """CPU seconds of all child processes that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def flat(timings: LoaderTimings) -> torch.Tensor:
    """A result as a tensor of fixed length for the exchange between ranks: missing windows are negative."""
    rows = [*timings.windows, *[(UNKNOWN, UNKNOWN)] * (WINDOWS - len(timings.windows))]
    return torch.tensor(
        [*(value for row in rows for value in row), timings.samples, timings.cpu_s], dtype=torch.float64
    )


def unflat(values: list[float]) -> LoaderTimings:
    """The inverse of ``flat``; the bad records are not exchanged."""
    pairs = zip(values[0 : 2 * WINDOWS : 2], values[1 : 2 * WINDOWS : 2], strict=True)
    windows = [(int(samples), wall_s) for samples, wall_s in pairs if wall_s > UNKNOWN]
    return LoaderTimings(windows, int(values[-2]), values[-1])


if __name__ == "__main__":
    run(main)
