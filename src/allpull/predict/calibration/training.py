"""What runs show of a whole training: epochs to an accuracy, epochs beside their steps, power, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import Epochs, epochs_of
from allpull.analyse.epochs.times import time_to_accuracy
from allpull.analyse.io.over_time import energy_of_epochs
from allpull.analyse.steps.pauses import pause_spans
from allpull.errors import BadInput
from allpull.predict.calibration.parameters import Floats
from allpull.units import NS_PER_S

RECIPE = {
    "data": ("name", "limit", "size", "crop", "min_area", "shift_pixels", "flip", "turn", "mixup", "first_size"),
    "model": ("name", "width", "norm", "weights"),
    "train": (
        *("optimizer", "momentum", "nesterov", "weight_decay", "decay", "clip_norm", "schedule", "label_smoothing"),
        *("ema_half_life", "sync_norm"),
    ),
}
"""Options of the trainer that E0 and Bc belong to; learning rate, warm-up and length follow the batch."""
WINDOWS = 10  # of a run, whose mean powers are resampled


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedAccuracy:
    """The (global batch, epochs) of trainings of one recipe that reached an accuracy, and what to know of them."""

    name: str
    points: tuple[tuple[float, float], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochParts:
    """An epoch of a run: samples of all ranks, and seconds beside its steps.

    ``by_all`` is the evaluation that all ranks share; ``fixed`` is the rest (an evaluation of some ranks, checkpoints,
    the start and the end of an epoch), which does not depend on the number of ranks.
    """

    samples: float
    by_all: float
    fixed: float
    ranks: int

    def seconds(self, ranks: int, rng: np.random.Generator, draws: int) -> Floats:
        """The same of a job of ``ranks`` ranks, (draws,).

        A shared evaluation has a part that the ranks divide and one that each of them pays. One run does not tell which
        is larger: the draws have any share of both.
        """
        divided = rng.uniform(0, 1, draws)
        return self.fixed + self.by_all * (divided * self.ranks / ranks + 1 - divided)


def epoch_parts(runs: Sequence[AlignedRun]) -> EpochParts | None:
    """Those of the run with the most ranks that has a complete epoch; None where there is none."""
    for run in sorted(runs, key=lambda one: -one.data.record.ranks):
        averaged = epochs_of(run).averaged
        samples = [epoch.samples for epoch in averaged if epoch.samples is not None]
        if not averaged or len(samples) < len(averaged):
            continue
        mean_s = {
            name: sum(epoch.parts_ns[name] for epoch in averaged) / len(averaged) / NS_PER_S
            for name in averaged[0].parts_ns
        }
        spans = pause_spans(run.data.events).filter(pl.col("name") == "evaluation")
        is_shared = spans["rank"].n_unique() == run.data.record.ranks
        by_all = mean_s["evaluation"] if is_shared else 0.0
        return EpochParts(
            samples=sum(samples) / len(samples),
            by_all=by_all,
            fixed=sum(mean_s[name] for name in ("evaluation", "checkpoint", "start", "other")) - by_all,
            ranks=run.data.record.ranks,
        )
    return None


def reached_accuracy(runs: Sequence[AlignedRun], wanted: float) -> ReachedAccuracy:
    """The epochs that ``runs``, of one program, took to an accuracy of ``wanted``, a fraction.

    Raises:
        BadInput: ``wanted`` is no fraction, no run reached it, or their recipes differ.
    """
    if not 0 < wanted < 1:
        raise BadInput(f"an accuracy of {wanted:g} is no fraction", hint="such as --target 0.759")
    points, missed, recipes, metric = list[tuple[float, float]](), list[str](), list[dict[str, Any]](), "accuracy"
    for run in runs:
        epochs = epochs_of(run)
        answer = time_to_accuracy(run, epochs, wanted)
        if answer is None:
            continue
        metric, batch = answer.metric, _global_batch(run, epochs)
        if answer.epoch is None:
            best = "none" if answer.best is None else f"{answer.best:.3g}"
            missed.append(f"{run.data.record.id}: its best is {best}")
        elif batch is not None:
            points.append((batch, answer.epoch + 1.0))
            recipes.append(_recipe(run.data.record.spec))
    if not points:
        reason = "; ".join(missed) or "none reported an accuracy, or its global batch"
        raise BadInput(
            f"no run reached {wanted:g}: {reason}", hint="state --epochs, or --epochs-from a published recipe"
        )
    differing = sorted({key for one in recipes for key in one if one[key] != recipes[0].get(key)})
    if differing:
        raise BadInput(
            f"the recipes of these runs differ in {', '.join(differing)}: their epochs to an accuracy do not compare",
            hint="give runs that differ in ranks and batch alone, or state --epochs",
        )
    return ReachedAccuracy(
        name=f"{wanted:g} of {metric}", points=tuple(points), notes=tuple(_notes(len(points), missed))
    )


def _notes(reached: int, missed: Sequence[str]) -> Iterator[str]:
    yield f"the epochs are those of {reached} of these runs, of their recipe alone"
    if missed:
        yield f"runs that did not reach the target are left out, so that it may take longer: {'; '.join(missed)}"


def _global_batch(run: AlignedRun, epochs: Epochs) -> float | None:
    """Samples of one step over all ranks: as stated, else as its epochs have them."""
    stated = run.data.record.global_batch
    if stated is not None:
        return float(stated)
    known = [one for one in epochs.complete if one.samples and one.steps]
    return None if not known else float(known[0].samples or 0) / known[0].steps


def _recipe(spec: Mapping[str, Any]) -> dict[str, Any]:
    sections = {name: section for name in RECIPE if isinstance(section := spec.get(name), dict)}
    return {f"{name}.{key}": section.get(key) for name, section in sections.items() for key in RECIPE[name]}


def measured_power(runs: Sequence[AlignedRun], rng: np.random.Generator, draws: int) -> Floats | None:
    """Mean power of the accelerators per rank in W, (draws,), of the largest run that has it throughout; else None.

    From ``WINDOWS`` equal parts of the time of its steps, resampled: steps next to each other have the same power.
    """
    for run in sorted(runs, key=lambda one: -one.data.record.ranks):
        data = run.data
        hosts = pl.DataFrame(
            [(rank, header.host) for rank, header in data.headers.items()], schema=["rank", "host"], orient="row"
        )
        if data.gpus.is_empty() or hosts.is_empty() or data.steps.is_empty():
            continue
        spans = (
            data.steps.join(hosts, on="rank")
            .group_by("host")
            .agg(pl.col("begin_ns").min().alias("begin"), pl.col("end_ns").max().alias("end"))
        )
        edges = [
            (host, part, begin + (end - begin) * part // WINDOWS, begin + (end - begin) * (part + 1) // WINDOWS)
            for host, begin, end in spans.rows()
            for part in range(WINDOWS)
        ]
        windows = pl.DataFrame(edges, schema=["host", "epoch", "begin_ns", "end_ns"], orient="row")
        used = energy_of_epochs(data.gpus, windows)
        if {host for host, *_ in edges} - set(data.gpus["host"].unique()) or any(one.energy_j is None for one in used):
            continue
        length_s = float((windows["end_ns"] - windows["begin_ns"]).mean()) / NS_PER_S  # type: ignore[arg-type]  # not empty
        power_w = np.array([one.energy_j for one in used], dtype=np.float64) / length_s / data.record.ranks
        means: Floats = power_w[rng.integers(power_w.size, size=(draws, power_w.size))].mean(axis=1)
        return means
    return None


def checkpoint_s(runs: Sequence[AlignedRun]) -> float | None:
    """Median time that the slowest rank of the largest run with checkpoints needs for one; None: no run wrote any."""
    for run in sorted(runs, key=lambda one: -one.data.record.ranks):
        spans = pause_spans(run.data.events).filter(pl.col("name") == "checkpoint")
        if spans.is_empty():
            continue
        length_ns = (pl.col("end_ns") - pl.col("begin_ns")).cast(pl.Float64).sum()
        each = spans.group_by("rank", "step").agg(length_ns.alias("ns")).group_by("step").agg(pl.col("ns").max())
        return float(each["ns"].median()) / NS_PER_S  # type: ignore[arg-type]  # not empty
    return None
