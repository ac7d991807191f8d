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
from allpull.train.bad_sample_report import BadSampleReport
from allpull.train.checkpoint.save_restore import Progress
from allpull.train.evaluate import EvaluationPlan, evaluate
from allpull.train.learner import checkpoints_of, learner_of
from allpull.train.metrics.loss import summed_loss
from allpull.train.metrics.loss_curve import LossCurve
from allpull.train.metrics.score import Score, top_hits
from allpull.train.numerics.cuda_graph import StepGraph
from allpull.train.optim.optimizer import learning_rate, set_rate
from allpull.train.parallel.ranks import Ranks
from allpull.train.preemption import StopAgreement
from allpull.train.prepare import Prepare


@dataclass(slots=True, kw_only=True)
class History:
    """The result of a training: the mean ``losses`` of the steps of this run, and the last score.

    ``warned``: it stopped after a warning (``preemption``); ``ended``: all epochs are done, or ``train.stop_at_top1``
    is reached.
    """

    losses: list[float] = field(default_factory=list)
    score: Score | None = None
    warned: bool = False
    ended: bool = False


def train(spec: RunSpec, ranks: Ranks, directory: Path, warned: Callable[[], bool] = lambda: False) -> History:
    """Train as ``spec`` says and score the result; checkpoints go into ``directory``. Every rank calls it.

    The global batches, and in exact arithmetic the losses, do not depend on the number of ranks: each rank's mean
    loss is weighted by its share of the global batch. When ``warned`` returns True on any rank, all ranks save a
    checkpoint and stop after the same step.

    Raises:
        AllpullError: the data, or the checkpoint to resume from, cannot be used.
    """
    training = Training(spec, ranks, directory / layout.CHECKPOINTS, warned)
    try:
        unfinished = True
        while unfinished and training.progress.epoch < spec.train.epochs and not training.reached:
            is_whole = training.progress.in_epoch == 0
            unfinished = training.epoch()
            training.bad_samples.report(
                training.progress.epoch - unfinished, training.progress.step, check_limit=is_whole and unfinished
            )
        training.history.ended = training.progress.epoch >= spec.train.epochs or training.reached
        if training.history.ended and training.history.score is None:
            training.evaluate()  # restarted after the last epoch: the score is in older records
        training.checkpoints.finish()
    finally:
        training.bad_samples.write()
        training.feed.close()
        training.make_step.close()
    training.history.losses = training.losses.this_run
    return training.history


