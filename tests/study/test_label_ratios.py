"""Dell's question: FP16 with 128 samples over FP32 with 64, two series that differ in more than one parameter."""

from __future__ import annotations

import pytest

from allpull.schema.results import Interval
from allpull.schema.studied import StudyPoint
from allpull.study.results import _label_ratios, base_value, series_ratios


def point(label: str, precision: str, batch: int, ranks: int, rate: float) -> StudyPoint:
    series = {"precision": precision, "batch": batch}
    return StudyPoint(
        id=f"{label}{ranks}",
        parameters={**series, "ranks": ranks},
        series=series,
        ranks=ranks,
        hosts=1,
        runs=[],
        throughput=Interval(value=rate, low=rate, high=rate),
        speedup=None,
        efficiency=None,
        labels=[label],
    )


def test_labelled_series_are_compared_at_each_size() -> None:
    points = [
        point(*row)
        for row in (
            ("FP32", "fp32", 64, 1, 350.0),
            ("FP32", "fp32", 64, 2, 700.0),
            ("FP16", "o2", 128, 1, 630.0),
            ("FP16", "o2", 128, 2, 1190.0),
        )
    ]
    ratios = list(_label_ratios(points))
    assert [(one.value, one.base, one.ranks, one.ratio.value) for one in ratios] == [
        ("FP16", "FP32", 1, 1.8),
        ("FP16", "FP32", 2, 1.7),
    ]
    assert list(_label_ratios(points[:2])) == []


def test_the_base_of_a_parameter_is_the_exact_value_wherever_it_is_listed() -> None:
    points = [point("", name, 64, 1, rate) for name, rate in (("bf16", 180.0), ("fp32", 100.0), ("fp16", 190.0))]
    ratios = [(one.value, one.base, one.ratio.value) for one in series_ratios(points)]
    assert ratios == [("bf16", "fp32", pytest.approx(1.8)), ("fp16", "fp32", pytest.approx(1.9))]
    assert [base_value(values) for values in ([0, 1], [True, False], ["a", "off"])] == [0, False, "off"]
