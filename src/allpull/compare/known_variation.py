"""Known run-to-run variation, given as a percentage or as the result of an earlier comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from allpull.analyse.effect import MIN_RUNS
from allpull.compare.metrics import METRICS, Metric
from allpull.errors import BadInput
from allpull.rundir import safe_open
from allpull.schema.compared import CompareResult, Spread

MAX_BYTES = 4 << 20  # of a stored result; real ones have about 20 KB
MAX_PERCENT = 100.0  # a spread as large as the value itself decides nothing

_PERCENT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")
_NUMBER = re.compile(r"\s*[-+]?[0-9]*\.?[0-9]+\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVariation:
    """``of_ratios`` applies to every rate and time that is compared as a ratio and does not depend on the seed.

    ``by_metric`` takes precedence.
    """

    of_ratios: Spread | None
    by_metric: Mapping[str, Spread]

    def of(self, metric: Metric) -> Spread | None:
        """The spread of ``metric`` between runs; None where it is not known."""
        return self.by_metric.get(
            metric.name, self.of_ratios if metric.scale == "ratio" and not metric.by_seed else None
        )


def parse_known_variation(given: str | Path | float) -> KnownVariation:
    """The variation between runs: ``0.8%``, the same as a number (0.008), or the path of a result of `allpull compare`.

    Raises:
        BadInput: none of these, or the result rests on too few runs to show how they vary.

    >>> parse_known_variation("0.8%").of(METRICS["throughput"]).sd, parse_known_variation(0.25).of_ratios.sd
    (0.008, 0.25)
    """
    if isinstance(given, int | float):
        return _of_percent(given * 100, f"{given:g}")
    text = str(given)
    match = _PERCENT.fullmatch(text)
    if match:
        return _of_percent(float(match.group(1)), repr(text))
    if _NUMBER.fullmatch(text):
        raise BadInput(f"between-run variation {text!r} has no unit", hint=f"write {text.strip()}%")
    return _stored(Path(text))


def _of_percent(percent: float, shown: str) -> KnownVariation:
    if not 0 < percent <= MAX_PERCENT:
        raise BadInput(f"between-run variation {shown} is not between 0 and 100 %", hint="such as 0.8%")
    return KnownVariation(of_ratios=Spread(sd=percent / 100, freedom=None), by_metric={})


def _stored(path: Path) -> KnownVariation:
    where = safe_open.shown_path(path)
    if not path.is_file():
        raise BadInput(
            f"between-run variation {where}: no such file, and no percentage",
            hint="write a standard deviation such as 0.8%, or give a file that `allpull compare --json` printed",
        )
    root = safe_open.checked_directory(path.parent)
    answer = safe_open.document(CompareResult, "compare", safe_open.read_whole(root, path.name, MAX_BYTES), where)
    known = {change.metric: change.between_runs for change in answer.metrics if change.metric in METRICS}
    usable = {name: spread for name, spread in known.items() if spread is not None and _is_enough(spread)}
    if not usable:
        raise BadInput(
            f"between-run variation {where}: it compared too few runs to show how they vary",
            hint=f"compare {MIN_RUNS} or more repeats on one side, and keep that result",
        )
    return KnownVariation(of_ratios=None, by_metric=usable)


def _is_enough(spread: Spread) -> bool:
    return spread.freedom is not None and spread.freedom >= MIN_RUNS - 1
