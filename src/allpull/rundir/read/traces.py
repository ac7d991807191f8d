"""Read the events of a profiler trace (Chrome JSON, as Kineto writes it) one by one, however large the file is.

A trace may come from anybody and be cut off: what can be read of it is given, and the fault is said.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import safe_open

CHUNK = 1 << 20  # bytes read at a time
MAX_EVENT = 1 << 20  # characters of one event
MAX_BASE_NS = 2**62
MAX_KEPT = 200_000  # events that are kept of one trace

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*([0-9]{1,19})\b')
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(kw_only=True)
class Trace:
    """What was read of a trace.

    ``events`` are those that were wanted, in the order of the file, with times in µs after ``base_ns`` of the
    real-time clock. ``read_bytes`` counts what was unpacked; ``fault`` says why reading stopped early.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    base_ns: int = 0
    read_bytes: int = 0
    fault: str | None = None


def read_trace(root: Path, relative: str, wanted: Callable[[dict[str, Any]], bool], limit_bytes: int) -> Trace:
    """The events of ``relative`` in the resolved run directory ``root`` that are ``wanted``.

    At most ``limit_bytes`` are unpacked of it; where it cannot be opened or is damaged, ``fault`` says so.
    """
    trace = Trace()
    try:
        with safe_open.opened(root, relative) as (file, _):
            for event in _events(_Text(file, relative.endswith(".gz"), limit_bytes, trace)):
                if len(trace.events) >= MAX_KEPT:
                    trace.fault = f"more than {MAX_KEPT:,} events of collectives"
                    break
                if wanted(event):
                    trace.events.append(event)
    except RunDirError as error:
        trace.fault = error.message
    except (EOFError, zlib.error) as error:
        trace.fault = f"not readable as gzip: {error}"
    except ValueError as error:
        trace.fault = trace.fault or f"not readable as JSON: {str(error)[:200]}"
    except RecursionError:
        trace.fault = "not readable as JSON: nested too deeply"
    return trace


class _Text:
    """The text of a trace, of which the part not yet used is kept."""

    def __init__(self, file: io.BufferedIOBase | Any, is_packed: bool, limit_bytes: int, trace: Trace) -> None:
        self._file = gzip.GzipFile(fileobj=file, mode="rb") if is_packed else file
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._limit = limit_bytes
        self.trace = trace
        self.rest = ""

    def more(self) -> bool:
        """Append the next chunk to ``rest``; False where there is none."""
        blob = self._file.read(CHUNK)
        self.trace.read_bytes += len(blob)
        if self.trace.read_bytes > self._limit:
            self.trace.fault = "too large to be read whole"
            return False
        self.rest += self._decoder.decode(blob, final=not blob)
        return bool(blob)


def _events(text: _Text) -> Iterator[dict[str, Any]]:
    """Each event; what stands around the list of them is searched for the moment that times count from."""
    found = _EVENTS.search(text.rest)
    while found is None:
        if len(text.rest) > MAX_EVENT or not text.more():
            raise ValueError("no list of events near its begin")
        found = _EVENTS.search(text.rest)
    _find_base(text.trace, text.rest[: found.start()])
    decoder, place = json.JSONDecoder(), found.end()
    while True:
        place = _BETWEEN.match(text.rest, place).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.rest.startswith("]", place):
            break
        try:
            event, place = decoder.raw_decode(text.rest, place)
        except json.JSONDecodeError:
            text.rest, place = text.rest[place:], 0
            if len(text.rest) > MAX_EVENT or not text.more():
                raise
            continue
        if isinstance(event, dict):
            yield event
    text.rest = text.rest[place:]
    while text.trace.base_ns == 0 and len(text.rest) < MAX_EVENT and text.more():
        pass
    _find_base(text.trace, text.rest)


def _find_base(trace: Trace, around: str) -> None:
    found = _BASE.search(around)
    if found:
        trace.base_ns = min(int(found.group(1)), MAX_BASE_NS)
