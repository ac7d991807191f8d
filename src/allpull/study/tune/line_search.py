"""The next level of one parameter to measure, the others fixed: expand around the best, then narrow the bracket."""

from __future__ import annotations

from collections.abc import Mapping


def next_level(
    costs: Mapping[int, float], levels: int, *, ordered: bool, rising: bool = True, narrows: bool = True
) -> int | None:
    """The index of the next level to measure; None: neither neighbour of the best can be better.

    Args:
        costs: index → cost of what was measured, infinite where it failed; it holds at least one.
        levels: how many there are.
        ordered: neighbours are alike, so that a cost that rises twice need not be followed further.
        rising: look at larger indices first.
        narrows: also between measured levels; False: only beyond them.

    Where the costs of ordered levels have one minimum, it is found in O(log levels) measurements.

    >>> next_level({0: 5.0}, 6, ordered=True), next_level({0: 5.0, 1: 4.0}, 6, ordered=True)
    (1, 3)
    >>> next_level({0: 5.0, 1: 4.0, 3: 4.5}, 6, ordered=True)
    2
    >>> next_level({1: 5.0, 2: 4.0, 3: 4.5}, 6, ordered=True) is None
    True
    """
    if not ordered:
        return next((index for index in range(levels) if index not in costs), None)
    best = min(costs, key=lambda index: (costs[index], index))
    below = max((index for index in costs if index < best), default=None)
    above = min((index for index in costs if index > best), default=None)
    ways = (
        _up(best, below, above, levels) if narrows or above is None else None,
        _down(best, below, above) if narrows or below is None else None,
    )
    return next((index for index in (ways if rising else ways[::-1]) if index is not None), None)


def _up(best: int, below: int | None, above: int | None, levels: int) -> int | None:
    if above is not None:
        return (best + above) // 2 if above - best > 1 else None
    if best == levels - 1:
        return None
    return min(levels - 1, best + (1 if below is None else 2 * (best - below)))


def _down(best: int, below: int | None, above: int | None) -> int | None:
    if below is not None:
        return (best + below + 1) // 2 if best - below > 1 else None
    if best == 0:
        return None
    return max(0, best - (1 if above is None else 2 * (above - best)))
