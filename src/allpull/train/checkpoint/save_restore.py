"""Save where the training stands, and go on from there as if it had never stopped."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from allpull import marks
from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.train.checkpoint.background_write import Beside, write_whole
from allpull.train.checkpoint.format import Cut, OfRank, Progress, Stored, read
from allpull.train.checkpoint.random_state import chances, own_chance, put_chances
from allpull.train.checkpoint.safe_load import Unusable, plain
from allpull.train.optim.ema import Average
from allpull.train.parallel.gather import least, named_of_all
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import Shared

__all__ = ["PATTERN", "Checkpoints", "Cut", "Parts", "Progress"]

PATTERN = "step-*.pt"
WORDS = {
    "global_batch": ("the global batch", "train.global_batch, or the ranks and train.batch,"),
    "samples": ("the number of samples", "the data set and data.limit"),
    "seed": ("the seed", "train.seed"),
    "dtype": ("the arithmetic", "model.dtype"),
    "data": ("the data set", "data.name and data.path"),
    "order": ("the order of samples", "data.block, data.mixed, data.by_files and, with that, the number of ranks"),
}
"""The fields of ``Cut``, in words, and what they follow from."""


class Stateful(Protocol):
    """Something with a state of numbers, such as the scale of a loss."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a checkpoint is of."""

    shared: Shared
    optimizer: torch.optim.Optimizer
    precision: Stateful | None = None
    average: Average | None = None


