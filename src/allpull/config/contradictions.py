"""Trainer options that are valid alone but contradict each other, or are not available together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from allpull.schema.spec import RunSpec
from allpull.schema.trainspec import DataSpec, ModelSpec, ParallelSpec, TrainSpec

PLAIN_DDP = ParallelSpec()
PLAIN_DATA = DataSpec()
OF_SYNTHETIC = ("bands", "classes", "multi_label")
OF_FAMILY: dict[str, tuple[str, ...]] = {
    "resnet8": (),
    "resnet9": (),
    "resnet14": (),
    "resnet20": (),
    "vgg16": (),
    "vgg16_bn": (),
    "inception_v3": ("norm_scale",),
    **dict.fromkeys(
        ("resnet18", "resnet34", "resnet50", "resnet101"),
        ("norm_scale", "conv_bias", "stride", "head", "zero_init", "blur_pool"),
    ),
}
"""Model → options that not all models have; a copy of its builder's parameters, which only torch could provide."""
PLAIN_MODEL = ModelSpec()
OF_DDP = ("bucket_mb", "bucket_view", "batched_copy", "static_graph", "broadcast_buffers", "compression", "overlap")


def of_the_trainer(spec: RunSpec) -> Iterator[str]:
    """A line for each contradiction: the option to change, the conflicting one, and the consequence.

    >>> from allpull.schema.trainspec import TrainSpec
    >>> list(of_the_trainer(RunSpec(train=TrainSpec(optimizer="lars", nesterov=True))))
    ['train.nesterov: train.optimizer = lars has no such momentum; it is for sgd']
    """
    yield from _of_the_data(spec.data)
    yield from _of_the_model(spec.model)
    yield from _of_both(spec.data, spec.model, spec.train)
    yield from _of_training(spec.train, spec.model, spec.launch.ranks)
    yield from _of_sharing(spec.parallel, spec.train)
    yield from _of_translating(spec.parallel, spec.train, spec.launch.ranks)


def _of_the_data(data: DataSpec) -> Iterator[str]:
    for name in OF_SYNTHETIC if data.name != "synthetic" else ():
        if getattr(data, name) != getattr(PLAIN_DATA, name):
            yield f"data.{name}: data.name = {data.name} has its own; it is an option of synthetic"
    if 0 < data.size < data.first_size:
        yield (
            f"data.first_size: training starts at {data.first_size:,} pixels, but data.size = {data.size:,} is less; "
            "give a smaller first size"
        )
    if data.growth_epochs and not data.first_size:
        yield "data.growth_epochs: image sizes increase from data.first_size, which is 0"
    test_pixels = data.test_size or data.size
    if 0 < data.test_resize < test_pixels:
        yield (
            f"data.test_resize: a centre crop of {test_pixels:,} pixels does not fit into {data.test_resize:,}; "
            "it must be at least data.test_size"
        )
    if data.mixed > 1 and data.block == 1:
        yield f"data.mixed: {data.mixed:,} blocks of one record each are a full shuffle already; set data.block"


def _of_the_model(model: ModelSpec) -> Iterator[str]:
    own = OF_FAMILY.get(model.name)
    for name in () if own is None else sorted({*chain(*OF_FAMILY.values())} - {*own}):
        if getattr(model, name) != getattr(PLAIN_MODEL, name):
            yield f"model.{name}: model.name = {model.name} has no such option; leave it at its default"
    if model.zero_init and (model.norm == "none" or not model.norm_scale):
        cause = "model.norm = none" if model.norm == "none" else "model.norm_scale = false"
        yield f"model.zero_init: with {cause} there is no trained scale to start at 0"
    elif model.norm == "none" and not model.norm_scale:
        yield "model.norm_scale: with model.norm = none there is no scale to leave out"


def _of_both(data: DataSpec, model: ModelSpec, train: TrainSpec) -> Iterator[str]:
    if train.log_accuracy and data.mixup:
        yield "train.log_accuracy: samples mixed by data.mixup have no single class"
    for name in ("log_accuracy", "stop_at_top1"):
        if getattr(train, name) and data.multi_label:
            yield f"train.{name}: with data.multi_label samples have no single class, and so no top-1 accuracy"
    if model.head == "flatten" and data.first_size:
        yield "data.first_size: with model.head = flatten a model accepts images of one size only"
    if model.head == "flatten" and data.test_size not in (0, data.size):
        yield f"data.test_size: with model.head = flatten a model accepts images of one size only, {data.size:,} pixels"
    if data.first_size and (train.epochs == 1 or data.growth_epochs >= train.epochs):
        yield (
            f"data.growth_epochs: after {max(1, data.growth_epochs):,} epochs images would reach their full size, but "
            f"train.epochs = {train.epochs:,}; no epoch would train on it"
        )


