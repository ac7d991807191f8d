"""The training loop: one rank of a synchronous data-parallel training, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from allpull import marks
from allpull.errors import BadInput
from allpull.load.batches import Batch, Plan, evaluation_batches, training_batches
from allpull.load.dataset import read
from allpull.rundir import layout
from allpull.schema.spec import RunSpec
from allpull.train.checkpoint import Checkpoints, Cut, Parts, Progress
from allpull.train.evaluate import Examination, evaluate
from allpull.train.models.build import build
from allpull.train.objective import summed_loss
from allpull.train.optimise import learning_rate, optimizer_of, set_rate
from allpull.train.ranks import Ranks
from allpull.train.score import Score
from allpull.train.stop import Stop
from allpull.train.strategy import Alone, Shared


@dataclass(slots=True, kw_only=True)
class History:
    """What a training leaves: the mean loss of each step done here, the last score, and was it ``warned`` to stop."""

    losses: list[float] = field(default_factory=list)
    score: Score | None = None
    warned: bool = False


def train(spec: RunSpec, ranks: Ranks, directory: Path, warned: Callable[[], bool] = lambda: False) -> History:
    """Train as ``spec`` says and score the result; checkpoints go into ``directory``. Every rank calls it.

    The global batches, and in exact arithmetic the losses, do not depend on the number of ranks: each rank's mean
    loss is weighted by its share of the global batch. Once ``warned`` says so on any rank, all stop after the same
    step, with a checkpoint of it.

    Raises:
        AllpullError: the data or the checkpoint to go on from cannot be used.
    """
    training = Training(spec, ranks, directory / layout.CHECKPOINTS, warned)
    while training.progress.epoch < spec.train.epochs:
        if not training.epoch():
            break
    if training.progress.epoch >= spec.train.epochs and training.history.score is None:
        training.evaluate()  # it had ended when it was started again, and its records stand in those of the last time
    training.checkpoints.finish()
    return training.history


class Training:
    """One rank's share of a training: what it learns with, and how far it is."""

    def __init__(self, spec: RunSpec, ranks: Ranks, checkpoints: Path, warned: Callable[[], bool]) -> None:
        self.spec = spec
        self.ranks = ranks
        self.stop = Stop(ranks, warned)
        self.data = data = read(spec.data.name, spec.data.path)
        self.samples = data.train.first(spec.data.limit)
        self.dtype = getattr(torch, spec.model.dtype)

        torch.manual_seed(spec.train.seed)
        self.model: nn.Module = build(spec.model, channels=data.channels, classes=data.classes, pixels=data.pixels)
        # channels-last convolutions are 1.2 to 1.4 times as fast here, and images are stored that way
        self.model.to(ranks.device, self.dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer_of(self.model, spec.train)
        self.wrapped = ranks.wrap(self.model)  # before restoring: it gives every rank the buffers of rank 0
        self.shared = Shared(model=self.model, module=self.wrapped, exchange=Alone(), rank=ranks.rank)

        self.plan = Plan(
            global_batch=spec.global_batch,
            rank=ranks.rank,
            ranks=ranks.ranks,
            seed=spec.train.seed,
            shift_pixels=spec.data.shift_pixels,
            flip=spec.data.flip,
        )
        self.checkpoints = Checkpoints(
            checkpoints,
            ranks,
            Parts(shared=self.shared, optimizer=self.optimizer),
            cut=Cut(
                global_batch=spec.global_batch, samples=len(self.samples), seed=spec.train.seed, dtype=spec.model.dtype
            ),
            keep=spec.train.keep_checkpoints,
            asynchronous=spec.train.async_checkpoint,
        )
        self.steps_per_epoch = self.plan.steps(self.samples)
        marks.metric("steps_per_epoch", self.steps_per_epoch)
        self.history = History()
        self.pending: list[Tensor] = []  # losses of this rank that the others have not been told yet
        self.progress = Progress(losses=[])
        if spec.train.resume:
            self.progress = self.checkpoints.restore(Path(spec.train.resume))
        again = spec.train.resume == str(checkpoints.parent)  # by a queue or an agent, not by a user
        if self.progress.epoch >= spec.train.epochs and not again:
            raise BadInput(
                f"{spec.train.resume} has already trained {self.progress.epoch} epochs, and train.epochs is"
                f" {spec.train.epochs}",
                hint="ask for more epochs with --set train.epochs=…",
            )

    def epoch(self) -> bool:
        """Train one epoch, or what is left of it, and score it; False: stopped within it, as was asked or warned."""
        train, progress = self.spec.train, self.progress
        marks.epoch(progress.epoch, progress.step)
        batches = training_batches(self.samples, self.plan, epoch=progress.epoch, first_step=progress.in_epoch)
        while progress.in_epoch < self.steps_per_epoch:
            with marks.phase("input"):
                batch = next(batches)
                images, labels = self.tensors(batch)
            self.step(batch, images, labels)
            self.history.warned = self.stop.after(progress.step)
            if self.history.warned or progress.step == train.stop_after:
                self.save()
                return False
            if train.checkpoint_every and progress.step % train.checkpoint_every == 0:
                self.save()
        self.share_losses()
        self.tell_losses()
        progress.epoch, progress.in_epoch, progress.losses = progress.epoch + 1, 0, []
        last = progress.epoch == train.epochs
        if last or progress.epoch % train.evaluate_every == 0:
            self.evaluate()
        if last or not train.checkpoint_every:
            self.save()
        return True

    def step(self, batch: Batch, images: Tensor, labels: Tensor) -> None:
        """One optimizer step on one global batch, of which ``images`` and ``labels`` are this rank's part."""
        train, progress = self.spec.train, self.progress
        with marks.phase("forward"):
            logits = self.wrapped(images)
            summed = summed_loss(logits, labels, label_smoothing=train.label_smoothing)
            share = summed * min(batch.samples, 1) / batch.global_samples  # a borrowed sample counts as 0
        with marks.phase("backward"):
            torch.autograd.backward(share * self.ranks.ranks)  # DDP divides the sum over ranks by their number
        with marks.phase("optimizer"):
            rate = learning_rate(
                train,
                global_batch=self.spec.global_batch,
                step=progress.step,
                steps_per_epoch=self.steps_per_epoch,
            )
            set_rate(self.optimizer, rate)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.pending.append(share.detach().double())
        marks.step(batch.samples)
        progress.step += 1
        progress.in_epoch += 1

    def tensors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Normalised images [n, channels, height, width], channels last in memory, and labels [n]."""
        images = torch.from_numpy(batch.images).to(self.ranks.device).permute(0, 3, 1, 2).to(self.dtype)
        return (images - self.data.mean) / self.data.std, torch.from_numpy(batch.labels).to(self.ranks.device)

    def share_losses(self) -> None:
        """Add up the losses of all ranks since the last time: one reduction, not one a step."""
        if self.pending:
            losses = self.ranks.total(torch.stack(self.pending)).tolist()
            self.progress.losses += losses
            self.history.losses += losses
            self.pending.clear()

    def tell_losses(self) -> None:
        """Tell the losses of the epoch that has just ended, as means over ``train.log_every`` steps."""
        losses, every = self.progress.losses, self.spec.train.log_every
        first = self.progress.step - len(losses)
        for start in range(0, len(losses), every):
            some = losses[start : start + every]
            marks.metric("train_loss", sum(some) / len(some), first + start + len(some))

    def evaluate(self) -> None:
        """Score the model on the test part, with batch statistics averaged over ranks."""
        train, test = self.spec.train, self.data.test
        serial = train.evaluation == "serial"
        how = Examination(classes=self.data.classes, samples=len(test), prepare=self.tensors, serial=serial)

        def samples(*, rank: int, ranks: int) -> Iterator[Batch]:
            return evaluation_batches(test, rank=rank, ranks=ranks, size=train.evaluate_batch)

        self.history.score = evaluate(self.shared, samples, self.ranks, how)
        for name, value in self.history.score.metrics().items():
            marks.metric(name, value)

    def save(self) -> None:
        """Save the training as it stands."""
        self.share_losses()
        with marks.phase("checkpoint"):
            self.checkpoints.save(self.progress)
