"""The lab of the global batch: digits trained to a target by real ranks, for each batch and rule of the rate."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, get_args

import numpy as np

from allpull.data.datasets.digits import read
from allpull.errors import BadInput
from allpull.kernel import usable_cpus
from allpull.labs.ranks import run_here
from allpull.predict.terms.convergence import fitted
from allpull.published.convergence import MLPERF_LARS, editions, reference_points
from allpull.schema.base import tag
from allpull.schema.labs import (
    BatchForecast,
    BatchPoint,
    BatchResult,
    BatchTraining,
    CurvePoint,
    EpochsFit,
    OverSeeds,
    PublishedConvergence,
    PublishedEpochs,
    RateRule,
)
from allpull.units import counted

RULES: tuple[RateRule, ...] = get_args(RateRule)
BATCHES = (32, 64, 128, 256, 512, 1024)
MOST_TRAININGS = 500
MOST_EPOCHS = 400
MOST_RANKS = 8
START_S, TRAINING_S = 120.0, 60.0  # patience, many times what a laptop takes
BRIGHTEST = 16.0  # of a pixel


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLab:
    """Train with each global batch of ``batches`` until ``target``, for ``max_epochs`` at most, with ``seeds`` each.

    The smallest batch has the learning rate ``rate``. ``ranks`` None: as many as this machine has CPUs, up to 4.
    """

    batches: tuple[int, ...] = BATCHES
    ranks: int | None = None
    target: float = 0.95
    max_epochs: int = 40
    seeds: int = 3
    rate: float = 0.03
    warmup_epochs: float = 5.0

    def check(self) -> None:
        """Whether this can be done here.

        Raises:
            BadInput: it cannot; says what and why.
        """
        cpus = usable_cpus()
        if not 1 <= self.world <= min(cpus, MOST_RANKS):
            raise BadInput(
                f"-n {self.world}: this machine has {counted(cpus, 'CPU')}, and a rank is timed on one of its own",
                hint=f"1 to {min(cpus, MOST_RANKS)}",
            )
        samples = read("").train.labels.size
        if not self.batches or len(set(self.batches)) < len(self.batches):
            raise BadInput("--batches: each global batch once", hint="such as --batches 32,128,512")
        for batch in self.batches:
            if not 1 <= batch <= samples or batch % self.world:
                raise BadInput(
                    f"--batches: {batch} samples cannot be shared equally by {counted(self.world, 'rank')}"
                    if 1 <= batch <= samples
                    else f"--batches: {batch} samples; 1 to {samples:,} of the digits can be a batch",
                    hint=f"multiples of {self.world}, up to {samples // self.world * self.world:,}",
                )
        if not 0.5 <= self.target <= 1:
            raise BadInput(f"--target {self.target:g}: an accuracy from 0.5 to 1", hint="such as --target 0.95")
        if not 1 <= self.max_epochs <= MOST_EPOCHS or self.seeds < 1:
            raise BadInput(f"--epochs is 1 to {MOST_EPOCHS}, and --seeds 1 or more")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise BadInput(f"--rate {self.rate:g}: a positive number", hint="such as --rate 0.03")
        if not 0 <= self.warmup_epochs <= self.max_epochs:
            raise BadInput(f"--warmup {self.warmup_epochs:g}: 0 to {self.max_epochs} epochs")
        if len(self.plan()) > MOST_TRAININGS:
            raise BadInput(f"{len(self.plan())} trainings are more than {MOST_TRAININGS}", hint="fewer --seeds")

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return min(usable_cpus(), 4) if self.ranks is None else self.ranks

    @property
    def rank_counts(self) -> list[int]:
        """Numbers of ranks that train with warm-up: powers of two, and all."""
        return sorted({*(1 << power for power in range(self.world.bit_length())), self.world})

    def plan(self) -> list[dict[str, Any]]:
        """Every training; seeds outermost, so that a slow minute of the machine hits all points alike."""
        return [
            {"ranks": ranks, "batch": batch, "rule": rule, "seed": seed}
            for seed in range(self.seeds)
            for batch in sorted(self.batches)
            for rule in RULES
            for ranks in (self.rank_counts if rule == "warmup" else [self.world])
        ]


def run_batch(lab: BatchLab, progress: Callable[[str], None] = lambda _: None) -> BatchResult:
    """Do ``lab``; each training that ends is a line for ``progress``.

    Raises:
        BadInput: it cannot be done here.
        AllpullError: a rank failed.
    """
    lab.check()
    began_s = time.monotonic()
    digits = read("")
    train, test = (part.images[..., 0].reshape(-1, 64) / BRIGHTEST - 0.3 for part in (digits.train, digits.test))
    plan = lab.plan()
    settings = {
        "rate": lab.rate,
        "base_batch": min(lab.batches),
        "warmup_epochs": lab.warmup_epochs,
        "max_epochs": lab.max_epochs,
        "target": lab.target,
        "trainings": plan,
    }
    program = files("allpull.labs.programs").joinpath("batch_ddp.py")
    with as_file(program) as script, tempfile.TemporaryDirectory(prefix="allpull-lab-") as name:
        folder = Path(name)
        np.savez(
            folder / "data.npz",
            x=train.astype(np.float32),
            y=digits.train.labels,
            x_test=test.astype(np.float32),
            y_test=digits.test.labels,
        )
        (folder / "plan.json").write_text(json.dumps(settings), encoding="utf-8")
        lines = _Lines(folder / "trainings.jsonl", len(plan), progress)
        command = [str(script), str(folder / "data.npz"), str(folder / "plan.json"), name]
        run_here(command, lab.world, START_S + TRAINING_S * len(plan), lines.look)
        lines.look()
    return _result(lab, lines.trainings, time.monotonic() - began_s)


class _Lines:
    """The trainings that rank 0 has written so far."""

    def __init__(self, path: Path, planned: int, progress: Callable[[str], None]) -> None:
        self._path, self._planned, self._progress = path, planned, progress
        self._read_bytes = 0
        self.trainings: list[BatchTraining] = []

    def look(self) -> None:
        """Read what is new, and report it."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            one = _training(json.loads(line))
            self.trainings.append(one)
            ended = f"{one.epochs:.1f} epochs" if one.reached else "target not reached"
            self._progress(
                f"{len(self.trainings)} of {self._planned}: batch {one.global_batch:,}, {one.rule}, "
                f"{counted(one.ranks, 'rank')}, seed {one.seed}: {ended}"
            )


