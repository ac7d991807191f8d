"""Save the state of a training, and restore it so that the training continues exactly."""

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
from allpull.train.checkpoint.background_write import BackgroundTask, open_folder, write_whole
from allpull.train.checkpoint.format import Checkpoint, EpochFingerprint, Progress, RankState, read
from allpull.train.checkpoint.random_state import rng_states, seed_rank, set_rng_states
from allpull.train.checkpoint.safe_load import UnusableFile, plain_copy
from allpull.train.optim.ema import Average
from allpull.train.parallel.gather import gather_named, global_min
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import SharedModel

__all__ = ["Checkpoints", "EpochFingerprint", "Progress", "TrainingState", "checkpoint_files"]

FINGERPRINT_FIELDS = {
    "global_batch": ("the global batch", "train.global_batch, or the ranks and train.batch,"),
    "samples": ("the number of samples", "the data set and data.limit"),
    "seed": ("the seed", "train.seed"),
    "dtype": ("the arithmetic", "model.dtype"),
    "data": ("the data set", "data.name and data.path"),
    "order": ("the order of samples", "data.block, data.mixed, data.by_files and, with that, the number of ranks"),
}
"""Field of ``EpochFingerprint`` → what it is, and the options that determine it, for errors."""


class Stateful(Protocol):
    """An object with a numeric state, such as the scale of a loss."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The objects whose state a checkpoint holds."""

    shared: SharedModel
    optimizer: torch.optim.Optimizer
    precision: Stateful | None = None
    average: Average | None = None


