"""Time storage from one host and from several at once: one rank of ``allpull probe storage``.

Each rank has a file of its own. 1, 2, 4 … ranks work at once while the others wait; all start at the same time, and a
repetition ends for each rank with its last operation.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import torch

from allpull.probe.disk import (
    BLOCK_BYTES,
    NAME_OPERATIONS,
    Done,
    Scratch,
    check_space,
    file_system,
    name_operations,
    names,
)
from allpull.probe.ranks import ProbeGroup, join_group, leave_group, rank_counts, run, write_result
from allpull.rundir.job_file import JobFile

REPEATS = 3
CEILING_S = 0.2
WAYS = ("direct", "dropped", "cached")  # to keep reads from the page cache, best first

Work = Callable[[int], Sequence[Done]]
"""From the number of a repetition to its results, one per operation."""


def main(job_file: str) -> None:
    """Measure all points of the job; rank 0 writes ``probes/storage.json``."""
    signal.signal(signal.SIGTERM, _leave)
    job = JobFile.read(job_file)
    options, group = job.options, join_group(job.spec["launch"]["threads"])
    folder, name = Path(options["path"]), f"{options['name']}-{group.rank}"
    check_space(folder, options["file_bytes"] * group.ranks)
    group.wait()  # until all have checked: one rank's file reduces the space that the next one finds
    with closing(Scratch(folder, options["file_bytes"], name)) as file:
        ceiling = file.ceiling(CEILING_S)
        ways = group.gather(torch.tensor([WAYS.index(file.way)])).flatten().tolist()
        points = []
        for active in rank_counts(group.ranks, group.ranks_per_host):
            points += list(points_of_data(group, active, file, options))
            points += list(points_of_names(group, active, folder / name, options["seconds"]))
    worst = max(ways)
    if group.rank == 0:
        write_result(
            job,
            "storage",
            {
                "schema": "allpull.storage/1.5",
                **{name: options[name] for name in ("path", "file_bytes")},
                "file_system": file_system(folder),
                "way": WAYS[worst],
                "why": file.why if ways[0] == worst else f"so it is on the host of rank {ways.index(worst)}",
                "ceiling_ops_per_s": ceiling.ops / ceiling.seconds,
                "ranks": group.ranks,
                "ranks_per_host": group.ranks_per_host,
                "points": points,
            },
        )
    leave_group()


def points_of_data(group: ProbeGroup, active: int, file: Scratch, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Sequential writes and reads, and random reads of each size, by ``active`` ranks at once."""
    each_s = options["seconds"] / REPEATS

    def read(size: int, threads: int, *, random: bool) -> Work:
        def work(repetition: int) -> list[Done]:
            seed = repetition * group.ranks + group.rank
            return [file.read(size=size, random=random, threads=threads, seconds=each_s, seed=seed)]

        return work

    def point(op: str, size: int, threads: int, work: Work) -> dict[str, Any]:
        (parts,) = repeated(group, active, 1, work)
        return {"ranks": active, "threads": threads, "op": op, "size_bytes": size, "parts": parts}

    yield point("write", BLOCK_BYTES, 1, lambda _: [file.write(seconds=each_s)])
    for threads in options["threads"]:
        yield point("read", BLOCK_BYTES, threads, read(BLOCK_BYTES, threads, random=False))
    for size in options["sizes"]:
        for threads in options["threads"]:
            yield point("random read", size, threads, read(size, threads, random=True))


def points_of_names(group: ProbeGroup, active: int, place: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Files created, queried, opened and removed by ``active`` ranks at once, each in its own folder."""

    def work(_: int) -> list[Done]:
        with names(place):
            results = name_operations(place, seconds=seconds / REPEATS)
        return list(results.values())

    for op, parts in zip(NAME_OPERATIONS, repeated(group, active, len(NAME_OPERATIONS), work), strict=True):
        yield {"ranks": active, "threads": 1, "op": op, "size_bytes": 0, "parts": parts}


def repeated(group: ProbeGroup, active: int, operations: int, work: Work) -> list[list[list[dict[str, Any]]]]:
    """The results of ``work`` by operation, repetition and rank for the first ``active`` ranks; the others wait."""
    results: list[list[list[dict[str, Any]]]] = [[] for _ in range(operations)]
    for repetition in range(REPEATS):
        group.wait()
        own = work(repetition) if group.rank < active else [Done(0, 0.0)] * operations
        timings = torch.tensor([[done.ops, done.seconds] for done in own], dtype=torch.float64)
        for operation, rows in enumerate(group.gather(timings)[:active].transpose(0, 1).tolist()):
            results[operation].append([{"ops": int(ops), "seconds": seconds} for ops, seconds in rows])
    return results


def _leave(number: int, _: object) -> NoReturn:
    """End as the signal would, but after clean-up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    run(main)