def _training(fields: dict[str, Any]) -> BatchTraining:
    return BatchTraining(
        ranks=fields["ranks"],
        global_batch=fields["batch"],
        rule=fields["rule"],
        seed=fields["seed"],
        reached=fields["reached"],
        epochs=fields["epochs"],
        seconds=fields["seconds"],
        samples_per_s=fields["samples"] / fields["seconds"],
        curve=[CurvePoint(epochs=epochs, accuracy=accuracy) for epochs, accuracy in fields["curve"]],
    )


def _result(lab: BatchLab, trainings: list[BatchTraining], seconds: float) -> BatchResult:
    digits = read("")
    batches = sorted(lab.batches)
    points = list(_points(lab, trainings))
    fit = _fit(points, trainings, lab.world)
    return BatchResult(
        schema=tag("lab"),
        target=lab.target,
        max_epochs=lab.max_epochs,
        ranks=lab.world,
        batches=batches,
        seeds=lab.seeds,
        rate=lab.rate,
        warmup_epochs=lab.warmup_epochs,
        samples=digits.train.labels.size,
        test_samples=digits.test.labels.size,
        seconds=seconds,
        points=points,
        trainings=trainings,
        fit=fit,
        forecast=_forecast(points, batches, lab.world, digits.train.labels.size),
        published=published(),
    )


