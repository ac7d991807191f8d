"""Parse and print times, bytes and rates; the one place where nanoseconds become seconds.

On disk times are integer nanoseconds and sizes integer bytes; analysis holds float seconds (DESIGN §3.2).
"""

from __future__ import annotations

import math
import re

from allpull.errors import BadInput

NS_PER_S = 1_000_000_000
LARGEST_IN_FULL = 1e15  # beyond it digits are noise, and the number is printed with an exponent
SMALLEST_SPREAD = 1e-12  # of the value: a smaller one is rounding

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TIME_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")
_TIME_STEPS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"))
LEAST_S = 1e-12  # that is shown: less is an error of rounding
_BYTE_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def seconds(ns: float) -> float:
    """Nanoseconds as seconds.

    >>> seconds(1_500_000_000)
    1.5
    """
    return ns / NS_PER_S


def parse_time_s(text: str) -> float:
    """A time such as ``40 ms`` in seconds; a bare number is seconds.

    Raises:
        BadInput: it is not a finite number with a unit of time.

    >>> parse_time_s("40 ms"), parse_time_s("2min"), parse_time_s("0.5")
    (0.04, 120.0, 0.5)
    """
    number, unit = _split(text, "time", "40 ms")
    if unit == "":
        return number
    if unit not in _TIME_S:
        raise BadInput(f"'{text}' is not a time: no unit '{unit}'", hint=f"units: {', '.join(_TIME_S)}")
    return number * _TIME_S[unit]


def parse_bytes(text: str) -> int:
    """A size such as ``8MiB`` or ``25 MB`` in bytes (MB is 10^6, MiB is 2^20); a bare number is bytes.

    Raises:
        BadInput: it is not a finite number of at least 0 with a unit of size.

    >>> parse_bytes("8MiB"), parse_bytes("1.5 kB"), parse_bytes("64")
    (8388608, 1500, 64)
    """
    number, unit = _split(text, "size", "8MiB")
    prefix = unit.removesuffix("B").lower()
    scale = _DECIMAL.get(prefix) or _BINARY.get(prefix)
    if scale is None or number < 0 or (unit and not unit.endswith("B")):
        raise BadInput(f"'{text}' is not a size", hint="write it as 64, 64kB, 8MiB or 1.5GB")
    return round(number * scale)


def parse_rate_bytes_per_s(text: str) -> float:
    """A rate such as ``10 Gbit/s`` or ``1.2 GB/s`` in bytes per second.

    Raises:
        BadInput: it is not a positive rate with a unit.

    >>> parse_rate_bytes_per_s("10 Gbit/s"), parse_rate_bytes_per_s("1 MB/s")
    (1250000000.0, 1000000.0)
    """
    number, unit = _split(text, "rate", "10 Gbit/s")
    base = unit.removesuffix("/s")
    bits = base.endswith("bit")
    prefix = base.removesuffix("bit").removesuffix("B").lower()
    scale = _DECIMAL.get(prefix) or _BINARY.get(prefix)
    if not unit.endswith("/s") or not (bits or base.endswith("B")) or scale is None or number <= 0:
        raise BadInput(f"'{text}' is not a rate above 0", hint="write it as 10 Gbit/s or 1.2 GB/s")
    return number * scale / (8 if bits else 1)


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    number = float(match.group(1)) if match else math.nan
    if match is None or not math.isfinite(number):
        raise BadInput(f"'{text}' is not a {kind}", hint=f"write it as {example}")
    return number, match.group(2)


def show_time(time_s: float) -> str:
    """Seconds for people, three significant digits; less than a picosecond is 0.

    >>> show_time(0.0401), show_time(75.2), show_time(2.5e-6), show_time(7330), show_time(0.9999)
    ('40.1 ms', '75.2 s', '2.5 µs', '2 h 02 min', '1 s')
    >>> show_time(0.0009999), show_time(1e-17), show_time(float("nan"))
    ('1 ms', '0 s', 'nan s')
    """
    if abs(time_s) >= 100:
        return _show_long(time_s)
    rounded = 0.0 if abs(time_s) < LEAST_S else float(f"{time_s:.3g}")
    for bound, scale, unit in _TIME_STEPS:
        if 0 < abs(rounded) < bound:
            return f"{rounded * scale:.3g} {unit}"
    return f"{rounded:.3g} s"


def _show_long(time_s: float) -> str:
    whole = round(time_s)
    if abs(whole) < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def show_bytes(size: float) -> str:
    """Bytes for people, in binary units.

    >>> show_bytes(8388608), show_bytes(900)
    ('8 MiB', '900 B')
    """
    for bound, unit in _BYTE_STEPS:
        if abs(size) >= bound:
            return f"{show_count(size / bound) if size / bound >= 1000 else f'{size / bound:.3g}'} {unit}"
    return f"{size:.0f} B"


def show_count(value: float) -> str:
    """A rate or count with three significant digits and no exponent.

    >>> show_count(980.4), show_count(12.345), show_count(15234.0), show_count(0.5)
    ('980', '12.3', '15,200', '0.5')
    """
    if value == 0 or not math.isfinite(value) or abs(value) >= LARGEST_IN_FULL:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, 2 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 in percent.

    >>> percent(0.731), percent(0.9889, 1)
    ('73 %', '98.9 %')
    """
    return f"{100 * share:.{digits}f} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "rank"), counted(1200, "step")
    ('1 rank', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_steps(count: int, first: int, last: int) -> str:
    """``count`` steps from ``first`` to ``last``, some of which may be missing.

    >>> show_steps(20, 10, 29), show_steps(12, 10, 29)
    ('steps 10 to 29', '12 steps of 10 to 29')
    """
    whole = count == last - first + 1
    return f"steps {first:,} to {last:,}" if whole else f"{counted(count, 'step')} of {first:,} to {last:,}"


def show_spread(value: float, half_width: float) -> str:
    """A value with its spread, both rounded to the digits that the spread justifies.

    >>> show_spread(980.37, 12.1), show_spread(1523.4, 0.31), show_spread(1e300, 1), show_spread(-0.1, 3)
    ('980 ± 12', '1,523.4 ± 0.3', '1e+300', '0 ± 3')
    """
    shown, spread = show_spread_parts(value, half_width)
    return f"{shown} ± {spread}" if spread else shown


def show_spread_parts(value: float, half_width: float) -> tuple[str, str]:
    """As ``show_spread``, but the value and its spread separately; the spread is empty if it has no digit to show.

    >>> show_spread_parts(980.37, 12.1), show_spread_parts(1e300, 1)
    (('980', '12'), ('1e+300', ''))
    """
    if not SMALLEST_SPREAD * abs(value) < half_width < math.inf or abs(value) >= LARGEST_IN_FULL:
        return show_count(value), ""
    place = math.floor(math.log10(half_width))
    digits = max(0, -place if half_width / 10**place >= 2 else 1 - place)
    return f"{round(value, digits) + 0.0:,.{digits}f}", f"{half_width:,.{digits}f}"  # + 0.0: never "-0"
