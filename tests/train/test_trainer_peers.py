"""The comparison of trainers compares like with like: pairs of a round, timed steps, peers that are there."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def peers() -> Any:
    """The script."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        return import_module("trainer_peers")
    finally:
        sys.path[:] = before


@pytest.fixture
def setting(peers: Any) -> Any:
    """Two steps of eight pictures, after one that warms up."""
    places = dict.fromkeys(("folder", "pack", "recipe"), "nowhere")
    numbers = {"threads": 1, "workers": 1, "size": 32, "batch": 8, "warm_up": 1, "steps": 2}
    return peers.Setting(precision="fp32", model="resnet18", **numbers, **places)


def bench(peers: Any, setting: Any, rounds: int = 1) -> Any:
    return peers.Bench(setting=setting, threads=(1,), rounds=rounds)


def test_a_ratio_is_of_one_round_so_that_a_slow_round_changes_rates_alone(peers: Any) -> None:
    ways = {"example": (10.0, 1.0, 20.0), "allpull": (20.0, 2.0, 40.0)}  # the machine was busy in the second round
    ways |= {"allpull, observed": (19.0, 1.9, 38.0), "allpull, cached batch": (25.0, 2.5, 50.0)}
    found = {("fp32", 1, way): [peers.Rate(images_per_s=rate) for rate in rates] for way, rates in ways.items()}
    rows = {row["way"]: row for row in peers.summary(found, 1e9, "cpu")}
    assert rows["allpull"]["images_per_s"] == {"median": 20.0, "low": 2.0, "high": 40.0}
    assert rows["allpull"]["times_example"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert rows["allpull"]["cpu_ms_per_image"] is rows["allpull"]["share_of_peak"] is None
    (row,) = peers.within(found)
    assert row["real_over_cached"]["median"] == 0.8
    assert row["observed_over_unobserved"]["median"] == 0.95


def test_the_share_of_the_peak_is_of_a_device_whose_peak_is_known(peers: Any) -> None:
    found = {("bf16", 1, "example"): [peers.Rate(images_per_s=1000.0)]}
    (row,) = peers.summary(found, 98.9e9, "NVIDIA H200")
    assert row["share_of_peak"] == 0.1


def test_a_resnet18_is_counted_as_three_times_its_forward_pass(peers: Any, setting: Any) -> None:
    """1.814 GMAC forward at 224 pixels (He et al. 2015: 1.8); the first layer needs no gradient of its images."""
    at_224 = replace(setting, size=224)
    first = 112 * 112 * 64 * 7 * 7 * 3
    head = 512 * (1000 - 4)  # four classes here
    assert peers.flop_per_image(at_224) == pytest.approx(2 * (3 * (1.814e9 - head) - first), rel=0.001)


def test_the_stopwatch_stops_after_the_timed_steps_and_counts_their_pictures_alone(
    peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = sys.modules["trainer_loops"]
    moments = iter([100.0, 104.0])
    monkeypatch.setattr(loops.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(loops, "_cpu_s", iter([1.0, 9.0]).__next__)
    stop = loops.Stopwatch(setting)
    assert [stop(), stop(), stop()] == [False, False, True]
    assert stop.rate() == loops.Rate(images_per_s=4.0, cpu_s_per_image=0.5)  # 16 pictures in 4 s


def test_a_peer_that_is_not_installed_is_told_with_its_reason(
    peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def child(way: str, one: Any) -> Any:
        asked.append((way, one.precision))
        if way == "Lightning":
            raise peers.Failed("ModuleNotFoundError: No module named 'lightning'")
        return peers.Rate(images_per_s=1.0)

    monkeypatch.setattr(peers, "child", child)
    monkeypatch.setattr(peers, "observed", lambda _: peers.Rate(images_per_s=1.0))
    found, absent = peers.measure(bench(peers, setting, rounds=2))
    assert absent["Lightning"] == "ModuleNotFoundError: No module named 'lightning'"
    assert len([way for way, _ in asked if way == "Lightning"]) == 1
    assert ("fp32", 1, "Lightning") not in found
    assert all(len(rates) == 2 for rates in found.values())


def test_a_failure_of_our_own_is_no_absence(peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(*_: Any) -> Any:
        raise peers.Failed("error: no pack there")

    monkeypatch.setattr(peers, "child", child)
    monkeypatch.setattr(peers, "observed", child)
    monkeypatch.setattr(peers, "LOOPS", {"allpull": None})
    with pytest.raises(peers.Failed, match="no pack there"):
        peers.measure(bench(peers, setting))