class Checkpoints:
    """The checkpoints of one training in ``folder``, below its run directory, which must exist on rank 0, that writes.

    The newest ``keep`` are kept. ``asynchronous``: they are written in the background, one at a time.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        parts: TrainingState,
        *,
        fingerprint: EpochFingerprint,
        keep: int,
        asynchronous: bool = False,
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.parts = parts
        self.fingerprint = fingerprint
        self.keep = keep
        self._asynchronous = asynchronous
        self._writer = BackgroundTask()
        self._directory = open_folder(folder.parent) if ranks.rank == 0 else -1

    def save(self, progress: Progress) -> None:
        """Save the current state; the training may continue when this returns. A collective: every rank calls it.

        Raises:
            BadInput: this checkpoint, or the previous one, cannot be written; older ones are untouched.
        """
        self._writer.wait()  # before the state is copied again
        stored = self._checkpoint(progress)
        if stored is None:
            return
        self._writer.start(partial(self._write, stored))
        if not self._asynchronous:
            self._writer.wait()

    def finish(self) -> None:
        """Wait until all checkpoints are written; no rank should exit before. A collective.

        Raises:
            BadInput: the last checkpoint cannot be written.
        """
        self._writer.wait()
        self.ranks.barrier()

    def restore(self, source: Path) -> Progress:
        """Restore the newest complete checkpoint of ``source`` (a run directory or one file). A collective.

        On another number of ranks, every rank gets the mean of the batch statistics and of PowerSGD's error feedback,
        so that no gradient is lost, and its generators are seeded again. The optimizer keeps its settings; only its
        state is restored.

        Raises:
            BadInput: there is none that all ranks can read, it is of another network or optimizer, or it was saved
                within an epoch of other batches.
        """
        stored, path = self._newest_common(source)
        self._check_fingerprint(stored, path)
        stored_kind, own_kind = stored.optimizer["kind"], type(self.parts.optimizer).__name__
        if stored_kind != own_kind:
            raise BadInput(
                f"{path} cannot be resumed: its optimizer is {stored_kind[:40]}, and this training uses {own_kind}",
                hint="keep the same train.optimizer",
            )
        try:
            self._load(stored)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            first = " ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
            raise BadInput(
                f"{path} is of another network: {first}", hint="resume with the recipe that made it"
            ) from error
        if self.parts.average and stored.average is None and self.ranks.rank == 0:
            marks.remark(f"train.ema_half_life: {path.name} has no moving average: it starts from the current weights")
        return stored.progress

    def _checkpoint(self, progress: Progress) -> Checkpoint | None:
        """A copy of the whole state, on rank 0; None on the others."""
        shared, average = self.parts.shared, self.parts.average
        model = shared.model_state()
        optimizer = shared.optimizer_state(self.parts.optimizer)
        rank_state = {f"buffers/{name}": buffer for name, buffer in shared.model.named_buffers()}
        rank_state |= {f"random/{name}": state for name, state in rng_states(self.ranks.device).items()}
        averaged: dict[str, Tensor] | None = None
        with average.in_place() if average else nullcontext():
            if average:
                averaged = shared.model_state()
                rank_state |= {f"average/{name}": buffer.clone() for name, buffer in shared.model.named_buffers()}
        states = gather_named(rank_state, self.ranks)
        for name, value in (shared.powersgd.state() if shared.powersgd else {}).items():
            # one by one: each rank has as much as the network, and rank 0 receives them on its compute device
            for state, received in zip(states, gather_named({name: value}, self.ranks), strict=True):
                state[f"powersgd/{name}"] = received[name]
        if self.ranks.rank != 0:
            return None
        precision = self.parts.precision.state_dict() if self.parts.precision else {}
        kind = type(self.parts.optimizer).__name__
        return Checkpoint(
            progress=Progress(
                step=progress.step,
                epoch=progress.epoch,
                in_epoch=progress.in_epoch,
                losses=[*progress.losses],
            ),
            fingerprint=self.fingerprint,
            model=model,
            optimizer={
                "kind": kind,
                "state": optimizer["state"],
                "param_groups": plain_copy(optimizer["param_groups"]),
            },
            precision=plain_copy(precision),
            average=averaged,
            ranks=[_rank_state(one) for one in states],
        )

    def _write(self, stored: Checkpoint) -> None:
        path = self.folder / layout.checkpoint_name(stored.progress.step)
        write_whole(path, stored.content(), directory=self._directory, keep=self.keep)

    def _newest_common(self, source: Path) -> tuple[Checkpoint, Path]:
        """The newest checkpoint that every rank can read, and its file."""
        newest = _NewestFirst(source)
        candidate = newest.before()
        agreed = False
        while not agreed:  # in each iteration at least one rank goes further back
            step = global_min(candidate[0].progress.step if candidate else -1, self.ranks)
            if step < 0:
                problem = newest.problem or "another rank cannot read one there"
                raise BadInput(f"cannot resume from {source}: {problem}", hint="give the run directory of a training")
            if candidate and candidate[0].progress.step > step:
                candidate = newest.before(step + 1)
            agreed = global_min(int(candidate is not None and candidate[0].progress.step == step), self.ranks) == 1
        assert candidate is not None
        if newest.problem and self.ranks.rank == 0:
            marks.remark(f"train.resume: {newest.problem}: resuming from {candidate[1].name}")
        return candidate

    def _check_fingerprint(self, stored: Checkpoint, path: Path) -> None:
        if not stored.progress.in_epoch:
            return
        for name, (word, options) in FINGERPRINT_FIELDS.items():
            before, now = getattr(stored.fingerprint, name), getattr(self.fingerprint, name)
            if before != now and not (name == "data" and not before):
                raise BadInput(
                    f"{path} was saved within an epoch, and {word} has changed since, so that samples would be "
                    f"repeated or skipped; then: {before or 'that of a data set in memory'}; now: {now}",
                    hint=f"keep {options} unchanged, or resume from the end of an epoch",
                )

    def _load(self, stored: Checkpoint) -> None:
        shared, average = self.parts.shared, self.parts.average
        own = stored.ranks[self.ranks.rank] if len(stored.ranks) == self.ranks.ranks else None
        if average and stored.average is not None:
            shared.load_model_state(stored.average)
            _load_buffers(shared.model, own.average if own else _mean([one.average for one in stored.ranks]))
            average.restart()
        shared.load_model_state(stored.model)
        _load_buffers(shared.model, own.buffers if own else _mean([one.buffers for one in stored.ranks]))
        if average and stored.average is None:
            average.restart()
        self._load_optimizer(stored.optimizer)
        if self.parts.precision:
            self.parts.precision.load_state_dict(stored.precision)
        self._load_powersgd([one.powersgd for one in stored.ranks])
        seed_rank(self.fingerprint.seed, self.ranks.rank, stored.progress.step)
        if own:
            set_rng_states(own.random, self.ranks.device)

    def _load_powersgd(self, ranks: list[dict[str, Tensor]]) -> None:
        powersgd, before, now = self.parts.shared.powersgd, len(ranks), self.ranks.ranks
        remark = ""
        if powersgd and all(ranks):
            powersgd.load_state(ranks, self.ranks.rank if before == now else None)
            if before != now:
                remark = f"PowerSGD's error feedback of {before} ranks is spread evenly over {now}"
        elif powersgd:
            remark = "the checkpoint has no PowerSGD state: it starts with its uncompressed steps"
        elif any(ranks):
            remark = "PowerSGD's error feedback in the checkpoint is dropped"
        if remark and self.ranks.rank == 0:
            marks.remark(f"parallel.compression: {remark}")

    def _load_optimizer(self, stored: dict[str, Any]) -> None:
        """Load the optimizer's state of each parameter; its settings are those of this training."""
        optimizer = self.parts.optimizer
        groups = optimizer.state_dict()["param_groups"]
        if [len(group["params"]) for group in stored["param_groups"]] != [len(group["params"]) for group in groups]:
            raise ValueError("its optimizer has other groups of parameters")
        self.parts.shared.load_optimizer_state(optimizer, {"state": stored["state"], "param_groups": groups})
        for parameter, state in optimizer.state.items():
            if any(value is not None and value.shape != parameter.shape for value in state.values()):
                raise ValueError("its optimizer has other parameters")