class Training:
    """The state of a training on one rank: data, learner and progress."""

    def __init__(self, spec: RunSpec, ranks: Ranks, checkpoints: Path, warned: Callable[[], bool]) -> None:
        train, dtype = spec.train, getattr(torch, spec.model.dtype)
        self.spec, self.ranks, self.stop = spec, ranks, StopAgreement(ranks, warned)
        self.feed = open_feed(
            spec.data,
            rank=ranks.rank,
            ranks=ranks.ranks,
            global_batch=spec.global_batch,
            seed=train.seed,
            epochs=train.epochs,
        )
        self.facts = facts = self.feed.facts
        if facts.multi_label and (train.log_accuracy or train.stop_at_top1):
            option = "train.log_accuracy" if train.log_accuracy else "train.stop_at_top1"
            raise BadInput(f"{option}: samples of {spec.data.name} have several labels each", hint=f"omit {option}")
        self.bad_samples = BadSampleReport(self.feed.bad_samples, ranks, checkpoints.parent, spec.data.odd_limit)
        self.prepare = Prepare(facts, device=ranks.device, dtype=dtype, mixup=spec.data.mixup, seed=train.seed)
        self.learner = learner = learner_of(spec, facts, ranks)
        self.make_step = StepGraph(self.learn, learner.discard, learner.recorder, learner.not_recorded)
        self.checkpoints = checkpoints_of(spec, facts, ranks, learner, checkpoints)
        marks.metric("steps_per_epoch", self.feed.steps)
        self.losses, self.history = LossCurve(ranks, every=train.log_every), History()
        self.progress = self.checkpoints.restore(Path(train.resume)) if train.resume else Progress(losses=[])
        self.losses.of_epoch = self.progress.losses
        restarted = train.resume == str(checkpoints.parent)  # by a queue or an agent, not by a user
        if self.progress.epoch >= train.epochs and not restarted:
            raise BadInput(
                f"{train.resume} has already trained {self.progress.epoch} epochs, and train.epochs is {train.epochs}",
                hint="request more epochs with --set train.epochs=…",
            )
        learner.ready()

    def epoch(self) -> bool:
        """Train the rest of this epoch and score it; False: stopped within it, by ``train.stop_after`` or a warning."""
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
            last = last or self.reached
        if last or not train.checkpoint_every:
            self.save()
        return True

    @property
    def reached(self) -> bool:
        """Whether the last evaluation reached ``train.stop_at_top1``; the same on all ranks."""
        score, wanted = self.history.score, self.spec.train.stop_at_top1
        return bool(wanted and score is not None and score.top1 is not None and score.top1 >= wanted)

    def step(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """One step on one global batch; ``images`` and ``targets`` are this rank's share of it."""
        learner, progress = self.learner, self.progress
        spec, steps = self.spec, self.feed.steps
        rate = learning_rate(spec.train, global_batch=spec.global_batch, step=progress.step, steps_per_epoch=steps)
        set_rate(learner.optimizer, rate)
        with learner.replay_phase():
            loss = self.make_step(images, targets, constants=(batch.samples, batch.global_samples))
        self.losses.add(loss, progress.step + 1)
        learner.report_uncompiled()
        marks.step(batch.samples)
        progress.step += 1
        progress.in_epoch += 1
        if learner.average:
            learner.average.after(progress.step)

    def learn(self, images: Tensor, targets: Tensor, samples: int, global_samples: int) -> Tensor:
        """Forward, backward and optimizer; this rank's share of the mean over the global batch of the loss.

        With ``train.log_accuracy``: of [loss, top-1, top-5].
        """
        train, learner = self.spec.train, self.learner
        shares = []
        for number, (inputs, labels) in enumerate(micro_batches(images, targets, train.accumulate), start=1):
            counts = int(samples > 0 and number <= len(images))  # a borrowed sample (loader.batches) weighs 0
            learner.weight.value = float(counts)
            with learner.shared.micro_step(last=number == train.accumulate):
                with learner.phase("forward"):
                    logits = learner.training_logits(inputs)
                    summed = summed_loss(
                        logits, labels, label_smoothing=train.label_smoothing, multi_label=self.facts.multi_label
                    )
                    share = summed * counts / global_samples
                with learner.phase("backward"):
                    learner.precision.backward(share * self.ranks.ranks)  # the exchange averages over ranks
            shares.append(share.detach())
            if train.log_accuracy:
                hits = top_hits(logits.detach(), labels).double() * counts / global_samples
                shares[-1] = torch.cat([shares[-1].reshape(1), hits])
        learner.shared.after_backward()
        with learner.phase("optimizer"):
            clip = partial(learner.shared.clip, train.clip_norm) if train.clip_norm else None
            learner.precision.step(learner.optimizer, clip)
        return sum(shares[1:], shares[0])

    def evaluate(self) -> None:
        """Score the model, or its moving average, on the test part; batch statistics are averaged over ranks."""
        train, learner = self.spec.train, self.learner
        plan = EvaluationPlan(
            classes=self.facts.classes,
            samples=self.facts.test_samples,
            prepare=self.prepare,
            multi_label=self.facts.multi_label,
            serial=train.evaluation == "serial",
            forward=learner.evaluation_logits,
        )
        samples = partial(self.feed.evaluation, train.evaluate_batch)
        self.history.score = score = evaluate(learner.shared, samples, self.ranks, plan, average=learner.average)
        if self.reached and self.ranks.rank == 0 and self.progress.epoch < train.epochs:
            marks.remark(
                f"train.stop_at_top1: test top-1 {score.top1:.4f} reached {train.stop_at_top1:g} "
                f"after {self.progress.epoch:,} of {train.epochs:,} epochs"
            )
        for name, value in {**score.metrics(), **learner.precision.metrics()}.items():
            marks.metric(name, value)

    def save(self) -> None:
        """Save a checkpoint of the current step."""
        self.losses.reduce(self.progress.step)
        self.progress.losses = self.losses.of_epoch
        with marks.phase("checkpoint"):
            self.checkpoints.save(self.progress)


def micro_batches(images: Tensor, targets: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """``count`` micro-batches of nearly equal size; an empty one is replaced by the first sample."""
    for inputs, labels in zip(images.tensor_split(count), targets.tensor_split(count), strict=True):
        yield (inputs, labels) if len(inputs) else (images[:1], targets[:1])
