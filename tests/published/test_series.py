"""Published series: numbers as printed, notes as fields, learning curves as shares."""

from __future__ import annotations

import pytest

from allpull.errors import UnknownName
from allpull.published.series import published_series, series_names


def test_every_series_is_read() -> None:
    series = published_series(series_names())
    assert sum(len(one.points) for one in series) == 758, "760 rows, two of which state no number of GPUs"
    assert all(point.images_per_s is None or point.images_per_s > 0 for one in series for point in one.points)
    assert all(one.source and one.model for one in series)


def test_marconi100() -> None:
    single, multi, workers = published_series(["m100_single", "m100_multi", "m100_workers"])
    assert [(p.ranks, p.epoch_time_s, p.images_per_s) for p in single.points] == [
        (1, 3466, 740),
        (2, 2232, 1149),
        (3, 1977, 1298),
        (4, 1926, 1332),
    ]
    assert (multi.points[-1].nodes, multi.points[-1].speedup, multi.points[-1].speedup_base) == (
        16,
        13.86,
        "1 node (4 GPUs)",
    )
    assert [p.workers for p in workers.points] == [1, 2, 4, 8, 16]
    assert "2x" in str(single.points[0].caveat)


def test_curves_of_hal() -> None:
    (hal,) = published_series(["hal_feb"])
    assert [curve.ranks for curve in hal.curves] == [2, 4, 8, 16, 32, 64]
    assert [point.curve for point in hal.points] == [curve.run for curve in hal.curves]
    largest = hal.curves[-1].epochs
    assert (largest[0].end_s, len(largest)) == (0.0, 90)
    assert max(epoch.test_top1 or 0 for epoch in largest) == pytest.approx(0.7523, abs=5e-5)
    assert hal.points[0].train_time_s == 74211.11


def test_pop_of_claix() -> None:
    (claix,) = published_series(["claix_pop"])
    found = {p.ranks: (p.parallel_efficiency, p.load_balance, p.communication_efficiency) for p in claix.points}
    assert found == {64: (0.34, 0.99, 0.33), 48: (0.27, 0.99, 0.26)}
    assert all(p.images_per_s is None and p.speedup is None for p in claix.points)


def test_an_unknown_series_names_a_near_one() -> None:
    with pytest.raises(UnknownName, match="m100_singel"):
        published_series(["m100_singel"])
