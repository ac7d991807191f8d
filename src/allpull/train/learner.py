"""The learner of a rank, built in the one order that works: network, precision, parallel strategy, optimizer."""

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
from allpull.train.checkpoint.pretrained import load_pretrained
from allpull.train.checkpoint.random_state import seed_rank
from allpull.train.checkpoint.save_restore import Checkpoints, EpochFingerprint, TrainingState
from allpull.train.models.build import build, trainable
from allpull.train.numerics.compiled import Compiled
from allpull.train.numerics.cuda_graph import NOT_RECORDED, CudaRecorder, obstacle, rate_as_tensor, uneven
from allpull.train.numerics.precision import AUTOCAST, Precision
from allpull.train.optim.ema import Average
from allpull.train.optim.optimizer import optimizer_of
from allpull.train.parallel.ranks import Ranks
from allpull.train.parallel.strategy import SharedModel, distribute
from allpull.train.parallel.sync_norm import SampleWeight, sync_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The network as the ranks share it, and everything that updates it.

    ``weight`` is the weight of this rank's samples in synchronised batch statistics. ``recorder`` captures steps as
    CUDA graphs; None: steps run eagerly, and ``not_recorded`` says why if graphs were requested.
    """

    shared: SharedModel
    precision: Precision
    compiled: Compiled
    optimizer: torch.optim.Optimizer
    average: Average | None
    weight: SampleWeight
    recorder: CudaRecorder | None
    not_recorded: str
    reported: list[str] = field(default_factory=list)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase within a step; a replayed step is one phase and has none within."""
        return nullcontext() if self.recorder else marks.phase(name)

    def replay_phase(self) -> AbstractContextManager[None]:
        """The phase of a step that is, or will be, replayed: it is launched as one."""
        return marks.phase("backward") if self.recorder else nullcontext()

    def training_logits(self, images: Tensor) -> Tensor:
        """Logits in training: float32, or float64 if the model has that type."""
        return self.precision.forward(self.shared.module, images)

    def evaluation_logits(self, network: nn.Module, images: Tensor) -> Tensor:
        """Logits in evaluation, uncompiled: its batch sizes are not worth a compilation each."""
        with self.compiled.plain():
            return self.precision.forward(network, images)

    def ready(self) -> None:
        """Call before the first step, after any restore; reports what cannot be done as requested."""
        if self.recorder:
            rate_as_tensor(self.optimizer, self.precision.device)
        if self.not_recorded:
            marks.remark(f"{NOT_RECORDED}: {self.not_recorded}")

    def discard(self) -> None:
        """Drop the partial state of a step that failed on all ranks.

        Raises:
            MissingPart: it failed on this rank and not on all.
        """
        self.precision.discard(self.optimizer)
        self.shared.discard()

    def report_uncompiled(self) -> None:
        """Remark once if the network runs uncompiled against the request; call after each step."""
        reason = self.compiled.why_not()
        if reason and not self.reported:
            self.reported.append(reason)
            marks.remark(f"train.compile: the network, or part of it, runs uncompiled: {reason}")


def learner_of(spec: RunSpec, facts: Facts, ranks: Ranks) -> Learner:
    """The learner of ``spec`` for the data of ``facts``; every rank calls it, and all start with rank 0's weights.

    Afterwards each rank has its own stream of torch's random numbers.

    Raises:
        AllpullError: no such network, or the device lacks the precision or an option.
    """
    train = spec.train
    torch.manual_seed(train.seed)
    # cuDNN benchmarks each shape once: with channels last its heuristic often picks a slow kernel
    torch.backends.cudnn.benchmark = train.try_convolutions
    model = build(spec.model, channels=facts.channels, classes=facts.classes, pixels=facts.pixels)
    marks.metric("trainable_parameters", trainable(model))
    if spec.model.weights and not train.resume:  # a checkpoint replaces them
        skipped = load_pretrained(model, Path(spec.model.weights), classes=facts.classes, new_head=spec.model.new_head)
        if skipped:
            marks.remark(f"model.new_head: {', '.join(skipped)} start with random weights")
    fsdp = spec.parallel.strategy == "fsdp" and ranks.ranks > 1
    device = torch.device("cpu") if fsdp else ranks.device  # FSDP2 moves it block by block
    # images are stored channels last, which is also faster on CPUs in all but one case (benchmarks/memory_layout.py)
    model.to(device, getattr(torch, spec.model.dtype), memory_format=torch.channels_last)  # type: ignore[call-overload]
    # before conversion to half precision: norms are recognised by type and stay in float32
    weight = sync_norms(model, ranks) if train.sync_norm else SampleWeight()
    precision, compiled = Precision(train.precision, ranks.device), Compiled(train.compile)
    precision.prepare(model)
    recorder = CudaRecorder(ranks.device) if train.cuda_graph and ranks.device.type == "cuda" else None
    build_on: Callable[[Callable[[], SharedModel]], SharedModel] = recorder.run if recorder else _run
    if spec.parallel.strategy == "fsdp" and ranks.ranks == 1:
        marks.remark("parallel.strategy: a single rank has no weights to shard, and trains without fsdp")
    rounded_to = AUTOCAST.get(train.precision)
    shared = build_on(lambda: distribute(model, spec.parallel, ranks, translate=compiled, rounded_to=rounded_to))
    example = torch.zeros(2, facts.channels, *facts.pixels, dtype=getattr(torch, spec.model.dtype), device=device)
    build_on(lambda: settled(shared, compiled, lambda: precision.forward(shared.module, example)))
    optimizer = optimizer_of(model, train)  # after ``distribute``, which may replace parameters
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
    seed_rank(train.seed, ranks.rank)
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


def settled(shared: SharedModel, compiled: Compiled, forward: Callable[[], Tensor]) -> SharedModel:
    """``shared`` after passes without effect, by which DistributedDataParallel lays out its buckets for all steps.

    Where a gradient stands in its bucket decides in which order the values of three or more ranks are added: without
    this, the first step after a restore would round otherwise than that of an undisturbed training.
    """
    buffers = [buffer.clone() for buffer in shared.model.buffers()]
    for _ in range(shared.unsettled_passes):
        with compiled.plain(), shared.micro_step(last=True):
            torch.autograd.backward(0 * forward().sum())
        shared.model.zero_grad()
    for buffer, value in zip(shared.model.buffers(), buffers, strict=True):
        buffer.copy_(value)
    return shared


def checkpoints_of(spec: RunSpec, facts: Facts, ranks: Ranks, learner: Learner, folder: Path) -> Checkpoints:
    """The checkpoints, in ``folder``, of a training with ``learner``."""
    data, train = spec.data, spec.train
    files = f"by files of {ranks.ranks} ranks" if data.by_files else "by batches"
    order = f"blocks of {data.block}, {data.mixed} of them mixed, dealt {files}"
    return Checkpoints(
        folder,
        ranks,
        TrainingState(
            shared=learner.shared,
            optimizer=learner.optimizer,
            precision=learner.precision,
            average=learner.average,
        ),
        fingerprint=EpochFingerprint(
            global_batch=spec.global_batch,
            samples=facts.samples,
            seed=train.seed,
            dtype=spec.model.dtype,
            order=order if data.name == "pack" else "",
            data=facts.data,
        ),
        keep=train.keep_checkpoints,
        asynchronous=train.async_checkpoint,
    )


def _run(work: Callable[[], SharedModel]) -> SharedModel:
    return work()
