"""The search space of ``[tune]``: its parameters, their values in order, and what is proposed of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from allpull.config.typed import show
from allpull.schema.studied import Parameters, Value
from allpull.schema.tuned import BottleneckKind

MAX_VALUES = 1000  # of one parameter
RANGE_KEYS = frozenset({"low", "high", "log"})
RANGE_LEVELS = 9  # of a linear range, at which the guided search looks; a logarithmic one is looked at in factors of 2

AFFECTS: Mapping[str, tuple[BottleneckKind, ...]] = {
    "worker": ("input", "cpu"),
    "thread": ("input", "compute", "cpu"),
    "ahead": ("input",),
    "prefetch": ("input",),
    "access": ("input",),
    "block": ("input",),
    "resizer": ("input",),
    "decode": ("input",),
    "batch": ("network", "launch", "compute"),
    "accumulate": ("network", "launch"),
    "passes": ("network", "launch"),
    "bucket": ("network",),
    "hook": ("network",),
    "compress": ("network",),
    "overlap": ("network",),
    "backend": ("network",),
    "link": ("network",),
    "strategy": ("network", "compute"),
    "static_graph": ("network",),
    "broadcast": ("network",),
    "precision": ("compute", "network"),
    "amp": ("compute",),
    "dtype": ("compute",),
    "compile": ("launch", "compute"),
    "graph": ("launch",),
    "channels_last": ("compute",),
    "omp": ("compute", "cpu"),
}
"""Part of a parameter's name → the bottlenecks that it may relieve. The names are those of options and of the users'
own placeholders; ``affects`` in the study file overrides this."""

FALLING = ("cpu",)
"""Bottlenecks that a smaller value relieves; each other one is tried with larger values first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of numbers; ``step`` is set for whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One parameter. ``levels`` are the values of a list, or where the guided search looks in a range.

    ``ordered``: neighbouring levels are alike, as numbers are. ``start`` is the index of the first configuration.
    """

    name: str
    levels: tuple[Value, ...]
    ordered: bool
    start: int
    affects: tuple[BottleneckKind, ...]
    range: Range | None = None


def dimension(
    name: str,
    given: Sequence[Value] | Mapping[str, Any],
    *,
    default: Value | None = None,
    affects: Sequence[BottleneckKind] | None = None,
) -> Dimension:
    """The dimension that a list of values, or a table with ``low`` and ``high``, describes.

    ``default`` is the value of the first configuration; None, or not among the values: the first of a list, the lowest
    of a range.

    >>> dimension("train.batch", {"low": 16, "high": 100, "log": True}).levels
    (16, 32, 64, 100)
    >>> dimension("precision", ["fp32", "bf16"], default="bf16").start
    1
    """
    bounds = None if not isinstance(given, Mapping) else _range(given)
    levels = tuple(given) if bounds is None else _levels(bounds, default)
    ordered = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
    if ordered:
        first = levels[0]
        levels = tuple(sorted(levels, key=float))
        default = first if default not in levels and bounds is None else default
    return Dimension(
        name=name,
        levels=levels,
        ordered=ordered,
        start=levels.index(default) if default in levels else 0,
        affects=tuple(affects) if affects is not None else affected(name),
        range=bounds,
    )


def affected(name: str) -> tuple[BottleneckKind, ...]:
    """The bottlenecks that the parameter ``name`` may relieve; none where the name tells nothing.

    >>> affected("data.workers"), affected("train.lr")
    (('input', 'cpu'), ())
    """
    lower = name.lower()
    kinds = itertools.chain.from_iterable(kinds for part, kinds in AFFECTS.items() if part in lower)
    return tuple(dict.fromkeys(kinds))


def configurations(space: Sequence[Dimension]) -> int | None:
    """How many configurations there are; None where a parameter is a range.

    >>> configurations([dimension("a", [1, 2, 4]), dimension("b", ["x", "y"])])
    6
    """
    return None if any(one.range for one in space) else math.prod(len(one.levels) for one in space)


def start_of(space: Sequence[Dimension]) -> Parameters:
    """The first configuration."""
    return {one.name: one.levels[one.start] for one in space}


def faults(name: str, given: object) -> Iterator[str]:
    """A line for each fault of one entry of ``[tune.space]``.

    >>> list(faults("batch", [])), list(faults("batch", {"low": 0, "high": 4, "log": True}))
    (['tune.space.batch: no values'], ['tune.space.batch: a logarithmic range begins above 0; found low = 0'])
    """
    where = f"tune.space.{name}"
    if isinstance(given, Mapping):
        yield from (f"{where}: {fault}" for fault in _range_faults(given))
    elif not isinstance(given, list):
        yield f"{where}: expected a list of values, or a table with low and high; found {show(given)}"
    elif not given:
        yield f"{where}: no values"
    elif len(given) > MAX_VALUES:
        yield f"{where}: {len(given):,} values; at most {MAX_VALUES:,}"
    elif bad := [one for one in given if not isinstance(one, bool | int | float | str)]:
        yield f"{where}: a value is a number, a text, or true or false; found {show(bad[0])}"
    elif len({(type(one), one) for one in given}) < len(given):
        yield f"{where}: a value occurs twice"


def _range_faults(given: Mapping[str, Any]) -> Iterator[str]:
    unknown = sorted(set(given) - RANGE_KEYS)
    if unknown:
        yield f"a range has low, high and log; found {', '.join(unknown)}"
    low, high = given.get("low"), given.get("high")
    if not _is_number(low) or not _is_number(high):
        yield "a range needs the numbers low and high"
    elif low >= high:
        yield f"low is below high; found low = {low} and high = {high}"
    elif given.get("log") and low <= 0:
        yield f"a logarithmic range begins above 0; found low = {low}"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _range(given: Mapping[str, Any]) -> Range:
    low, high = given["low"], given["high"]
    return Range(low=low, high=high, log=bool(given.get("log")), whole=isinstance(low, int) and isinstance(high, int))


def _levels(bounds: Range, default: Value | None) -> tuple[Value, ...]:
    """Values of a range that cover it: powers of 2 times its low end, or evenly spaced; with ``default`` within it."""
    if bounds.log:
        count = math.floor(math.log2(bounds.high / bounds.low))
        points = [bounds.low * 2**power for power in range(count + 1)]
    else:
        width = (bounds.high - bounds.low) / (RANGE_LEVELS - 1)
        points = [bounds.low + index * width for index in range(RANGE_LEVELS)]
    if isinstance(default, int | float) and bounds.low <= default <= bounds.high:
        points.append(default)
    whole = [round(point) if bounds.whole else float(point) for point in (*points, bounds.high)]
    return tuple(sorted(set(whole)))
