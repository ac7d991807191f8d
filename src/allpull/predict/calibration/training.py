"""What runs show of a whole training: epochs to an accuracy, power, and the time of checkpoints."""

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
