"""How well the shipped recipes learn, on one rank and on several, and whether the number of ranks matters.

    python benchmarks/accuracy.py --recipe digits [--ranks 1 --ranks 2] [--seeds 3] [--set OPTION=VALUE]
        [--keep DIR] [--output FILE]

Trains a recipe by the command line with seeds 0, 1, … on each number of ranks. What is kept was computed here from the
last checkpoint's answers to the test part, by scikit-learn (which must be installed), and stands beside what the
trainer recorded: accuracy, or for several labels a sample micro and macro F1 and mean average precision.
`fashion-mnist` needs Debian's package dataset-fashion-mnist, or its folder with --data; for `twelve-bands` the set is
made (twelve_bands_data.py) and packed first, in 2.6 GB of room for temporary files, unless --data gives a folder with
the packs ``train`` and ``test``. Wall times are context only. With ``--keep`` what a run gave stays in DIR, and a study
that was broken off goes on with the next one; only runs of the same commit and options count.

Each number of ranks is held against the first one. The question is whether they have one mean, and Welch's test answers
it without taking their spreads to be equal (Welch 1947, Biometrika 34; degrees of freedom: Satterthwaite 1946,
Biometrics Bulletin 2). ``agree`` says that p is at least 0.05. Few seeds find only large differences, so the 95 %
interval of the difference is the thing to read: what lies outside of it is ruled out. Seeds are the same on each number
of ranks and so not quite independent, which makes the interval rather too wide than too narrow. A recipe's batch is for
a rank, so two ranks make half as many steps; --set train.global_batch=N has all make the same ones.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import twelve_bands_data
from allpull.analyse.effect import Part, satterthwaite
from allpull.analyse.learning import last_value
from allpull.analyse.student_t import beyond, quantile
from allpull.data.datasets.dataset import read as read_dataset
from allpull.data.loader.pack_feed import find_packs
from allpull.data.pack.read import Pack
from allpull.data.pack.statistics import statistics as channel_statistics
from allpull.rundir import layout
from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import read_run
from allpull.rundir.write import whole_json
from allpull.schema.spec import RunSpec, from_plain
from allpull.schema.trainspec import DataSpec
from allpull.train.checkpoint.format import Checkpoint
from allpull.train.checkpoint.format import read as read_checkpoint
from allpull.train.models.build import build
from stored import commit, keep

TWELVE_BANDS = "twelve-bands"
RECIPES = ("digits", "fashion-mnist", TWELVE_BANDS)
CLASSES = 19  # that the twelve bands are packed with
SURE = 0.95
TRAIN_PATCHES, TEST_PATCHES = 4000, 1000  # what the recipe was made for
AT_ONCE = 100  # samples in a forward pass
RECORDED = {
    "accuracy": "test_top1",
    "f1_micro": "test_f1_micro",
    "f1_macro": "test_f1_macro",
    "mean_average_precision": "test_map",
}
"""Our name of a score → the trainer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPart:
    """What a network is examined on: ``images`` [n, h, w, channels] as stored, ``labels`` [n] or [n, classes]."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    classes: int
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]


def test_part(data: DataSpec) -> TestPart:
    """The test part of what was trained on, with the mean and deviation of the training part; packs are to be raw."""
    if data.name != "pack":
        dataset = read_dataset(data.name, data.path)
        mean, std, test = dataset.mean, dataset.std, dataset.test
        return TestPart(images=test.images, labels=test.labels, classes=dataset.classes, mean=mean, std=std)
    train, tested = find_packs(data)
    with Pack.open(tested) as pack:
        images = np.stack([pack.pixels(record) for record in range(len(pack))])
        labels, classes = np.array(pack.labels), len(pack.header.classes)
    with Pack.open(train) as pack:
        found = channel_statistics(pack, channels=images.shape[3], threads=1)
    return TestPart(images=images, labels=labels, classes=classes, mean=found.mean, std=found.std)


def network(spec: RunSpec, checkpoint: Checkpoint, test: TestPart) -> nn.Module:
    """The network of a checkpoint: its moving average if it has one, with the mean of the ranks' batch statistics."""
    _, height, width, channels = test.images.shape
    model = build(spec.model, channels=channels, classes=test.classes, pixels=(height, width))
    model.load_state_dict(checkpoint.model if checkpoint.average is None else checkpoint.average)
    for name, buffer in model.named_buffers():
        own = [(rank.buffers if checkpoint.average is None else rank.average)[name] for rank in checkpoint.ranks]
        buffer.copy_(torch.stack(own).mean(0) if buffer.is_floating_point() else own[0])
    return model.eval()


