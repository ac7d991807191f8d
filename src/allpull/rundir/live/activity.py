"""What a rank is doing now, in a few numbers that other processes on its host can read while it runs.

A record is written when a step ends; a hung rank writes none. So each phase also stores its begin in a small mapped
file, and ``allpull watch`` reads it there. Standard library only.
"""

from __future__ import annotations

import mmap
import os
from typing import List, Optional, Tuple, Union

from .. import layout
from ..write import private_folder

PLACES = 64  # that are distinguished: phases, and the program's own labels
STEP, OPERATION, ARRIVED_NS, ENDED_NS = range(PLACES, PLACES + 4)
PLACE, SINCE_NS = range(PLACES + 4, PLACES + 6)
WORDS = PLACES + 8
"""Numbers of 8 bytes, in this machine's byte order; those without a name are 0.

The first are, by place, when the phase there began or resumed, in ns: the latest is the innermost phase, unless an
outermost phase ended after it (``ENDED_NS``). So each transition writes a single number. ``live_numbers`` derives
``PLACE`` and ``SINCE_NS`` from them.
"""

OPERATIONS = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "_all_gather_base",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "scatter",
)
"""Collectives by number; new ones go to the end."""

NOTHING = -1  # the place of a rank between phases, and the operation outside collectives


Words = Union["memoryview[int]", List[int]]


def live_words(directory: str, rank: int) -> Words:
    """The numbers of ``rank``, mapped into its file; where that fails, numbers that no other process sees."""
    path = os.path.join(directory, layout.live_file(rank))
    try:
        private_folder(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, bytes(8 * WORDS))  # no hole: filling one on a full disk ends the rank with SIGBUS
            cells = memoryview(mmap.mmap(descriptor, 8 * WORDS)).cast("q")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return hidden_words()
    cells[OPERATION] = NOTHING
    return cells


def live_numbers(data: bytes) -> Optional[Tuple[int, ...]]:
    """The numbers in the content of a live file; None: it is incomplete."""
    if len(data) != 8 * WORDS:
        return None
    cells = list(memoryview(data).cast("q"))
    latest = max(cells[:PLACES])
    is_between = cells[ENDED_NS] >= latest
    cells[PLACE] = NOTHING if is_between else cells.index(latest)
    cells[SINCE_NS] = cells[ENDED_NS] if is_between else latest
    return tuple(cells)


def hidden_words() -> Words:
    """Numbers that no other process sees."""
    return [0] * WORDS
