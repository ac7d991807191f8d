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
pytestmark = [pytest.mark.torch, pytest.mark.slow]
ASKED = {"model": "resnet18", "batch": 8, "device": "cpu"}


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
    return [sys.modules["trainer_shared"].Rate(images_per_s=one, cpu_s_per_image=cpu_s) for one in images_per_s]


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
    shared = sys.modules["trainer_shared"]
    moments = iter([100.0, 104.0])
    monkeypatch.setattr(shared.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(shared, "_cpu_s", iter([1.0, 9.0]).__next__)
    stop = shared.Stopwatch(setting)
    assert [stop(), stop(), stop()] == [False, False, True]
    found = stop.rate([torch.tensor(2.0), 1.5, 1.0])
    assert found == shared.Rate(images_per_s=4.0, cpu_s_per_image=0.5, first_loss=2.0, last_loss=1.0)  # 16 pictures


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
    found, products, absent = peers.measure(bench(peers, setting, rounds=2), peers.Kept(None, {}))
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
    first, _, _ = peers.measure(bench(peers, setting), peers.Kept(kept, ASKED))
    measured = len(asked)
    again, _, _ = peers.measure(bench(peers, setting), peers.Kept(kept, ASKED))
    assert len(asked) == measured  # nothing is measured twice
    assert again == first
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:-1]) + "\n")
    peers.measure(bench(peers, setting), peers.Kept(kept, ASKED))
    assert kept.read_text().splitlines() == lines


def test_a_failure_of_our_own_is_no_absence(peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(peers, monkeypatch, absent="allpull")
    with pytest.raises(peers.Failed, match="No module named 'allpull'"):
        peers.measure(bench(peers, setting), peers.Kept(None, {}))


@pytest.fixture
def one_batch(peers: Any, setting: Any, tmp_path: Path) -> Any:
    """Eight pictures of 32 pixels, again and again."""
    options = argparse.Namespace(pictures=24, model="resnet18", size=32, batch=8, warm_up=1, steps=2, workers=1, set=[])
    return replace(peers.prepare(options, tmp_path), data="one batch")


@pytest.fixture
def exact(peers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the others' trainings, in float64, where no rounding leads them apart, and without decay."""
    others, data = (sys.modules[name] for name in ("trainer_others", "trainer_data"))
    network = others.network_of
    monkeypatch.setattr(others, "network_of", lambda of: network(of).double())
    monkeypatch.setattr(others, "sgd", lambda model: torch.optim.SGD(model.parameters(), lr=data.RATE, momentum=0.9))
    monkeypatch.setattr(data, "Prepare", partial(in_float64, data.Prepare))
    return others


def watch(setting: Any) -> Any:
    return sys.modules["trainer_shared"].Stopwatch(setting)


def test_a_training_of_allpull_is_that_of_the_example(exact: Any, one_batch: Any) -> None:
    """But for the decay that allpull keeps from norms."""
    theirs = exact.example(one_batch, watch(one_batch))
    more = ("train.weight_decay=0", "model.dtype=float64")
    ours = sys.modules["trainer_loops"].ours(one_batch, watch(one_batch), more)
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert len(ours) == one_batch.in_all
    assert ours[-1] < ours[0]


def test_the_loop_of_torchvision_is_the_same_training(exact: Any, one_batch: Any) -> None:
    """With the network and the batch of all ways; its own are for where torchvision can be imported."""
    hidden = dict.fromkeys(("torchvision", "torchvision.models", "torchvision.datasets", "torchvision.transforms"))
    with pytest.MonkeyPatch.context() as patch:
        for name, nothing in hidden.items():
            patch.setitem(sys.modules, name, nothing)  # type: ignore[arg-type]  # None: it cannot be imported
        found = exact.torchvision(one_batch, watch(one_batch))
    assert found == pytest.approx(exact.example(one_batch, watch(one_batch)), rel=1e-9)


def test_the_loop_of_torchvision_scales_its_float16(peers: Any, one_batch: Any) -> None:
    others, mixed = sys.modules["trainer_others"], replace(one_batch, model="resnet8", precision="bf16")
    made, scaler = list[dict[str, Any]](), torch.amp.GradScaler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.amp, "GradScaler", lambda kind, **how: made.append(how) or scaler(kind, **how))
        for name in ("torchvision.models", "torchvision.datasets", "torchvision.transforms"):
            patch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # as above
        found = others.torchvision(mixed, watch(mixed))
    exact = others.example(replace(mixed, precision="fp32"), watch(mixed))
    assert made == [{"enabled": True}]
    assert found[0] == pytest.approx(exact[0], rel=0.02)
    assert found[0] != exact[0]
    assert found[-1] < found[0]


def test_accuracies_are_shares_of_those_who_guessed_right_in_time(peers: Any) -> None:
    output = torch.tensor([[0.1, 0.2, 0.9], [0.5, 0.4, 0.1], [0.3, 0.2, 0.1]])
    found = sys.modules["trainer_others"]._right_within(output, torch.tensor([2, 1, 2]), (1, 2, 5))
    assert [share.item() for share in found] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_what_allpull_was_asked_for_and_did_not_do_has_no_rate(peers: Any, one_batch: Any) -> None:
    """A recorded step that is made call by call would pass for a fast recording, or a slow one."""
    ours = sys.modules["trainer_loops"].ours
    with pytest.raises(RuntimeError, match=r"train\.cuda_graph: steps run eagerly"):
        ours(one_batch, watch(one_batch), ("train.cuda_graph=true",))


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


def test_each_way_of_allpull_is_held_against_the_fastest_of_the_others_in_its_round(peers: Any) -> None:
    case = peers.Case(precision="bf16", threads=1, data="pictures")
    found = {case: {"allpull": rates(30.0, 30.0), "example": rates(10.0, 20.0), "timm": rates(20.0, 15.0)}}
    (row,) = peers.over_fastest_peer(found)
    assert (row["way"], row["fastest"]) == ("allpull", "timm")
    assert row["ratio"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert peers.over_fastest_peer({case: {"allpull": rates(30.0)}}) == []


def test_the_share_of_the_peak_is_of_dense_bf16(peers: Any) -> None:
    """5,000 images/s of 24.5 GFLOP on an H100 are 12.4 % of 989.4 TFLOP/s; fp32 is not held against it."""
    cases = [peers.Case(precision=precision, threads=1, data="pictures") for precision in ("bf16", "fp32")]
    found = {case: {"allpull": rates(5000.0)} for case in cases}
    products = dict.fromkeys((("bf16", 1), ("fp32", 1)), 700e12)
    bf16, fp32 = peers.summary(found, 24.5e9, products, peers.peak_of("NVIDIA H100 80GB HBM3"))
    assert bf16["share_of_peak"] == pytest.approx(0.1238, abs=1e-4)
    assert bf16["share_of_products"] == 0.175
    assert bf16["times_example"] is None  # the example could not be had
    assert fp32["share_of_peak"] is None


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H100", None),
        ("NVIDIA GH200 480GB", None),
        ("cpu", None),
    ],
)
def test_a_peak_is_of_one_kind_of_gpu_and_of_the_whole(peers: Any, device: str, peak: float | None) -> None:
    assert peers.peak_of(device) == peak


