"""The grammar of a gate, and when it fails: where the data show it, and never from a point estimate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.compare.gate import Gate, find_metric, judge, parse_gate
from allpull.compare.metrics import METRICS
from allpull.errors import AllpullError, BadInput
from allpull.schema.compared import Change
from allpull.schema.results import Interval


@pytest.mark.parametrize(
    ("text", "metric", "below", "threshold"),
    [
        ("throughput < -3%", "throughput", True, 0.97),
        (" throughput<-3 % ", "throughput", True, 0.97),
        ("throughput < −3%", "throughput", True, 0.97),  # a minus sign, as word processors make it
        ("throughput < 2%", "throughput", True, 1.02),
        ("step_s > 5%", "step_s", False, 1.05),
        ("step_s > 1e1%", "step_s", False, 1.1),
        ("test_top1 < -0.5pp", "test_top1", True, -0.005),
        ("efficiency.parallel < -2 pp", "efficiency.parallel", True, -0.02),
        ("parallel < -2pp", "efficiency.parallel", True, -0.02),
        ("backward > 1.5 ms", "phases.backward", False, 0.0015),
        ("phases.input > 200us", "phases.input", False, 0.0002),
    ],
)
def test_gates_are_read(text: str, metric: str, below: bool, threshold: float) -> None:
    gate = parse_gate(text)
    assert (gate.metric, gate.below) == (metric, below)
    assert gate.threshold == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("throughput", "cannot be read"),
        ("throughput < three%", "cannot be read"),
        ("throughput < -3% or step_s > 5%", "cannot be read"),
        ("x" * 10_000, "cannot be read"),
        ("throughput <= -3%", "'<=' is not supported"),
        ("throughput == 0%", "'==' is not supported"),
        ("throughput < -3", "without a unit"),
        ("throughput < -3pp", "in 'pp'"),
        ("throughput < 2ms", "in 'ms'"),
        ("phases.input > 3%", "in '%'"),
        ("test_top1 < -1%", "in '%'"),
        ("phases.input > 2 furlongs", "no unit 'furlongs'"),
        ("throughput < -100%", "nothing can fall by 100 %"),
        ("throughput < -1e999%", "not a number"),
        ("throughput < -1.2.3%", "not a number"),
        ("thruput < -3%", "did you mean 'throughput'?"),
        ("input > 2ms", "may be phases.input or efficiency.input"),
    ],
)
def test_what_is_not_a_gate_is_an_error(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_gate(text)
    assert message in refused.value.message
    assert refused.value.exit_code == 2
    assert len(refused.value.message) < 1000


@given(text=st.text(max_size=60))
def test_any_text_is_a_gate_or_one_clear_error(text: str) -> None:
    try:
        gate = parse_gate(text)
    except AllpullError:
        return
    assert gate.metric in METRICS


def test_every_metric_has_a_gate_in_its_own_unit() -> None:
    for name, metric in METRICS.items():
        unit = "%" if metric.scale == "ratio" else "pp" if metric.unit == "share" else "ms"
        assert parse_gate(f"{name} > 1 {unit}").metric == name
        assert find_metric(name) is metric


def changed(value: float, low: float | None, high: float | None) -> Change:
    return Change(
        metric="throughput",
        unit="samples/s",
        scale="ratio",
        before=1,
        after=value,
        change=Interval(value=value, low=low, high=high),
        within_runs=None,
        decision="not decidable",
        basis="both sides",
    )


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.90, 0.96, "failed"),
        (0.90, 0.97, "unknown"),  # the point estimate is far below the threshold, the interval reaches it
        (0.80, 1.00, "unknown"),
        (0.97, 0.99, "passed"),
        (1.00, 1.10, "passed"),
        (None, None, "unknown"),
    ],
)
def test_a_gate_fails_only_where_all_of_the_interval_lies_beyond(
    low: float | None, high: float | None, outcome: str
) -> None:
    value = 0.5 if low is None or high is None else (low + high) / 2
    assert judge(parse_gate("throughput < -3%"), changed(value, low, high)).outcome == outcome


def test_a_metric_that_was_not_measured_fails_nothing() -> None:
    assert judge(parse_gate("throughput < -3%"), None).outcome == "unknown"


@given(threshold=st.floats(0.5, 1.5), half=st.floats(0, 0.3), value=st.floats(0.5, 1.5), below=st.booleans())
def test_both_directions_mirror_each_other(threshold: float, half: float, value: float, below: bool) -> None:
    """Around 1, ``< t`` on a change is ``> 1/t`` on its inverse."""
    gate = Gate(text="", metric="throughput", below=below, threshold=threshold)
    mirror = Gate(text="", metric="throughput", below=not below, threshold=1 / threshold)
    low, high = value * (1 - half), value * (1 + half)
    if min(abs(low / threshold - 1), abs(high / threshold - 1)) < 1e-9:
        return  # on the edge, rounding decides
    assert (
        judge(gate, changed(value, low, high)).outcome == judge(mirror, changed(1 / value, 1 / high, 1 / low)).outcome
    )
