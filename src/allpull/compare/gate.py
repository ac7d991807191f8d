"""Gates for CI: ``throughput < -3%`` fails where the interval shows it, not where only the point estimate does.

A gate fails if the whole interval lies beyond the threshold, passes if none of it does, and is unknown otherwise:
with too few runs, or a difference about as large as the threshold.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from allpull.compare.metrics import METRICS, Metric
from allpull.errors import BadInput, UnknownName
from allpull.schema.compared import Change, GateResult, Outcome
from allpull.units import parse_time_s

MAX_TEXT = 200  # characters of a gate; longer text is refused
EXAMPLES = "such as 'throughput < -3%', 'step_s > 5%', 'phases.input > 2 ms' or 'test_top1 < -0.5pp'"

_GATE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|=|<|>)\s*([-+−]?)\s*([0-9][0-9.eE+-]*|\.[0-9]+)\s*(\S*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """``threshold`` is a ratio (0.97) or a difference in the metric's unit; ``below``: smaller values fail."""

    text: str
    metric: str
    below: bool
    threshold: float


def parse_gate(text: str) -> Gate:
    """Parse one gate, such as ``throughput < -3%``.

    Raises:
        BadInput: wrong form, unknown metric, or a unit that the metric is not compared in.

    >>> gate = parse_gate("throughput < -3%")
    >>> gate.metric, gate.below, round(gate.threshold, 6)
    ('throughput', True, 0.97)
    """
    match = _GATE.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise BadInput(f"gate {text[:MAX_TEXT]!r} cannot be read", hint=f"write METRIC < NUMBER, {EXAMPLES}")
    name, relation, sign, digits, unit = match.groups()
    if relation not in {"<", ">"}:
        raise BadInput(
            f"gate {text!r}: '{relation}' is not supported",
            hint=f"an interval lies below a threshold or above it: write < or >, {EXAMPLES}",
        )
    metric = find_metric(name)
    number = _number(f"{'-' if sign in {'-', '−'} else ''}{digits}", text)
    return Gate(
        text=text.strip(), metric=metric.name, below=relation == "<", threshold=_threshold(metric, number, unit, text)
    )


def find_metric(name: str) -> Metric:
    """The metric called ``name``; ``backward`` stands for ``phases.backward`` if no other metric ends so.

    Raises:
        UnknownName: no metric matches.
        BadInput: more than one matches.
    """
    if name in METRICS:
        return METRICS[name]
    matches = [full for full in METRICS if full.rpartition(".")[2] == name]
    if len(matches) == 1:
        return METRICS[matches[0]]
    if matches:
        raise BadInput(f"'{name}' may be {' or '.join(matches)}", hint=f"write {matches[0]}")
    raise UnknownName("metric to compare by", name[:80], METRICS)


def judge(gate: Gate, change: Change | None) -> GateResult:
    """The outcome of ``gate``; ``change`` is None where its metric was not measured on both sides."""
    interval = change.change if change else None
    if interval is None:
        return _result(gate, "unknown", f"{gate.metric} was not measured on both sides")
    if interval.low is None or interval.high is None:
        return _result(gate, "unknown", f"the run-to-run variation of {gate.metric} is not known")
    beyond = interval.high < gate.threshold if gate.below else interval.low > gate.threshold
    within = interval.low >= gate.threshold if gate.below else interval.high <= gate.threshold
    if beyond:
        return _result(gate, "failed", "the whole interval lies beyond the threshold")
    if within:
        return _result(gate, "passed", "the whole interval lies on the good side of the threshold")
    return _result(gate, "unknown", "the threshold lies within the interval: more or longer runs would narrow it")


def _result(gate: Gate, outcome: Outcome, reason: str) -> GateResult:
    return GateResult(gate=gate.text, metric=gate.metric, threshold=gate.threshold, outcome=outcome, words=reason)


def _number(digits: str, text: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"gate {text!r}: '{digits}' is not a number", hint=EXAMPLES)
    return number


Kind = Literal["%", "pp", "time"]
_KINDS: dict[Kind, str] = {
    "%": "the change in percent, such as -3%",
    "pp": "the change in percentage points, such as -0.5pp",
    "time": "the change in time per step, such as 2 ms",
}


def _threshold(metric: Metric, number: float, unit: str, text: str) -> float:
    """The threshold as a ratio, or in the metric's unit.

    Raises:
        BadInput: the metric is not compared in this unit, or the ratio is not above 0.
    """
    kind: Kind = "%" if metric.scale == "ratio" else "pp" if metric.unit == "share" else "time"
    fits = unit == kind if kind != "time" else unit not in {"", "%", "pp"}
    if not fits:
        how = f"in '{unit}'" if unit else "without a unit"
        raise BadInput(f"gate {text!r}: {metric.name} cannot be compared {how}", hint=f"give {_KINDS[kind]}")
    if kind == "time":
        return parse_time_s(f"{number!r} {unit}")
    if kind == "%" and number <= -100:
        raise BadInput(f"gate {text!r}: nothing can fall by 100 % or more", hint=EXAMPLES)
    return 1 + number / 100 if kind == "%" else number / 100
