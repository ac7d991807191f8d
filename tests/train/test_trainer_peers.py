"""The comparison of trainers compares like with like: pairs of a round, timed steps, peers that are there."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
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
    return peers.Setting(precision="fp32", data="pictures", model="resnet18", **numbers, **places)


def bench(peers: Any, setting: Any, rounds: int = 1) -> Any:
    return peers.Bench(setting=setting, threads=(1,), rounds=rounds)


def rates(*images_per_s: float, cpu_s: float | None = None) -> list[Any]:
    return [sys.modules["trainer_loops"].Rate(images_per_s=one, cpu_s_per_image=cpu_s) for one in images_per_s]


def test_a_ratio_is_of_one_round_so_that_a_slow_round_changes_rates_alone(peers: Any) -> None:
    pictures, one_batch = (peers.Case(precision="fp32", threads=1, data=data) for data in peers.DATA)
    found = {  # the machine was busy in the second round
        pictures: {
            "example": rates(10.0, 1.0, 20.0, cpu_s=0.3),
            "allpull": rates(20.0, 2.0, 40.0, cpu_s=0.2),
            "allpull, observed": rates(19.0, 1.9, 38.0),
        },
        one_batch: {"example": rates(12.5, 1.25, 25.0), "allpull": rates(25.0, 2.5, 50.0)},
    }
    products = {("fp32", 1): 1e11}
    rows = {(row["data"], row["way"]): row for row in peers.summary(found, 1e9, products)}
    row = rows["pictures", "allpull"]
    assert row["images_per_s"] == {"median": 20.0, "low": 2.0, "high": 40.0}
    assert row["times_example"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert row["times_example_cpu"]["median"] == 1.5
    assert row["share_of_products"] == 0.2
    assert rows["pictures", "allpull, observed"]["cpu_ms_per_image"] is None
    real = {row["way"]: row["ratio"]["median"] for row in peers.real_over_synthetic(found)}
    assert real == {"example": 0.8, "allpull": 0.8}
    (row,) = peers.observed_over_unobserved(found)
    assert row["ratio"]["median"] == 0.95


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
    found = stop.rate([torch.tensor(2.0), 1.5, 1.0])
    assert found == loops.Rate(images_per_s=4.0, cpu_s_per_image=0.5, first_loss=2.0, last_loss=1.0)  # 16 pictures


def answers(peers: Any, monkeypatch: pytest.MonkeyPatch, absent: str = "") -> list[tuple[str, str]]:
    """What is asked for from now on, of children that answer at once; ``absent`` is not installed."""
    asked = []

    def child(way: str, one: Any) -> str:
        asked.append((way, one.precision))
        if way == absent:
            raise peers.Failed(f"ModuleNotFoundError: No module named '{way.lower()}'")
        return "1e12" if way == "products" else '{"images_per_s": 1.0}'

    monkeypatch.setattr(peers, "child", child)
    monkeypatch.setattr(peers, "observed", lambda _: '{"images_per_s": 1.0}')
    return asked


def test_a_peer_that_is_not_installed_is_told_with_its_reason(
    peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(peers, monkeypatch, absent="Lightning")
    found, products, absent = peers.measure(bench(peers, setting, rounds=2), peers.Kept(None))
    assert absent["Lightning"] == "ModuleNotFoundError: No module named 'lightning'"
    assert len([way for way, _ in asked if way == "Lightning"]) == 1
    assert len(found) == 4  # two precisions, two kinds of data
    assert all("Lightning" not in ways for ways in found.values())
    assert all(len(rates) == 2 for ways in found.values() for rates in ways.values())
    assert products == {("fp32", 1): 1e12, ("bf16", 1): 1e12}


def test_a_comparison_that_was_broken_off_goes_on(
    peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, asked = tmp_path / "kept" / "rates.jsonl", answers(peers, monkeypatch)
    first, _, _ = peers.measure(bench(peers, setting), peers.Kept(kept))
    measured = len(asked)
    again, _, _ = peers.measure(bench(peers, setting), peers.Kept(kept))
    assert len(asked) == measured  # nothing is measured twice
    assert again == first
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:-1]) + "\n")
    peers.measure(bench(peers, setting), peers.Kept(kept))
    assert kept.read_text().splitlines() == lines


def test_a_failure_of_our_own_is_no_absence(peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(peers, monkeypatch, absent="allpull")
    with pytest.raises(peers.Failed, match="No module named 'allpull'"):
        peers.measure(bench(peers, setting), peers.Kept(None))


@pytest.fixture
def one_batch(peers: Any, setting: Any, tmp_path: Path) -> Any:
    """Eight pictures of 32 pixels, again and again."""
    options = argparse.Namespace(pictures=24, model="resnet18", size=32, batch=8, warm_up=1, steps=2, workers=1, set=[])
    return replace(peers.prepare(options, tmp_path), data="one batch")


def test_a_training_of_allpull_is_that_of_the_example(one_batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where no rounding leads them apart, and without the decay that allpull keeps from norms."""
    loops, data = (sys.modules[name] for name in ("trainer_loops", "trainer_data"))
    network = loops.network_of
    monkeypatch.setattr(loops, "network_of", lambda of: network(of).double())
    monkeypatch.setattr(loops, "sgd", lambda model: torch.optim.SGD(model.parameters(), lr=data.RATE, momentum=0.9))
    monkeypatch.setattr(data, "Prepare", partial(in_float64, data.Prepare))
    theirs = loops.example(one_batch, loops.Stopwatch(one_batch))
    ours = loops.ours(one_batch, loops.Stopwatch(one_batch), ("train.weight_decay=0", "model.dtype=float64"))
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert len(ours) == one_batch.in_all
    assert ours[-1] < ours[0]


def in_float64(prepare: Any, facts: Any, *, device: Any, dtype: Any) -> Any:
    """As it was asked for, but more exact."""
    assert dtype == torch.float32
    return prepare(facts, device=device, dtype=torch.float64)


def test_one_batch_is_the_same_for_all(one_batch: Any) -> None:
    """What torch's loader hands to the others is what allpull's own feed gives, normalised, whenever it is asked."""
    batches = list(sys.modules["trainer_data"].loader_of(one_batch))
    images, targets = batches[0]
    assert images.shape == (8, 3, 32, 32)
    assert images.is_contiguous()
    assert images.mean().abs() < 0.5  # normalised by the statistics of the pack
    assert all(torch.equal(images, again) and torch.equal(targets, labels) for again, labels in batches)