def answers(model: nn.Module, test: TestPart) -> Tensor:
    """What ``model`` answers to all of ``test``, before any sigmoid or softmax: [n, classes]."""
    mean, std = (torch.tensor(one, dtype=torch.float32) for one in (test.mean, test.std))
    parts = []
    with torch.no_grad():
        for start in range(0, len(test.images), AT_ONCE):
            images = torch.from_numpy(test.images[start : start + AT_ONCE].astype(np.float32))
            parts.append(model(((images - mean) / std).permute(0, 3, 1, 2)))
    return torch.cat(parts)


def scores(logits: Tensor, labels: npt.NDArray[Any]) -> dict[str, float]:
    """The scores of ``logits`` [n, classes], by scikit-learn; of several ``labels`` [n, classes] those above one half.

    >>> scores(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 0]))
    {'accuracy': 0.5}
    """
    metrics = import_module("sklearn.metrics")  # needed for nothing else here, and without types
    if labels.ndim == 1:
        return {"accuracy": float(metrics.accuracy_score(labels, logits.argmax(1).numpy()))}
    said = (logits > 0).numpy()
    return {
        "f1_micro": float(metrics.f1_score(labels, said, average="micro", zero_division=0)),
        "f1_macro": float(metrics.f1_score(labels, said, average="macro", zero_division=0)),
        "mean_average_precision": float(metrics.average_precision_score(labels, logits.numpy(), average="macro")),
    }


def examined(directory: Path) -> dict[str, Any]:
    """What came of the run in ``directory``: scores computed here and as recorded, batch, epochs and test samples."""
    run = read_run(directory)
    spec = from_plain(RunSpec, run.record.spec)
    test = test_part(spec.data)
    newest = max((directory / layout.CHECKPOINTS).glob(layout.CHECKPOINT_NAMES))
    found = scores(answers(network(spec, read_checkpoint(newest), test), test), test.labels)
    return {
        "global_batch": spec.global_batch,
        "epochs": spec.train.epochs,
        "test_samples": len(test.labels),
        "scores": found,
        "recorded": {name: last_value(run.events, RECORDED[name]) for name in found},
    }


def trained(recipe: str, ranks: int, options: Sequence[str]) -> dict[str, Any]:
    """Train ``recipe`` on ``ranks`` ranks with ``--set`` of each of ``options``, and examine it.

    Raises:
        subprocess.CalledProcessError: the training failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "allpull", "train", recipe, "-n", str(ranks), "--out", scratch]
        start = time.perf_counter()
        subprocess.run([*command, *(word for one in options for word in ("--set", one))], check=True)
        wall_s = time.perf_counter() - start
        (directory,) = find_runs(Path(scratch))
        return {"ranks": ranks, **examined(directory), "wall_s": round(wall_s, 1)}


def once(recipe: str, ranks: int, seed: int, options: argparse.Namespace, data: Sequence[str]) -> dict[str, Any]:
    """What came of a run; one that is in the folder ``options.keep`` already is not made again."""
    asked = {"recipe": recipe, "ranks": ranks, "seed": seed, "set": options.set, "commit": commit()}
    place = options.keep and options.keep / f"{recipe}-{ranks}-{seed}.json"
    before = json.loads(place.read_text("utf-8")) if place and place.is_file() else {}
    if before.get("asked") == asked:
        return dict(before["row"])
    row = {"seed": seed, **trained(recipe, ranks, [*data, f"train.seed={seed}", *options.set])}
    if place:
        place.parent.mkdir(parents=True, exist_ok=True)
        whole_json(str(place), {"asked": asked, "row": row})
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Whether ``score`` has one mean on ``ranks`` and on ``base`` ranks; ``difference`` is the former − the latter.

    ``t``, ``freedom`` and ``p`` are None where no seed differs from another, ``interval`` then has no width.
    """

    score: str
    base: int
    ranks: int
    difference: float
    interval: tuple[float, float]
    t: float | None
    freedom: float | None
    p: float | None
    agree: bool


