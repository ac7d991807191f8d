"""Encode samples in several processes, with the records in order and a bounded number in flight.

Each process has a pipe of its own, so that the end of one, at whatever moment, is the end of its pipe. The processes
of ``concurrent.futures`` share one, and a lock: where one is killed while it sends, all others wait for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from allpull.data.images import Refused
from allpull.data.pack.encode import Encoded, Recipe, encode
from allpull.data.sources import Entry, Source
from allpull.errors import AllpullError

CHUNK = 16  # samples at a time: sending costs as much as encoding a small one
MAX_CHUNK_BYTES = 1 << 26  # of records in one result; the writer encodes what exceeds it

Outcome = Encoded | str
"""A record, or the reason why there is none."""


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
    chunks = [entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK)]
    started: list[tuple[SpawnProcess, Connection]] = []
    try:
        started.extend(_start(source, recipe, chunks[first::workers]) for first in range(min(workers, len(chunks))))
        for chunk, (_, results) in zip(chunks, cycle(started), strict=False):
            done = _received(results, chunk)
            yield from done
            yield from (attempt(source, recipe, entry) for entry in chunk[len(done) :])
    finally:
        for process, results in started:
            results.close()
            process.terminate()
            process.join()


def _start(source: Source, recipe: Recipe, chunks: Sequence[Sequence[Entry]]) -> tuple[SpawnProcess, Connection]:
    """A process that encodes ``chunks``, and where it sends them: it waits with each until it is read."""
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang, and the caller has some
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=_encode, args=(source, recipe, chunks, sender), daemon=True)
    process.start()
    sender.close()
    return process, results


def _received(results: Connection, chunk: Sequence[Entry]) -> list[Outcome]:
    """What the process of ``results`` made of ``chunk``; large records at its end may be missing."""
    try:
        done: list[Outcome] | Exception = results.recv()
    except (EOFError, OSError) as error:
        hint = "run the command again to resume here; if it dies again, one of these files is at fault"
        raise AllpullError(f"a process died near {chunk[0].key} … {chunk[-1].key}", hint=hint) from error
    if isinstance(done, Exception):
        raise done
    return done


def _encode(source: Source, recipe: Recipe, chunks: Sequence[Sequence[Entry]], sender: Connection) -> None:
    """Encode and send; where the reader is gone, there is nothing left to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the writer handles it
    with suppress(BrokenPipeError):
        for chunk in chunks:
            try:
                done: list[Outcome] | Exception = _chunk(source, recipe, chunk)
            except Exception as error:  # noqa: BLE001  the writer raises it
                done = error
            sender.send(done)


def _chunk(source: Source, recipe: Recipe, entries: Sequence[Entry]) -> list[Outcome]:
    results: list[Outcome] = []
    held_bytes = 0
    for entry in entries:
        outcome = attempt(source, recipe, entry)
        results.append(outcome)
        held_bytes += len(outcome.data) if isinstance(outcome, Encoded) else 0
        if held_bytes > MAX_CHUNK_BYTES:
            break
    return results
