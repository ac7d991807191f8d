"""The large recipes train as they are shipped: all that is said is where the packs are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("simplejpeg")

from tests.conftest import allpull
from tests.data.conftest import as_jpeg, make_pack, synthetic  # noqa: F401  make_pack is a fixture

from allpull.config.load import load_spec
from allpull.schema.spec import RunSpec, from_plain
from allpull.train.models.build import trainable_parameters


def photographs(root: Path, count: int) -> Path:
    """An ImageFolder of cuts of one photograph."""
    whole = synthetic(0)
    for number in range(count):
        folder = root / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(as_jpeg(whole.crop((9 * number, 0, 9 * number + 260, 280))))
    return root


def patches(root: Path, count: int) -> Path:
    """Arrays of 12 bands with 43 labels, of which some are set."""
    chance = np.random.default_rng(0)
    root.mkdir()
    np.save(root / "images.npy", chance.integers(0, 10_000, (count, 120, 120, 12), np.uint16))
    np.save(root / "labels.npy", chance.integers(0, 2, (count, 43), np.uint8))
    return root


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("recipe", "source", "test", "score"),
    [
        ("imagenet-resnet50", photographs, "val", "test_top1"),
        pytest.param("bigearthnet-resnet50", patches, "test", "test_map", marks=pytest.mark.slow),
    ],
)
def test_two_steps_on_a_few_samples(
    tmp_path: Path,
    make_pack: Callable[..., object],  # noqa: F811
    recipe: str,
    source: Callable[[Path, int], Path],
    test: str,
    score: str,
) -> None:
    """Two samples are one step an epoch, whatever the batch: the first is scored, and after the second it stops."""
    for part, count in (("train", 2), (test, 2)):
        kind = {"dtype": "<u2"} if source is patches else {"kind": "jpeg-restart"}
        make_pack(source(tmp_path / f"{part} files", count), to=f"packs/{part}", **kind)
    sets = (f"data.path={tmp_path / 'packs'}", "train.stop_after=2", "observe.counters=false")
    options = [word for text in sets for word in ("--set", text)]
    done = allpull("train", recipe, "-n", "1", "--out", str(tmp_path / "runs"), *options)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    events = [json.loads(line) for line in (directory / "events/rank-00000.jsonl").read_text().splitlines()[1:]]
    assert sum(one.get("name") == score and one["value"] is not None for one in events) == 1
    told = [one["value"] for one in events if one.get("name") == "trainable_parameters"]
    channels, classes, side = (3, 2, 224) if source is photographs else (12, 43, 120)
    model = load_spec(recipe).model
    assert told == [trainable_parameters(model, channels=channels, classes=classes, pixels=(side, side))]
    steps = (directory / "steps/rank-00000.jsonl").read_text().splitlines()[1:]
    assert [json.loads(step)["samples"] for step in steps] == [2, 2]
    ran = from_plain(RunSpec, json.loads((directory / "run.json").read_text())["spec"])
    assert ran.model == load_spec(recipe).model


def test_the_networks_are_those_of_the_studies() -> None:
    imagenet, bigearthnet = (load_spec(name).model for name in ("imagenet-resnet50", "bigearthnet-resnet50"))
    assert trainable_parameters(imagenet, channels=3, classes=1000, pixels=(224, 224)) == 25_557_032
    assert trainable_parameters(bigearthnet, channels=12, classes=43, pixels=(120, 120)) == 23_915_115


def test_the_rate_of_the_imagenet_recipe_is_2_048_at_2_048_samples_a_step() -> None:
    """As its source states it: DeepLearningExamples, ``--lr 2.048 --optimizer-batch-size 2048``."""
    assert load_spec("imagenet-resnet50").train.lr * 2048 / 256 == pytest.approx(2.048)
