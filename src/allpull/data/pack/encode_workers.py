"""Samples encoded by several processes, their records in order, with a bounded number under way."""

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

CHUNK = 16  # samples sent to a process at once: sending costs as much as encoding a small one
MAX_CHUNK_BYTES = 1 << 26  # of records in one answer; a process that has more leaves the rest to the writer
AHEAD = 2  # chunks under way for each process
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
    # spawn: a fork of a process with threads may hang, and who calls us may have some
    context = multiprocessing.get_context("spawn")
    under_way: deque[tuple[int, Future[list[Outcome]]]] = deque()
    pool = ProcessPoolExecutor(workers, context, _begin, (source, recipe, os.getpid()))
    try:
        for start in range(0, len(entries), CHUNK):
            under_way.append((start, pool.submit(_chunk, entries[start : start + CHUNK])))
            if len(under_way) >= AHEAD * workers:
                yield from _finished(source, recipe, entries, under_way)
        while under_way:
            yield from _finished(source, recipe, entries, under_way)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(
    source: Source, recipe: Recipe, entries: Sequence[Entry], under_way: deque[tuple[int, Future[list[Outcome]]]]
) -> Iterator[Outcome]:
    start, future = under_way.popleft()
    stop = min(start + CHUNK, len(entries))
    try:
        done = future.result()
    except BrokenProcessPool as error:
        keys = f"{entries[start].key} … {entries[stop - 1].key}"
        hint = "run it again: it goes on from here; if it dies again, one of these files is at fault"
        raise AllpullError(f"a process died near {keys}", hint=hint) from error
    yield from done
    yield from (attempt(source, recipe, entry) for entry in entries[start + len(done) : stop])


def _begin(source: Source, recipe: Recipe, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of us; the writer ends the work
    _worker["work"] = source, recipe
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the writer is gone: one that was killed can no longer tell us."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)


def _chunk(entries: Sequence[Entry]) -> list[Outcome]:
    source, recipe = _worker["work"]
    found: list[Outcome] = []
    held_bytes = 0
    for entry in entries:
        outcome = attempt(source, recipe, entry)
        found.append(outcome)
        held_bytes += len(outcome.data) if isinstance(outcome, Encoded) else 0
        if held_bytes > MAX_CHUNK_BYTES:
            break
    return found
