"""What a published series says of scaling, relative to its own smallest size."""

from __future__ import annotations

import pytest

from allpull.analyse.published_scaling import RelativePoint, relative
from allpull.published.series import published_series, series_names
from allpull.schema.studied import PublishedSeries


def of(name: str) -> dict[int, RelativePoint]:
    return {one.point.ranks: one for one in relative(published_series([name])[0])}


def changed(name: str, **points: dict[str, object]) -> PublishedSeries:
    """The published series ``name`` with fields of its points changed, by ``ranks_N``."""
    series = published_series([name])[0]
    made = [point.model_copy(update=points.get(f"ranks_{point.ranks}", {})) for point in series.points]
    return series.model_copy(update={"points": made})


def test_hal_by_its_images_per_second() -> None:
    """2 GPUs 1,582.04 images/s, 64 GPUs 33,042 or so: 65.3 % of linear, as its audit finds."""
    points = of("hal_feb")
    assert min(points) == 2
    assert (points[2].speedup, points[2].efficiency) == (1.0, 1.0)
    assert points[4].speedup == pytest.approx(3004.51 / 1582.04)
    assert points[64].times_ranks == 32
    assert points[64].efficiency == pytest.approx(0.653, abs=0.0005)


def test_a_stated_speed_up_over_another_base_is_not_one_over_the_smallest_size() -> None:
    """Marconi100's 8 GPUs state 1.92 over 4 GPUs; the series begins at 8."""
    points = of("m100_multi")
    assert points[8].point.speedup == 1.92
    assert points[8].speedup == 1.0
    assert points[64].speedup == pytest.approx(18456 / 2560)
    bare = {f"ranks_{ranks}": {"images_per_s": None, "epoch_time_s": None} for ranks in points}
    assert relative(changed("m100_multi", **bare)) == []


def test_stated_speed_ups_serve_where_nothing_else_is_published() -> None:
    """Dell's figure 2 has speed-ups alone, over one GPU."""
    points = of("dell_mxnet_fp32")
    assert points[16].speedup == 15.4
    assert points[16].efficiency == pytest.approx(15.4 / 16)


def test_one_way_serves_for_a_whole_series() -> None:
    """Points of which one has its rate alone, and another its time alone, are not one curve."""
    only_time = changed("m100_single", ranks_4={"images_per_s": None})
    by_time = {one.point.ranks: one.speedup for one in relative(only_time)}
    assert by_time == pytest.approx({1: 1.0, 2: 3466 / 2232, 3: 3466 / 1977, 4: 3466 / 1926})


def test_a_size_that_occurs_twice_is_no_scaling() -> None:
    assert relative(published_series(["m100_workers"])[0]) == []
    assert relative(published_series(["m100_amp"])[0]) == []


def test_every_series_begins_at_one_and_efficiency_is_its_speed_up_per_rank() -> None:
    shown = [points for name in series_names() if (points := relative(published_series([name])[0]))]
    assert len(shown) > 50
    for points in shown:
        assert (points[0].speedup, points[0].times_ranks, points[0].efficiency) == (1.0, 1.0, 1.0)
        for one in points:
            assert one.efficiency == pytest.approx(one.speedup / one.times_ranks)