class _NewestFirst:
    """Readable checkpoints of ``source``, newest first; ``problem``: the last unreadable one, and why."""

    def __init__(self, source: Path) -> None:
        self._left = [source] if source.is_file() else checkpoint_files(source / layout.CHECKPOINTS)[::-1]
        self._source = source.resolve()
        self.problem = "" if self._left else "no checkpoint there"

    def before(self, step: int | None = None) -> tuple[Checkpoint, Path] | None:
        """The next older one, of less than ``step`` steps; None if there is none."""
        while self._left:
            path = self._left.pop(0)
            try:
                if not path.resolve().is_relative_to(self._source):
                    raise UnusableFile("is a link that leaves the run directory")
                stored = read(path)
            except UnusableFile as unusable:
                self.problem = f"{path.name} {unusable}"
                continue
            if step is None or stored.progress.step < step:
                return stored, path
        return None


def checkpoint_files(folder: Path) -> list[Path]:
    """The complete checkpoints in ``folder``, oldest first."""
    return sorted(folder.glob(layout.CHECKPOINT_NAMES))


def _rank_state(own: dict[str, Tensor]) -> RankState:
    parts: dict[str, dict[str, Tensor]] = {part.name: {} for part in fields(RankState)}
    for name, value in own.items():
        part, _, key = name.partition("/")
        parts[part][key] = value
    return RankState(**parts)


def _load_buffers(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if values[name].shape != buffer.shape:
            raise ValueError(f"{name} is {[*values[name].shape]}, not {[*buffer.shape]}")
        buffer.copy_(values[name])


def _mean(values: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean over ranks of floating-point values; integer counts are those of rank 0."""
    return {
        name: torch.stack([one[name] for one in values]).mean(0) if value.is_floating_point() else value
        for name, value in values[0].items()
    }
