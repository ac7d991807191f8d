"""Declare and check options of a cluster file that carry a unit, such as ``delay = "40 ms"``, and convert them to SI.

A record holds the text as written; ``in_si`` returns numbers, with the unit in the name: ``delay`` becomes ``delay_s``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allpull.config.typed import show
from allpull.errors import BadInput
from allpull.units import parse_rate_bytes_per_s, parse_time_s

MAX_TIME_S = 3600.0  # far longer than any useful step
MAX_RATE_BYTES_PER_S = 1.25e12  # 10 Tbit/s, a few times the fastest link; the kernel's tools overflow far above

_UNIT = "unit"
_SIGNED = "signed"
_MOST = "most"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The name of a unit, how it is parsed and shown, and the suffix of its SI name."""

    word: str
    example: str
    parse: Callable[[str], float]
    show: Callable[[float], str]
    suffix: str


_UNITS: Mapping[str, _Unit] = {
    "time": _Unit(
        word="a time",
        example="40 ms",
        parse=parse_time_s,
        show=lambda time_s: f"{time_s:g} s",
        suffix="_s",
    ),
    "rate": _Unit(
        word="a rate",
        example="10 Gbit/s",
        parse=parse_rate_bytes_per_s,
        show=lambda bytes_per_s: f"{bytes_per_s * 8 / 1e12:g} Tbit/s",
        suffix="_bytes_per_s",
    ),
}


def needed(help_text: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Any:
    """One required field: its meaning and its bounds."""
    bounds = {name: bound for name, bound in (("ge", ge), ("gt", gt), ("le", le)) if bound is not None}
    return field(metadata={"help": help_text, "bounds": bounds})


def time_option(help_text: str, default: str | None = None, *, signed: bool = False, le: float = MAX_TIME_S) -> Any:
    """A field for a time with its unit, between 0 and ``le`` s; ``signed``: at least -``le`` s.

    Without a default the field is required.
    """
    return _quantity("time", help_text, default, signed=signed, most=le)


def rate_option(help_text: str, default: str | None = None) -> Any:
    """A field for a rate above 0 with its unit; without a default it is required."""
    return _quantity("rate", help_text, default, signed=False, most=MAX_RATE_BYTES_PER_S)


def _quantity(unit: str, help_text: str, default: str | None, *, signed: bool, most: float) -> Any:
    metadata = {"help": help_text, "bounds": {}, _UNIT: unit, _SIGNED: signed, _MOST: most}
    return field(metadata=metadata) if default is None else field(default=default, metadata=metadata)


def number(record: Any, name: str) -> float | None:
    """Option ``name`` of ``record`` in SI units; None if omitted."""
    item = next(item for item in dataclasses.fields(record) if item.name == name)
    text: str = getattr(record, name)
    return _UNITS[item.metadata[_UNIT]].parse(text) if text else None


def in_si(record: Any) -> dict[str, Any]:
    """``record`` as JSON-compatible values: quantities as floats in SI units, None if omitted.

    >>> @dataclass(frozen=True)
    ... class Pause:
    ...     rank: int
    ...     delay: str = time_option("how long")
    >>> in_si(Pause(rank=3, delay="40 ms"))
    {'rank': 3, 'delay_s': 0.04}
    """
    plain: dict[str, Any] = {}
    for item in dataclasses.fields(record):
        if _UNIT in item.metadata:
            plain[item.name + _UNITS[item.metadata[_UNIT]].suffix] = number(record, item.name)
        else:
            plain[item.name] = getattr(record, item.name)
    return plain


def check(kind: type, table: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """One line for each invalid quantity in ``table``, and the table with valid ones in their place.

    ``where`` is the TOML path of the table, ending with a dot.
    """
    sound = dict(table)
    faults: list[str] = []
    for item in dataclasses.fields(kind):
        if _UNIT not in item.metadata or item.name not in table:
            continue
        unit, value = _UNITS[item.metadata[_UNIT]], table[item.name]
        fault = _fault(unit, value, signed=item.metadata[_SIGNED], most=item.metadata[_MOST])
        if fault:
            faults.append(f"{where}{item.name}: {fault}")
            sound[item.name] = unit.example
    return sound, faults


def _fault(unit: _Unit, value: object, *, signed: bool, most: float) -> str | None:
    expected = f"expected {unit.word} with its unit, such as '{unit.example}'"
    if not isinstance(value, str):
        return f"{expected}; found {show(value)}"
    try:
        parsed = unit.parse(value)
    except BadInput:
        above = ", above 0" if unit.suffix != "_s" else ""
        return f"{expected}{above}; found {show(value)}"
    if parsed < 0 and not signed:
        return f"{expected}, at least 0; found {show(value)}"
    if abs(parsed) > most:
        return f"{expected}, at most {unit.show(most)}{' either way' if signed else ''}; found {show(value)}"
    return None
