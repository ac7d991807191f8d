"""What a rank learns with, put together in the one order that works: network, arithmetic, sharing, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from allpull import marks
from allpull.data.loader.feed import Facts
from allpull.schema.spec import RunSpec
from allpull.train.checkpoint.pretrained import begin_with
from allpull.train.checkpoint.random_state import own_chance
from allpull.train.checkpoint.save_restore import Checkpoints, Cut, Parts
from allpull.train.models.build import build, trainable
from allpull.train.numerics.compiled import Compiled
from allpull.train.numerics.cuda_graph import NOT_RECORDED, CudaRecorder, hold_rate, obstacle, uneven
from allpull.train.numerics.precision import AUTOCAST, Precision
from allpull.train.optim.ema import Average
from allpull.train.optim.optimizer import optimizer_of
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import Shared, share_out
from allpull.train.parallel.sync_norm import SampleWeight, sync_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The network as the ranks share it, and all that moves it.

    ``weight`` is what this rank's samples count in batch statistics that ranks share. ``recorder`` records steps as
    CUDA graphs; None where they are made call by call, and ``not_recorded`` says why, where it was asked for.
    """

    shared: Shared
    precision: Precision
    compiled: Compiled
    optimizer: torch.optim.Optimizer
    average: Average | None
    weight: SampleWeight
    recorder: CudaRecorder | None
    not_recorded: str
    said: list[str] = field(default_factory=list)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase within a step; a step that is played back has none within, and counts as one phase."""
        return nullcontext() if self.recorder else marks.phase(name)

    def whole(self) -> AbstractContextManager[None]:
        """The phase of a step that is, or will be, played back: it is launched as one."""
        return marks.phase("backward") if self.recorder else nullcontext()

    def predicted(self, images: Tensor) -> Tensor:
        """Logits in training, in float32 or, where the model has that, float64."""
        return self.precision.forward(self.shared.module, images)

    def examined(self, network: nn.Module, images: Tensor) -> Tensor:
        """Logits in evaluation, where batches of several sizes are not worth a translation each."""
        with self.compiled.plain():
            return self.precision.forward(network, images)

    def ready(self) -> None:
        """To be called before the first step, when all that is to be restored has been; says what will not be so."""
        if self.recorder:
            hold_rate(self.optimizer, self.precision.device)
        if self.not_recorded:
            marks.remark(f"{NOT_RECORDED}: {self.not_recorded}")

    def forget(self) -> None:
        """Drop what a step that broke off, on all ranks, has left.

        Raises:
            MissingPart: it broke off on this rank and not on all.
        """
        self.precision.forget(self.optimizer)
        self.shared.forget()

    def remark(self) -> None:
        """Say, once, that the network runs untranslated where that was not asked for; to be called after each step."""
        reason = self.compiled.why_not()
        if reason and not self.said:
            self.said.append(reason)
            marks.remark(f"train.compile: the network, or part of it, runs untranslated: {reason}")


def learner_of(spec: RunSpec, facts: Facts, ranks: Ranks) -> Learner:
    """What ``spec`` asks for, for the data of ``facts``; every rank calls it, and all begin with rank 0's weights.

    What is drawn from torch's random numbers afterwards is each rank's own.

    Raises:
        AllpullError: there is no such network, device arithmetic or option here.
    """
    train = spec.train
    torch.manual_seed(train.seed)
    # the fastest convolution of each shape is tried out once: with channels last the guess is often a slow one
    torch.backends.cudnn.benchmark = train.try_convolutions
    model = build(spec.model, channels=facts.channels, classes=facts.classes, pixels=facts.pixels)
    marks.metric("trainable_parameters", trainable(model))
    if spec.model.weights and not train.resume:  # else the checkpoint's take their place
        left_out = begin_with(model, Path(spec.model.weights), classes=facts.classes, new_head=spec.model.new_head)
        if left_out:
            marks.remark(f"model.new_head: {', '.join(left_out)} begin with weights of chance")
    fsdp = spec.parallel.strategy == "fsdp" and ranks.ranks > 1
    stands = torch.device("cpu") if fsdp else ranks.device  # FSDP2 moves it there part by part
    # images are stored that way, and it is faster on CPUs as well (benchmarks/memory_layout.py; one case was not)
    model.to(stands, getattr(torch, spec.model.dtype), memory_format=torch.channels_last)  # type: ignore[call-overload]
    # before the network is halved: norms are told by their type, and stay whole
    weight = sync_norms(model, ranks) if train.sync_norm else SampleWeight()
    precision, compiled = Precision(train.precision, ranks.device), Compiled(train.compile)
    precision.prepare(model)
    recorder = CudaRecorder(ranks.device) if train.cuda_graph and ranks.device.type == "cuda" else None
    at: Callable[[Callable[[], Shared]], Shared] = recorder.run if recorder else _now
    if spec.parallel.strategy == "fsdp" and ranks.ranks == 1:
        marks.remark("parallel.strategy: a single rank has nobody to share weights with, and trains without fsdp")
    rounded_to = AUTOCAST.get(train.precision)
    shared = at(lambda: share_out(model, spec.parallel, ranks, translate=compiled, rounded_to=rounded_to))
    optimizer = optimizer_of(model, train)  # after sharing, which may put other parameters there
    precision.attach(optimizer)
    not_recorded = ""
    if train.cuda_graph:
        not_recorded = obstacle(optimizer, ranks.device, ranks=ranks.ranks, scaled=precision.scaled)
        not_recorded = not_recorded or uneven(spec.data, spec.parallel, ranks.ranks)
    average = None
    if train.ema_half_life:
        average = Average(
            model, half_life_steps=train.ema_half_life, every_steps=train.ema_every, masters=precision.masters
        )
    own_chance(train.seed, ranks.rank)
    return Learner(
        shared=shared,
        precision=precision,
        compiled=compiled,
        optimizer=optimizer,
        average=average,
        weight=weight,
        recorder=None if not_recorded else recorder,
        not_recorded=not_recorded,
    )


def checkpoints_of(spec: RunSpec, facts: Facts, ranks: Ranks, learner: Learner, folder: Path) -> Checkpoints:
    """The checkpoints of a training in ``folder``, with all of ``learner`` in them."""
    data, train = spec.data, spec.train
    files = f"by files of {ranks.ranks} ranks" if data.by_files else "by batches"
    dealt = f"blocks of {data.block}, {data.mixed} of them mixed, dealt {files}"
    return Checkpoints(
        folder,
        ranks,
        Parts(
            shared=learner.shared,
            optimizer=learner.optimizer,
            precision=learner.precision,
            average=learner.average,
        ),
        cut=Cut(
            global_batch=spec.global_batch,
            samples=facts.samples,
            seed=train.seed,
            dtype=spec.model.dtype,
            order=dealt if data.name == "pack" else "",
            data=facts.data,
        ),
        keep=train.keep_checkpoints,
        asynchronous=train.async_checkpoint,
    )


def _now(work: Callable[[], Shared]) -> Shared:
    return work()
