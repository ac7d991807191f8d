"""Say what recording costs a rank, from what a phase costs here in a row.

In a row, a phase that begins and ends costs half a microsecond. In a program that trains it costs many times that:
around it stand the functions that we wrapped, and each finds the caches full of the program's own, and leaves them full
of ours. How many times was measured by ``benchmarks/overhead.py``, from outside; the same benchmark prints what runs
say of themselves beside it.
"""

from __future__ import annotations

from typing import Callable

BLOCKS = 5
PAIRS = 40  # of each block; the fastest block counts, which nothing else disturbed
TIMES = ((20_000, 11), (35_000, 14), (300_000, 28))
"""How many times as much a phase costs as in a row, by the ns of other work that there are for each phase."""


class Cost:
    """What recording costs here; ``pair`` enters and leaves a phase."""

    def __init__(self, pair: Callable[[], None], clock_ns: Callable[[], int]) -> None:
        took = []
        for _ in range(BLOCKS):
            start = clock_ns()
            for _ in range(PAIRS):
                pair()
            took.append(clock_ns() - start)
        self._pair_ns = min(took) / PAIRS

    def of(self, phases: int, step_ns: int) -> int:
        """What recording a step of ``step_ns`` with so many ``phases`` cost, ns.

        >>> cost = Cost(lambda: None, iter(range(0, 10**9, 20_000)).__next__)  # 500 ns each
        >>> cost.of(4, 140_000), cost.of(4, 670_000), cost.of(4, 20_000_000)
        (28000, 42000, 56000)
        """
        count = max(phases, 1)
        work = min(max(step_ns / count, TIMES[0][0]), TIMES[-1][0])
        (less, few), (more, many) = TIMES[:2] if work < TIMES[1][0] else TIMES[1:]
        return round(count * self._pair_ns * (few + (many - few) * (work - less) / (more - less)))