def _points(lab: BatchLab, trainings: Sequence[BatchTraining]) -> Iterator[BatchPoint]:
    for ranks in lab.rank_counts:
        for rule in RULES:
            for batch in sorted(lab.batches):
                own = [one for one in trainings if (one.ranks, one.rule, one.global_batch) == (ranks, rule, batch)]
                if not own:
                    continue
                yield BatchPoint(
                    ranks=ranks,
                    global_batch=batch,
                    rule=rule,
                    rate=lab.rate * (1 if rule == "fixed" else batch / min(lab.batches)),
                    trainings=len(own),
                    reached=sum(one.reached for one in own),
                    samples_per_s=over_seeds([one.samples_per_s for one in own]),
                    epochs=over_seeds([one.epochs if one.reached else math.inf for one in own]),
                    seconds=over_seeds([one.seconds if one.reached else math.inf for one in own]),
                    spent_epochs=max(one.epochs for one in own),
                    spent_seconds=max(one.seconds for one in own),
                )


def over_seeds(values: Sequence[float]) -> OverSeeds:
    """Median and range of ``values``, of which those that are not known are infinite.

    >>> over_seeds([3.0, math.inf, 2.0])
    OverSeeds(median=3.0, low=2.0, high=None)
    """
    median, low, high = (
        one if math.isfinite(one) else None for one in (statistics.median(values), min(values), max(values))
    )
    return OverSeeds(median=median, low=low, high=high)


def _fit(points: Sequence[BatchPoint], trainings: Sequence[BatchTraining], ranks: int) -> EpochsFit | None:
    """E(B) of the warm-up, where no training failed: those that did are no number of epochs."""
    whole = {
        one.global_batch
        for one in points
        if (one.ranks, one.rule) == (ranks, "warmup") and one.reached == one.trainings
    }
    return epochs_fit(
        [
            (one.global_batch, one.epochs)
            for one in trainings
            if (one.ranks, one.rule) == (ranks, "warmup") and one.global_batch in whole
        ]
    )


def epochs_fit(points: Sequence[tuple[int, float]]) -> EpochsFit | None:
    """E0 and Bc through (global batch, epochs); None: fewer than two batches."""
    batches = {batch for batch, _ in points}
    if len(batches) < 2:
        return None
    first, critical = fitted(points, np.random.default_rng(0), 1).fit
    return EpochsFit(
        first_epochs=first,
        critical_batch=critical if math.isfinite(critical) else None,
        smallest_batch=min(batches),
        largest_batch=max(batches),
    )


def epochs_at(fit: EpochsFit, batch: float) -> float:
    """E0 (1 + B ÷ Bc)."""
    return fit.first_epochs * (1 + (batch / fit.critical_batch if fit.critical_batch else 0.0))


def _forecast(points: Sequence[BatchPoint], batches: Sequence[int], ranks: int, samples: int) -> list[BatchForecast]:
    """Measured epochs × samples ÷ samples/s, of which one rank's at the smallest batch is multiplied by the ranks."""
    of_batch = {one.global_batch: one for one in points if (one.ranks, one.rule) == (ranks, "warmup")}
    alone = next(one for one in points if (one.ranks, one.rule, one.global_batch) == (1, "warmup", batches[0]))
    speed, first = alone.samples_per_s.median, of_batch[batches[0]].epochs.median
    assert speed is not None
    return [
        BatchForecast(
            ranks=batch // batches[0],
            global_batch=batch,
            seconds=epochs * samples / (speed * batch / batches[0]),
            seconds_if_epochs_stayed=first * samples / (speed * batch / batches[0]),
        )
        for batch in batches
        if batch % batches[0] == 0
        and batch // batches[0] > ranks
        and (epochs := of_batch[batch].epochs.median) is not None
        and first is not None
    ]


def published() -> PublishedConvergence:
    """MLPerf's reference points of its latest edition for ResNet-50."""
    points = reference_points()
    fit = epochs_fit([(one.global_batch, one.mean_epochs) for one in points])
    assert fit is not None
    return PublishedConvergence(
        source=MLPERF_LARS.source,
        edition=editions()[-1],
        recipe=f"{MLPERF_LARS.network}, {MLPERF_LARS.optimizer}, {MLPERF_LARS.target}",
        points=[
            PublishedEpochs(
                global_batch=one.global_batch,
                trainings=len(one.epochs),
                mean=one.mean_epochs,
                low=min(one.epochs),
                high=max(one.epochs),
            )
            for one in points
        ],
        fit=fit,
    )
