"""Dell's question: FP16 with 128 samples over FP32 with 64, two series that differ in more than one parameter."""

from __future__ import annotations

from allpull.schema.results import Interval
from allpull.schema.studied import StudyPoint
from allpull.study.results import _label_ratios


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