class Checkpoints:
    """The checkpoints of one training in ``folder``, of which the newest ``keep`` stay; rank 0 writes.

    ``asynchronous``: they are written while the training goes on, one at a time.
    """

    def __init__(
        self, folder: Path, ranks: Ranks, parts: Parts, *, cut: Cut, keep: int, asynchronous: bool = False
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.parts = parts
        self.cut = cut
        self.keep = keep
        self._asynchronous = asynchronous
        self._beside = Beside()

    def save(self, progress: Progress) -> None:
        """Save the training as it stands; it may go on when this returns. A collective: every rank calls it.

        Raises:
            BadInput: this checkpoint, or the one that was being written, cannot be; older ones are untouched.
        """
        self._beside.wait()  # before another copy of everything is made
        stored = self._stored(progress)
        if stored is None:
            return
        self._beside.start(partial(self._write, stored))
        if not self._asynchronous:
            self._beside.wait()

    def finish(self) -> None:
        """Wait until all is written; no rank should end before. A collective.

        Raises:
            BadInput: the last checkpoint cannot be written.
        """
        self._beside.wait()
        self.ranks.meet()

    def restore(self, place: Path) -> Progress:
        """Put the newest whole checkpoint of ``place`` (a run directory or one file) into all parts. A collective.

        On another number of ranks every rank gets the mean of the batch statistics, and of what PowerSGD left out of
        gradients, so that nothing is lost that is owed to the weights; its random numbers begin anew. The optimizer's
        settings stay as they are: it is its memory that is restored.

        Raises:
            BadInput: there is none that all ranks can read, it is of another network or optimizer, or it stands
                within an epoch that was cut into other batches.
        """
        stored, path = self._agreed(place)
        self._check_cut(stored, path)
        theirs, ours = stored.optimizer["kind"], type(self.parts.optimizer).__name__
        if theirs != ours:
            raise BadInput(
                f"{path} cannot be gone on from: its optimizer is {theirs[:40]}, ours {ours}",
                hint="keep train.optimizer as it was",
            )
        try:
            self._put(stored)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            first = " ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
            raise BadInput(
                f"{path} is of another network: {first}", hint="resume with the recipe it was made by"
            ) from error
        if self.parts.average and stored.average is None and self.ranks.rank == 0:
            marks.remark(f"train.ema_half_life: {path.name} has no moving average: it begins at the weights of now")
        return stored.progress

    def _stored(self, progress: Progress) -> Stored | None:
        """A copy of everything, on rank 0."""
        shared, average = self.parts.shared, self.parts.average
        model = shared.model_state()
        optimizer = shared.optimizer_state(self.parts.optimizer)
        own = {f"buffers/{name}": buffer for name, buffer in shared.model.named_buffers()}
        own |= {f"random/{name}": state for name, state in chances(self.ranks.device).items()}
        averaged: dict[str, Tensor] | None = None
        with average.in_place() if average else nullcontext():
            if average:
                averaged = shared.model_state()
                own |= {f"average/{name}": buffer.clone() for name, buffer in shared.model.named_buffers()}
        everyone = named_of_all(own, self.ranks)
        for name, value in (shared.powersgd.state() if shared.powersgd else {}).items():
            # one by one: each rank has as much as the network, and rank 0 takes those of all where it computes
            for one, theirs in zip(everyone, named_of_all({name: value}, self.ranks), strict=True):
                one[f"powersgd/{name}"] = theirs[name]
        if self.ranks.rank != 0:
            return None
        precision = self.parts.precision.state_dict() if self.parts.precision else {}
        kind = type(self.parts.optimizer).__name__
        return Stored(
            progress=Progress(
                step=progress.step,
                epoch=progress.epoch,
                in_epoch=progress.in_epoch,
                losses=[*progress.losses],
            ),
            cut=self.cut,
            model=model,
            optimizer={
                "kind": kind,
                "state": optimizer["state"],
                "param_groups": plain(optimizer["param_groups"]),
            },
            precision=plain(precision),
            average=averaged,
            ranks=[_of_rank(one) for one in everyone],
        )

    def _write(self, stored: Stored) -> None:
        """Write ``stored``, and drop the oldest. Newer ones stay: they could not be read, or they are another's."""
        path = self.folder / f"step-{stored.progress.step:010d}.pt"
        write_whole(path, stored.content())
        older = sorted(one for one in self.folder.glob(PATTERN) if one.name < path.name)
        for old in older[: max(0, len(older) - self.keep + 1)]:
            old.unlink(missing_ok=True)

    def _agreed(self, place: Path) -> tuple[Stored, Path]:
        """The newest checkpoint that every rank can read."""
        newest = _Newest(place)
        found = newest.before()
        everyone = False
        while not everyone:  # each time around, one rank at least goes further back
            step = least(found[0].progress.step if found else -1, self.ranks)
            if step < 0:
                problem = newest.problem or "another rank cannot read one there"
                raise BadInput(f"cannot go on from {place}: {problem}", hint="give the run directory of a training")
            if found and found[0].progress.step > step:
                found = newest.before(step + 1)
            everyone = least(int(found is not None and found[0].progress.step == step), self.ranks) == 1
        assert found is not None
        if newest.problem and self.ranks.rank == 0:
            marks.remark(f"train.resume: {newest.problem}: going on from {found[1].name}")
        return found

    def _check_cut(self, stored: Stored, path: Path) -> None:
        if not stored.progress.in_epoch:
            return
        for name, (word, options) in WORDS.items():
            theirs, ours = getattr(stored.cut, name), getattr(self.cut, name)
            if theirs != ours and not (name == "data" and not theirs):
                raise BadInput(
                    f"{path} stands in the middle of an epoch, and {word} is another now, so that samples would be "
                    f"repeated or skipped; then: {theirs or 'that of a data set in memory'}; now: {ours}",
                    hint=f"keep {options} as before, or go on from the end of an epoch",
                )

    def _put(self, stored: Stored) -> None:
        shared, average = self.parts.shared, self.parts.average
        mine = stored.ranks[self.ranks.rank] if len(stored.ranks) == self.ranks.ranks else None
        if average and stored.average is not None:
            shared.load_model_state(stored.average)
            _put_buffers(shared.model, mine.average if mine else _mean([one.average for one in stored.ranks]))
            average.restart()
        shared.load_model_state(stored.model)
        _put_buffers(shared.model, mine.buffers if mine else _mean([one.buffers for one in stored.ranks]))
        if average and stored.average is None:
            average.restart()
        self._put_memory(stored.optimizer)
        if self.parts.precision:
            self.parts.precision.load_state_dict(stored.precision)
        self._put_powersgd([one.powersgd for one in stored.ranks])
        own_chance(self.cut.seed, self.ranks.rank, stored.progress.step)
        if mine:
            put_chances(mine.random, self.ranks.device)

    def _put_powersgd(self, ranks: list[dict[str, Tensor]]) -> None:
        ours, before, now = self.parts.shared.powersgd, len(ranks), self.ranks.ranks
        said = ""
        if ours and all(ranks):
            ours.load_state(ranks, self.ranks.rank if before == now else None)
            if before != now:
                said = f"what PowerSGD left out on {before} ranks is spread evenly over {now}"
        elif ours:
            said = "there is nothing of PowerSGD to go on from: it begins with its uncompressed steps"
        elif any(ranks):
            said = "what PowerSGD left out of gradients before is dropped"
        if said and self.ranks.rank == 0:
            marks.remark(f"parallel.compression: {said}")

    def _put_memory(self, theirs: dict[str, Any]) -> None:
        """What the optimizer remembers of each parameter; its settings are those of this training."""
        optimizer = self.parts.optimizer
        ours = optimizer.state_dict()["param_groups"]
        if [len(group["params"]) for group in theirs["param_groups"]] != [len(group["params"]) for group in ours]:
            raise ValueError("its optimizer has other groups of parameters")
        self.parts.shared.load_optimizer_state(optimizer, {"state": theirs["state"], "param_groups": ours})
        for parameter, about in optimizer.state.items():
            if any(known is not None and known.shape != parameter.shape for known in about.values()):
                raise ValueError("its optimizer has other parameters")


class _Newest:
    """Looks for the newest checkpoint of ``place`` that can be read; ``problem``: the last that could not, and why."""

    def __init__(self, place: Path) -> None:
        alone = place.is_file()
        self._left = [place] if alone else sorted((place / layout.CHECKPOINTS).glob(PATTERN), reverse=True)
        self.problem = "" if self._left else "no checkpoint there"

    def before(self, step: int | None = None) -> tuple[Stored, Path] | None:
        """The next one back, of less than ``step`` steps; None: there is none."""
        while self._left:
            path = self._left.pop(0)
            try:
                stored = read(path)
            except Unusable as unusable:
                self.problem = f"{path.name} {unusable}"
                continue
            if step is None or stored.progress.step < step:
                return stored, path
        return None


def _of_rank(own: dict[str, Tensor]) -> OfRank:
    parts: dict[str, dict[str, Tensor]] = {part.name: {} for part in fields(OfRank)}
    for name, value in own.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    return OfRank(**parts)


def _put_buffers(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if values[name].shape != buffer.shape:
            raise ValueError(f"{name} is {[*values[name].shape]}, ours {[*buffer.shape]}")
        buffer.copy_(values[name])


def _mean(values: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean over ranks of what is a floating-point number; of counts, those of rank 0."""
    return {
        name: torch.stack([one[name] for one in values]).mean(0) if value.is_floating_point() else value
        for name, value in values[0].items()
    }