def _of_training(train: TrainSpec, model: ModelSpec, ranks: int) -> Iterator[str]:
    if train.nesterov and train.optimizer != "sgd":
        yield f"train.nesterov: train.optimizer = {train.optimizer} has no such momentum; it is for sgd"
    elif train.nesterov and train.momentum == 0:
        yield "train.nesterov: it needs momentum, and train.momentum is 0"
    if model.dtype == "float64" and train.precision != "fp32":
        yield f"train.precision: {train.precision} with model.dtype = float64 is contradictory; choose one"
    if train.sync_norm and model.norm != "batch":
        yield f"train.sync_norm: model.norm = {model.norm} has no batch statistics to share"
    if train.schedule == "milestones" and not train.milestones:
        yield "train.milestones: train.schedule = milestones needs them, such as [30, 60, 80]"
    if train.milestones and train.schedule != "milestones":
        yield f"train.milestones: they have no effect with train.schedule = {train.schedule}; set it to milestones"
    if train.ema_every > 1 and not train.ema_half_life:
        yield "train.ema_every: there is no moving average; set train.ema_half_life"
    share = -(-train.global_batch // ranks) or train.batch
    if share < train.accumulate:
        yield f"train.accumulate: a rank's {share:,} samples cannot be computed in {train.accumulate:,} parts"


def _of_sharing(parallel: ParallelSpec, train: TrainSpec) -> Iterator[str]:
    yield from _of_fsdp(parallel, train) if parallel.strategy == "fsdp" else _of_ddp(parallel, train)


def _of_fsdp(parallel: ParallelSpec, train: TrainSpec) -> Iterator[str]:
    for name in OF_DDP:
        if getattr(parallel, name) != getattr(PLAIN_DDP, name):
            yield f"parallel.{name}: it is an option of ddp, but parallel.strategy is fsdp"
    if train.precision == "o2":
        yield "train.precision: o2 keeps the weights twice on each rank, which parallel.strategy = fsdp avoids"
    if train.cuda_graph:
        yield "train.cuda_graph: steps of parallel.strategy = fsdp are not recorded"


def _of_ddp(parallel: ParallelSpec, train: TrainSpec) -> Iterator[str]:
    if parallel.static_graph and train.accumulate > 1:
        yield "parallel.static_graph: gradients accumulated over parts of a batch are exchanged only with the last one"
    if parallel.compression == "powersgd" and not parallel.overlap:
        yield "parallel.compression: powersgd hooks into the exchange within backward; parallel.overlap is false"
    if parallel.compression == "powersgd" and train.precision in {"fp16", "o2"}:
        yield (
            f"parallel.compression: powersgd would keep the infinities that train.precision = {train.precision} "
            "produces now and then; use bf16"
        )
    if parallel.broadcast_buffers and not parallel.overlap:
        yield "parallel.broadcast_buffers: it is part of ddp's own exchange, but parallel.overlap is false"


def _of_translating(parallel: ParallelSpec, train: TrainSpec, ranks: int) -> Iterator[str]:
    if train.cuda_graph and parallel.backend == "gloo" and ranks > 1:
        yield "train.cuda_graph: only NCCL's exchange can be recorded, and parallel.backend is gloo"
    if train.cuda_graph and train.accumulate > 1:
        yield "train.cuda_graph: a step in several parts (train.accumulate) is not recorded"
    if train.cuda_graph and train.compile in {"reduce-overhead", "max-autotune"}:
        yield f"train.cuda_graph: train.compile = {train.compile} records its own graphs; choose one"
    if train.compile != "none" and parallel.bucket_mb and min(parallel.bucket_mb) < 1:
        yield "parallel.bucket_mb: torch.compile splits the model at buckets, which must be at least 1 MiB"
    if train.compile != "none" and parallel.static_graph:
        yield "parallel.static_graph: PyTorch does not support it together with train.compile"