@pytest.mark.parametrize(("minutes", "rounds"), [(1.0, 1), (2.0, 2), (60.0, 3)])
def test_no_round_is_begun_that_would_not_end_in_time(
    peers: Any, setting: Any, monkeypatch: pytest.MonkeyPatch, minutes: float, rounds: int
) -> None:
    """Here a round takes 60 s: products and seven ways on pictures, products and six on one batch, 2 s each, twice."""
    answers(peers, monkeypatch)
    clock = [0.0]

    def slowly(name: str, measure: Any) -> str:
        clock[0] += 2.0
        return str(measure())

    monkeypatch.setattr(peers.time, "monotonic", lambda: clock[0])
    found, _, _ = peers.measure(replace(bench(peers, setting, rounds=3), minutes=minutes), slowly)
    assert {len(rates) for ways in found.values() for rates in ways.values()} == {rounds}
    assert clock[0] == rounds * 60.0


def test_a_round_that_is_broken_off_counts_for_no_way(peers: Any) -> None:
    one, other = (peers.Case(precision="bf16", threads=1, data=data) for data in peers.DATA)
    found = {one: {"allpull": rates(1.0, 2.0), "example": rates(1.0, 2.0)}, other: {"allpull": rates(1.0)}}
    assert {len(rates) for ways in peers.evened(found).values() for rates in ways.values()} == {1}


def test_on_a_gpu_the_defaults_are_those_of_the_goals(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = sys.modules["trainer_asked"]
    monkeypatch.setattr(asking, "ON_GPU", True)
    options = asking.asked("", [])
    assert (options.model, options.size, options.batch, options.precisions) == ("resnet50", 224, 256, "bf16")
    assert options.minutes < 10
    assert options.warm_up > 12  # a step is recorded in the twelfth
    assert asking.asked("", ["--quick"]).model == "resnet18"
    monkeypatch.setattr(asking, "ON_GPU", False)
    assert asking.asked("", []).minutes == float("inf")


def test_more_pictures_than_are_made_are_further_names_of_these(
    peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asking = sys.modules["trainer_asked"]
    monkeypatch.setattr(asking, "DISTINCT", 6)
    files = sorted(asking.pictures(tmp_path, 20).rglob("*.jpg"))
    assert len(files) == 20
    assert len({path.stat().st_ino for path in files}) == 6
    assert {path.parent.name for path in files} == {"class0", "class1", "class2", "class3"}
