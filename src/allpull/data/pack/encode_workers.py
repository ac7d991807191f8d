"""Encode samples in several processes, with the records in order and a bounded number in flight."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from allpull.data.images import Refused
from allpull.data.pack.encode import Encoded, Recipe, encode
from allpull.data.sources import Entry, Source
from allpull.errors import AllpullError

CHUNK = 16  # samples per task: sending costs as much as encoding a small one
MAX_CHUNK_BYTES = 1 << 26  # of records in one result; the writer encodes what exceeds it
AHEAD = 2  # chunks in flight per process
ORPHAN_CHECK_S = 1.0

Outcome = Encoded | str
"""A record, or the reason why there is none."""

_worker: dict[str, tuple[Source, Recipe]] = {}


def attempt(source: Source, recipe: Recipe, entry: Entry) -> Outcome:
    """The record of one sample, or the reason why it has none."""
    try:
        return encode(source.read(entry), recipe)
    except Refused as refused:
        return str(refused)


def outcomes(source: Source, recipe: Recipe, entries: Sequence[Entry], workers: int) -> Iterator[Outcome]:
    """One outcome for each entry, in their order, whatever the number of processes.

    Raises:
        AllpullError: a process died.
    """
    if workers <= 1:
        yield from (attempt(source, recipe, entry) for entry in entries)
        return
    # spawn: forking a process with threads may hang, and the caller may have some
    context = multiprocessing.get_context("spawn")
    in_flight: deque[tuple[int, Future[list[Outcome]]]] = deque()
    pool = ProcessPoolExecutor(workers, context, _init_worker, (source, recipe, os.getpid()))
    try:
        for start in range(0, len(entries), CHUNK):
            in_flight.append((start, pool.submit(_chunk, entries[start : start + CHUNK])))
            if len(in_flight) >= AHEAD * workers:
                yield from _finished(source, recipe, entries, in_flight)
        while in_flight:
            yield from _finished(source, recipe, entries, in_flight)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(
    source: Source, recipe: Recipe, entries: Sequence[Entry], in_flight: deque[tuple[int, Future[list[Outcome]]]]
) -> Iterator[Outcome]:
    start, future = in_flight.popleft()
    stop = min(start + CHUNK, len(entries))
    try:
        done = future.result()
    except BrokenProcessPool as error:
        keys = f"{entries[start].key} … {entries[stop - 1].key}"
        hint = "run the command again to resume here; if it dies again, one of these files is at fault"
        raise AllpullError(f"a process died near {keys}", hint=hint) from error
    yield from done
    yield from (attempt(source, recipe, entry) for entry in entries[start + len(done) : stop])


def _init_worker(source: Source, recipe: Recipe, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the writer handles it
    _worker["work"] = source, recipe
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """Exit when the writer is gone: a killed writer cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)


def _chunk(entries: Sequence[Entry]) -> list[Outcome]:
    source, recipe = _worker["work"]
    results: list[Outcome] = []
    held_bytes = 0
    for entry in entries:
        outcome = attempt(source, recipe, entry)
        results.append(outcome)
        held_bytes += len(outcome.data) if isinstance(outcome, Encoded) else 0
        if held_bytes > MAX_CHUNK_BYTES:
            break
    return results
