"""The training loop: one rank of a synchronous data-parallel training, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from allpull import marks
from allpull.data.loader.batches import Batch
from allpull.data.loader.open_feed import open_feed
from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.schema.spec import RunSpec
from allpull.train.bad_sample_report import OddSamples
from allpull.train.checkpoint.save_restore import Progress
from allpull.train.evaluate import Examination, evaluate
from allpull.train.learner import checkpoints_of, learner_of
from allpull.train.metrics.loss import summed_loss
from allpull.train.metrics.loss_curve import Losses
from allpull.train.metrics.score import Score
from allpull.train.numerics.cuda_graph import StepGraph
from allpull.train.optim.optimizer import learning_rate, set_rate
from allpull.train.parallel.ranks import Ranks
from allpull.train.preemption import Stop
from allpull.train.prepare import Prepare


@dataclass(slots=True, kw_only=True)
class History:
    """What a training leaves: the mean ``losses`` of steps done here, and the last score.

    ``warned``: it stopped because it was warned; ``ended``: all epochs are done.
    """

    losses: list[float] = field(default_factory=list)
    score: Score | None = None
    warned: bool = False
    ended: bool = False


def train(spec: RunSpec, ranks: Ranks, directory: Path, warned: Callable[[], bool] = lambda: False) -> History:
    """Train as ``spec`` says and score the result; checkpoints go into ``directory``. Every rank calls it.

    The global batches, and in exact arithmetic the losses, do not depend on the number of ranks: each rank's mean
    loss is weighted by its share of the global batch. Once ``warned`` says so on any rank, all stop after the same
    step, with a checkpoint of it.

    Raises:
        AllpullError: the data or the checkpoint to go on from cannot be used.
    """
    training = Training(spec, ranks, directory / layout.CHECKPOINTS, warned)
    try:
        going_on = True
        while going_on and training.progress.epoch < spec.train.epochs:
            is_whole = training.progress.in_epoch == 0
            going_on = training.epoch()
            training.odd.tell(training.progress.epoch - going_on, training.progress.step, judge=is_whole and going_on)
        training.history.ended = training.progress.epoch >= spec.train.epochs
        if training.history.ended and training.history.score is None:
            training.evaluate()  # it had ended when it was started again, and its records stand in those of last time
        training.checkpoints.finish()
    finally:
        training.odd.write()
        training.feed.close()
        training.make_step.close()
    training.history.losses = training.losses.here
    return training.history


class Training:
    """One rank's share of a training: its data, what it learns with, and how far it is."""

    def __init__(self, spec: RunSpec, ranks: Ranks, checkpoints: Path, warned: Callable[[], bool]) -> None:
        train, dtype = spec.train, getattr(torch, spec.model.dtype)
        self.spec, self.ranks, self.stop = spec, ranks, Stop(ranks, warned)
        self.feed = open_feed(
            spec.data,
            rank=ranks.rank,
            ranks=ranks.ranks,
            global_batch=spec.global_batch,
            seed=train.seed,
            epochs=train.epochs,
        )
        self.facts = facts = self.feed.facts
        self.odd = OddSamples(self.feed.odd, ranks, checkpoints.parent, spec.data.odd_limit)
        self.prepare = Prepare(facts, device=ranks.device, dtype=dtype, mixup=spec.data.mixup, seed=train.seed)
        self.learner = learner = learner_of(spec, facts, ranks)
        self.make_step = StepGraph(self.learn, learner.forget, learner.recorder, learner.not_recorded)
        self.checkpoints = checkpoints_of(spec, facts, ranks, learner, checkpoints)
        marks.metric("steps_per_epoch", self.feed.steps)
        self.losses, self.history = Losses(ranks, every=train.log_every), History()
        self.progress = self.checkpoints.restore(Path(train.resume)) if train.resume else Progress(losses=[])
        self.losses.of_epoch = self.progress.losses
        again = train.resume == str(checkpoints.parent)  # by a queue or an agent, not by a user
        if self.progress.epoch >= train.epochs and not again:
            raise BadInput(
                f"{train.resume} has already trained {self.progress.epoch} epochs, and train.epochs is {train.epochs}",
                hint="ask for more epochs with --set train.epochs=…",
            )
        learner.ready()

    def epoch(self) -> bool:
        """Train one epoch, or what is left of it, and score it; False: stopped within it, as was asked or warned."""
        train, progress = self.spec.train, self.progress
        marks.epoch(progress.epoch, progress.step)
        batches = self.feed.training(progress.epoch, progress.in_epoch)
        while progress.in_epoch < self.feed.steps:
            with marks.phase("input"):
                batch = next(batches)
            with marks.phase(self.prepare.phase):
                images, targets = self.prepare(batch, step=progress.step)
            self.step(batch, images, targets)
            self.history.warned = self.stop.after(progress.step)
            if self.history.warned or progress.step == train.stop_after:
                self.save()
                return False
            if train.checkpoint_every and progress.step % train.checkpoint_every == 0:
                self.save()
        self.losses.end_epoch(progress.step)
        progress.epoch, progress.in_epoch = progress.epoch + 1, 0
        last = progress.epoch == train.epochs
        if last or progress.epoch % train.evaluate_every == 0:
            self.evaluate()
        if last or not train.checkpoint_every:
            self.save()
        return True

    def step(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """One step on one global batch, of which ``images`` and ``targets`` are this rank's part."""
        learner, progress = self.learner, self.progress
        whole, steps = self.spec.global_batch, self.feed.steps
        rate = learning_rate(self.spec.train, global_batch=whole, step=progress.step, steps_per_epoch=steps)
        set_rate(learner.optimizer, rate)
        with learner.whole():
            loss = self.make_step(images, targets, constants=(batch.samples, batch.global_samples))
        self.losses.add(loss, progress.step + 1)
        learner.remark()
        marks.step(batch.samples)
        progress.step += 1
        progress.in_epoch += 1
        if learner.average:
            learner.average.after(progress.step)

    def learn(self, images: Tensor, targets: Tensor, samples: int, global_samples: int) -> Tensor:
        """Forward, backward and optimizer; this rank's share of the mean loss over the global batch."""
        train, learner = self.spec.train, self.learner
        losses = []
        for number, (seen, wanted) in enumerate(parts(images, targets, train.accumulate), start=1):
            counts = int(samples > 0 and number <= len(images))  # what is borrowed to have any at all counts as 0
            learner.weight.value = float(counts)
            with learner.shared.micro(last=number == train.accumulate):
                with learner.phase("forward"):
                    logits = learner.predicted(seen)
                    summed = summed_loss(
                        logits, wanted, label_smoothing=train.label_smoothing, multi_label=self.facts.multi_label
                    )
                    share = summed * counts / global_samples
                with learner.phase("backward"):
                    learner.precision.backward(share * self.ranks.ranks)  # sharing divides the sum over ranks by them
            losses.append(share.detach())
        learner.shared.after_backward()
        with learner.phase("optimizer"):
            clip = partial(learner.shared.clip, train.clip_norm) if train.clip_norm else None
            learner.precision.step(learner.optimizer, clip)
        return sum(losses[1:], losses[0])

    def evaluate(self) -> None:
        """Score the model, or its moving average, on the test part, with batch statistics averaged over ranks."""
        train, learner = self.spec.train, self.learner
        how = Examination(
            classes=self.facts.classes,
            samples=self.facts.test_samples,
            prepare=self.prepare,
            multi_label=self.facts.multi_label,
            serial=train.evaluation == "serial",
            forward=learner.examined,
        )
        samples = partial(self.feed.evaluation, train.evaluate_batch)
        self.history.score = evaluate(learner.shared, samples, self.ranks, how, average=learner.average)
        for name, value in {**self.history.score.metrics(), **learner.precision.tell()}.items():
            marks.metric(name, value)

    def save(self) -> None:
        """Save the training as it stands."""
        self.losses.share(self.progress.step)
        self.progress.losses = self.losses.of_epoch
        with marks.phase("checkpoint"):
            self.checkpoints.save(self.progress)


def parts(images: Tensor, targets: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """``count`` parts of a batch, as even as can be; where there are fewer samples, the first stands in."""
    for seen, wanted in zip(images.tensor_split(count), targets.tensor_split(count), strict=True):
        yield (seen, wanted) if len(seen) else (images[:1], targets[:1])
