"""The epochs of a run: how many samples and steps they have, and what happens once in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import epochs_of
from allpull.analyse.steps.pauses import NAMES, pause_spans
from allpull.predict.calibration.parameters import Floats
from allpull.predict.terms import periodic
from allpull.predict.terms.periodic import Periodic
from allpull.units import NS_PER_S

LONGER_STEPS = "longer steps"  # by how much steps outside the usual ones take longer than these, in an epoch
LONGER = 0.03  # of the training of an epoch: less is by how much usual steps differ from each other


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredEpochs:
    """The complete epochs of one run on ``ranks`` ranks.

    ``samples``: of an epoch over all ranks, None: not known. ``are_whole``: the end of an epoch is not only that of the
    program, which may have left its loader early. ``parts_s``: name → (epochs,), seconds of the job;
    ``by_rank_s``: of an evaluation or a checkpoint, (1, ranks), seconds in all epochs together.
    """

    ranks: int
    samples: int | None
    parts_s: Mapping[str, Floats]
    by_rank_s: Mapping[str, Floats]
    are_whole: bool = True


def measured_epochs(aligned: AlignedRun, step_s: float) -> MeasuredEpochs | None:
    """The epochs of ``aligned``, whose usual steps take ``step_s``; None where none is complete.

    Steps that are not usual, the first of an epoch or those with a checkpoint, may take longer than that beside what is
    recorded as a pause.
    """
    epochs = epochs_of(aligned)
    averaged = epochs.averaged
    if not averaged:
        return None
    ranks = aligned.data.record.ranks
    names = {"evaluation": "evaluation", "checkpoint": "checkpoint", "start": "epoch start", "other": "other of epoch"}
    samples = [epoch.samples for epoch in averaged if epoch.samples is not None]
    spans = pause_spans(aligned.data.events)
    parts_s = {
        title: np.array([epoch.parts_ns[part] / NS_PER_S for epoch in averaged]) for part, title in names.items()
    }
    training_s = np.array([epoch.parts_ns["training"] / NS_PER_S for epoch in averaged])
    longer_s = training_s - step_s * np.array([epoch.steps for epoch in averaged])
    warms_up = epochs.has_first and len(epochs.complete) == 1
    if not warms_up and longer_s.mean() > LONGER * training_s.mean():
        parts_s[LONGER_STEPS] = longer_s
    return MeasuredEpochs(
        ranks=ranks,
        samples=round(float(np.median(samples))) if len(samples) == len(averaged) else None,
        parts_s=parts_s,
        are_whole=not epochs.may_be_cut,
        by_rank_s={name: _by_rank(spans.filter(pl.col("name") == name), ranks) for name in NAMES},
    )


def _by_rank(spans: pl.DataFrame, ranks: int) -> Floats:
    seconds = np.zeros((1, ranks))
    lengths_s = (spans["end_ns"] - spans["begin_ns"]).to_numpy() / NS_PER_S
    np.add.at(seconds[0], spans["rank"].to_numpy(), lengths_s)
    return seconds


def events(
    measured: MeasuredEpochs, smaller: Sequence[MeasuredEpochs], draws: int, rng: np.random.Generator
) -> dict[str, Periodic]:
    """What happens once per epoch, by name, with how it depends on the number of ranks.

    A checkpoint that all ranks write counts as that of one: its bytes are those of the model, whoever writes them. An
    evaluation by all ranks is shared out among them, unless it took as long on fewer of them, in the ``smaller`` runs.
    """
    happening = {}
    for name, seconds in measured.parts_s.items():
        if not seconds.any():
            continue
        division: periodic.Division = "serial"
        is_certain = True
        if name == "evaluation":
            division, is_certain = periodic.division(measured.by_rank_s[name])
            if division == "sharded" and not _is_shorter_on_more(name, measured, smaller):
                division = "serial"
        happening[name] = Periodic(
            seconds=periodic.resampled_mean(seconds, draws, rng),
            ranks=measured.ranks,
            division=division,
            is_certain=is_certain,
        )
    return happening


def _is_shorter_on_more(name: str, measured: MeasuredEpochs, smaller: Sequence[MeasuredEpochs]) -> bool:
    """Whether ``name`` took longer on fewer ranks, as work that they share does; with none to compare with, it would.

    The run on the fewest ranks decides, by the nearer of the two ratios.
    """
    fewest = min((one for one in smaller if one.ranks < measured.ranks), key=lambda one: one.ranks, default=None)
    if fewest is None or not fewest.parts_s[name].any():
        return True
    longer = float(fewest.parts_s[name].mean() / measured.parts_s[name].mean())
    return longer * longer > measured.ranks / fewest.ranks