def compared(score: str, values: dict[int, list[float]], ranks: int) -> Comparison:
    """The values of ``ranks`` ranks, two or more, against those of the first number of ranks: Welch's test.

    >>> found = compared("accuracy", {1: [0.98, 0.99, 0.98], 2: [0.99, 0.98, 0.98]}, 2)
    >>> found.agree, round(abs(found.difference), 12), round(found.p or 0, 6)
    (True, 0.0, 1.0)
    """
    base = next(iter(values))
    first, second = values[base], values[ranks]
    difference = statistics.fmean(second) - statistics.fmean(first)
    sides = [Part(variance=statistics.variance(side) / len(side), freedom=len(side) - 1) for side in (first, second)]
    variance, freedom = satterthwaite(sides)
    error = math.sqrt(variance)
    reach = error * quantile((1 + SURE) / 2, freedom)
    p = beyond(abs(difference) / error, freedom) if error else None
    return Comparison(
        score=score,
        base=base,
        ranks=ranks,
        difference=difference,
        interval=(difference - reach, difference + reach),
        t=difference / error if error else None,
        freedom=freedom if error else None,
        p=p,
        agree=difference == 0 if p is None else p >= 1 - SURE,
    )


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each score its values, mean and deviation by ranks, and the comparisons; and how far the records were off."""
    found: dict[str, Any] = {}
    for name in rows[0]["scores"]:
        values: dict[int, list[float]] = {}
        for row in rows:
            values.setdefault(row["ranks"], []).append(row["scores"][name])
        repeated = min(map(len, values.values())) > 1
        found[name] = {
            "by_ranks": [
                {
                    "ranks": ranks,
                    "mean": statistics.fmean(some),
                    "sd": statistics.stdev(some) if len(some) > 1 else None,
                    "values": some,
                }
                for ranks, some in values.items()
            ],
            "compared": [asdict(compared(name, values, ranks)) for ranks in [*values][1:]] if repeated else [],
        }
    off = [
        abs(value - row["recorded"][name])
        for row in rows
        for name, value in row["scores"].items()
        if row["recorded"][name] is not None
    ]
    return {"scores": found, "largest_difference_to_recorded": max(off, default=None)}


def make_bands(folder: Path, train: int, test: int) -> Path:
    """Make and pack the 12-band set below ``folder``, 0.4 MB a patch; the folder of its two packs."""
    pictures = twelve_bands_data.Pictures()
    for half, patches in zip(twelve_bands_data.HALVES, (train, test), strict=True):
        written = twelve_bands_data.write_half(folder, half, patches, 0, pictures)
        packed = folder / "packs" / half
        command = [sys.executable, "-m", "allpull", "pack", str(written), str(packed), "--classes", str(CLASSES)]
        subprocess.run(command, check=True)
        shutil.rmtree(written)
    return folder / "packs"


def main() -> None:
    """Train all, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    parser.add_argument("--ranks", type=int, action="append", help="as often as numbers are wanted; 1 and 2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of the data set, where it is not the usual one")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="as for allpull train")
    parser.add_argument("--train-patches", type=int, default=TRAIN_PATCHES, help="of twelve-bands, where it is made")
    parser.add_argument("--test-patches", type=int, default=TEST_PATCHES)
    parser.add_argument("--keep", type=Path, help="folder for what each run gave; those in it are not made again")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data
        if data is None and options.recipe == TWELVE_BANDS:
            data = make_bands(Path(scratch), options.train_patches, options.test_patches)
        told = [f"data.path={data.resolve()}"] if data is not None else []
        rows = [
            once(options.recipe, ranks, seed, options, told)
            for seed in range(options.seeds)
            for ranks in options.ranks or (1, 2)
        ]
    keep(options.output, {"recipe": options.recipe, **summary(rows), "runs": rows})


if __name__ == "__main__":
    main()
