"""The training loop: one rank of a synchronous data-parallel training, top to bottom."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from allpull import marks
from allpull.load.batches import Batch, Plan, training_batches
from allpull.load.dataset import DATASETS, Dataset
from allpull.rundir import layout
from allpull.schema.spec import RunSpec
from allpull.train import checkpoint
from allpull.train.evaluate import Score, evaluate
from allpull.train.models import MODELS
from allpull.train.optimise import learning_rate, sgd
from allpull.train.ranks import Ranks


@dataclass(slots=True, kw_only=True)
class History:
    """What a training leaves: the mean loss over the global batch of each step done here, and the last score."""

    losses: list[float] = field(default_factory=list)
    score: Score | None = None


def train(spec: RunSpec, ranks: Ranks, directory: Path) -> History:  # noqa: PLR0915  STYLE 7: the loop reads top to bottom
    """Train as ``spec`` says and score the result; checkpoints go into ``directory``.

    Every rank calls it. The global batches, and in exact arithmetic the losses, do not depend on the number of
    ranks: each rank's mean loss is weighted by its share of the global batch.
    """
    data: Dataset = DATASETS.load(spec.data.name)(spec.data.path)
    training = data.train.first(spec.data.limit)
    dtype = getattr(torch, spec.model.dtype)
    torch.manual_seed(spec.train.seed)
    build = MODELS.load(spec.model.name)
    model: nn.Module = build(data.channels, data.classes, spec.model.width, spec.model.norm).to(ranks.device, dtype)
    optimizer = sgd(model, spec.train)
    plan = Plan(
        global_batch=spec.global_batch, rank=ranks.rank, ranks=ranks.ranks, seed=spec.train.seed,
        shift_pixels=spec.data.shift_pixels, flip=spec.data.flip,
    )  # fmt: skip
    steps_per_epoch = plan.steps(training)
    wrapped = ranks.wrap(model)  # before restoring: it gives every rank the buffers of rank 0
    progress = checkpoint.Progress(losses=[])
    if spec.train.resume:
        progress = checkpoint.restore(Path(spec.train.resume), model, optimizer, ranks, global_batch=spec.global_batch)
    marks.metric("steps_per_epoch", steps_per_epoch)
    history = History()
    pending: list[Tensor] = []  # losses of this rank that the others have not been told yet

    def to_tensors(batch: Batch) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(batch.images).to(ranks.device).permute(0, 3, 1, 2).to(dtype)
        return (images - data.mean) / data.std, torch.from_numpy(batch.labels).to(ranks.device)

    def share_losses() -> None:
        if pending:
            means = ranks.total(torch.stack(pending)).tolist()
            progress.losses += means
            history.losses += means
            pending.clear()

    def save() -> None:
        share_losses()
        with marks.phase("checkpoint"):
            checkpoint.save(
                directory / layout.CHECKPOINTS, progress, model, optimizer, ranks,
                global_batch=spec.global_batch, keep=spec.train.keep_checkpoints,
            )  # fmt: skip

    while progress.epoch < spec.train.epochs:
        marks.epoch(progress.epoch, progress.step)
        batches = training_batches(training, plan, epoch=progress.epoch, first_step=progress.in_epoch)
        while progress.in_epoch < steps_per_epoch:
            with marks.phase("input"):
                batch = next(batches)
                images, labels = to_tensors(batch)
            with marks.phase("forward"):
                logits = wrapped(images)
                summed = nn.functional.cross_entropy(
                    logits, labels, reduction="sum", label_smoothing=spec.train.label_smoothing
                )
                share = summed * (1.0 if batch.samples else 0.0) / batch.global_samples
            with marks.phase("backward"):
                torch.autograd.backward(share * ranks.ranks)  # DDP divides the sum over ranks by their number
            with marks.phase("optimizer"):
                rate = learning_rate(
                    spec.train, global_batch=spec.global_batch, step=progress.step, steps_per_epoch=steps_per_epoch
                )
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
                optimizer.zero_grad()
            pending.append(share.detach().double())
            marks.step(batch.samples)
            progress.step += 1
            progress.in_epoch += 1
            if spec.train.stop_after and progress.step >= spec.train.stop_after:
                save()
                return history
            if spec.train.checkpoint_every and progress.step % spec.train.checkpoint_every == 0:
                save()

        share_losses()
        tell_losses(progress, every=spec.train.log_every)
        progress.epoch, progress.in_epoch, progress.losses = progress.epoch + 1, 0, []
        if progress.epoch % spec.train.evaluate_every == 0 or progress.epoch == spec.train.epochs:
            with marks.phase("evaluation"):
                ranks.average_buffers(model)
                history.score = evaluate(model, data.test, ranks, size=spec.train.evaluate_batch, to_tensors=to_tensors)
            tell_score(history.score)
        if not spec.train.checkpoint_every or progress.epoch == spec.train.epochs:
            save()
    return history


def tell_losses(progress: checkpoint.Progress, *, every: int) -> None:
    """Tell the losses of the epoch that has just ended, as means over ``every`` steps."""
    first = progress.step - len(progress.losses)
    for start in range(0, len(progress.losses), every):
        some = progress.losses[start : start + every]
        marks.metric("train_loss", sum(some) / len(some), first + start + len(some))


def tell_score(score: Score) -> None:
    """Tell how an evaluation went."""
    marks.metric("test_loss", score.loss)
    marks.metric("test_top1", score.top1)
    marks.metric("test_top5", score.top5)
