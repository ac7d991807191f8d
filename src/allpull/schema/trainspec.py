"""The options of the reference trainer: data, model, training, and how ranks share the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from allpull.schema.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Which samples, and how they are prepared. Options marked packs or imagefolder apply to that data set."""

    name: str = option("digits", "data set: a name from `allpull train --list-data`")
    path: str = option(
        "",
        "folder of the data set, empty: where it is usually installed; pack: folder that holds packs train and val,"
        " or a pack; imagefolder: folder that holds train and val with a folder per class, or such a part",
    )
    test_path: str = option(
        "",
        "packs, imagefolder: the test part; empty: the folder val, or test, next to train in data.path",
    )
    limit: int = option(
        0,
        "use only this many training samples, the first (imagefolder: evenly spaced); 0: all (synthetic: 1,280)",
        ge=0,
        le=2**31,
    )
    size: int = option(
        0,
        "pixels per side of the model's input; 0: those of the data set (224 for synthetic, and for packs unless"
        " all images are equal squares)",
        ge=0,
        le=4096,
    )
    bands: int = option(0, "synthetic: channels of an image; 0: 3", ge=0, le=4096)
    classes: int = option(0, "synthetic: classes, or labels with data.multi_label; 0: 1,000", ge=0, le=2**20)
    multi_label: bool = option(False, "synthetic: each sample has several labels, as in BigEarthNet, not one class")
    test_size: int = option(0, "packs, imagefolder: pixels per side in evaluation; 0: data.size", ge=0, le=4096)
    test_resize: int = option(
        0,
        "packs, imagefolder: shorter side to which an image is resized before the centre crop in evaluation;"
        " 0: test size × 8/7; with crop = whole nothing is cropped unless this is set",
        ge=0,
        le=8192,
    )
    first_size: int = option(
        0,
        "packs: pixels per side in the first epoch, increasing to data.size in multiples of 32 (of 4 below 128);"
        " 0: constant size",
        ge=0,
        le=4096,
    )
    growth_epochs: int = option(0, "packs: epochs until images reach data.size; 0: all but the last", ge=0)
    crop: Literal["random", "whole"] = option(
        "random", "packs, imagefolder: train on a random crop of each image, resized, or on the whole image"
    )
    min_area: float = option(
        0.08, "packs, imagefolder: smallest share of an image that a random crop covers", gt=0, le=1
    )
    mean: tuple[float, ...] = option(
        (),
        "packs, imagefolder: mean of each channel, in the units of the stored values; empty: that of the training pack,"
        " or of ImageNet for imagefolder",
    )
    std: tuple[float, ...] = option(
        (),
        "packs, imagefolder: standard deviation of each channel, as data.mean; empty: as data.mean",
        gt=0,
    )
    shift_pixels: int = option(
        0, "augmentation: shift by up to this many pixels in each direction (not for packs)", ge=0, le=16
    )
    flip: bool = option(False, "augmentation: mirror half of the samples left to right")
    turn: bool = option(False, "packs, imagefolder: rotate by 0, 90, 180 or 270 degrees, as suits aerial images")
    mixup: float = option(
        0.0,
        "augmentation: mix pairs of samples with weights from a Beta(mixup, mixup) distribution; 0: off",
        ge=0,
        le=100,
    )
    threads: int = option(
        0,
        "packs: threads per rank that read and decode; 0: the processors of its host, or as many as its container's"
        " CPU quota allows, divided by the ranks there, at most 16",
        ge=0,
        le=1024,
    )
    ahead: int = option(
        2, "packs, imagefolder: batches prepared in advance; imagefolder: by each worker", ge=1, le=1024
    )
    workers: int = option(
        0,
        "imagefolder: worker processes per rank that read and decode, as of a DataLoader of torch; 0: the rank itself",
        ge=0,
        le=1024,
    )
    block: int = option(
        1, "packs: shuffle blocks of this many neighbouring records, so that reads stay sequential", ge=1
    )
    mixed: int = option(1, "packs: blocks whose records are shuffled together", ge=1)
    by_files: bool = option(False, "packs: each rank trains only on its own files")
    on_odd: Literal["skip", "substitute"] = option(
        "skip", "packs, imagefolder: a training sample that cannot be decoded is skipped, or replaced by another"
    )
    odd_limit: float = option(
        0.01,
        "packs, imagefolder: share of the samples of a part that may be skipped or replaced in an epoch; beyond it"
        " training stops",
        ge=0,
        le=1,
    )
    access: Literal["read", "map"] = option("read", "packs: files are read, or mapped into memory")
    resizer: Literal["auto", "opencv", "pillow"] = option(
        "auto",
        "packs, imagefolder: library that resizes training images; auto: OpenCV for packs where it is installed,"
        " else Pillow",
    )
    fast_decode: bool = option(False, "packs: decode JPEG in training with the faster, less exact inverse transform")
    cached: bool = option(False, "repeat the first batch of an epoch: the throughput if input cost nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Which network."""

    name: str = option("resnet8", "model: a name from `allpull train --list-models`")
    width: int = option(
        0, "channels of the first stage; 0: the network's own (16 for resnet8, 14 and 20, else 64)", ge=0, le=1024
    )
    norm: Literal["batch", "group", "none"] = option(
        "batch", "normalisation: batch, group (no batch statistics) or none"
    )
    norm_scale: bool = option(True, "norms have a trained scale; false: it stays at 1, as in Keras with scale=False")
    conv_bias: bool = option(False, "convolutions have biases, as in Keras")
    stride: Literal["v1", "v1.5"] = option(
        "v1.5", "bottlenecks downsample in their 3×3 convolution (v1.5) or in the 1×1 before it (v1)"
    )
    head: Literal["pool", "flatten"] = option(
        "pool", "input of the classifier: the mean over all pixels, or all pixels after 2×2 average pooling (flatten)"
    )
    zero_init: bool = option(False, "the last norm of each residual block starts at 0")
    blur_pool: bool = option(False, "blur before each downsampling by 2")
    weights: str = option("", "file of initial weights, a state_dict with torchvision's names; empty: random weights")
    new_head: bool = option(
        False,
        "model.weights: skip a last layer for another number of classes; it starts with random weights",
    )
    dtype: Literal["float32", "float64"] = option("float32", "arithmetic: float32, or float64 for exact checks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """How the network is trained."""

    epochs: int = option(10, "passes over the training set", ge=1, le=100_000)
    batch: int = option(64, "samples per rank and step; the global batch is this times the ranks", ge=1)
    global_batch: int = option(
        0, "fixed global batch for strong scaling, divided among the ranks; 0: batch × ranks", ge=0
    )
    lr: float = option(0.1, "learning rate per 256 samples of global batch, at the end of the warm-up", gt=0, le=100)
    optimizer: Literal["sgd", "lars"] = option("sgd", "optimizer: SGD, or LARS for very large batches")
    momentum: float = option(0.9, "momentum of SGD and LARS", ge=0, lt=1)
    nesterov: bool = option(False, "Nesterov's momentum, for SGD")
    weight_decay: float = option(1e-4, "weight decay; see train.decay", ge=0, le=1)
    decay: Literal["weights", "all"] = option(
        "weights", "parameters that are decayed: all but norms and biases (weights), or all, as in plain SGD"
    )
    clip_norm: float = option(0.0, "clip the total gradient norm to this; 0: off", ge=0)
    schedule: Literal["cosine", "step", "milestones", "polynomial", "constant"] = option(
        "cosine", "learning-rate schedule"
    )
    power: float = option(2.0, "power of the polynomial schedule; 1: linear", gt=0, le=10)
    step_epochs: float = option(30.0, "step schedule: divide by 10 every this many epochs", gt=0)
    milestones: tuple[float, ...] = option(
        (), "milestones schedule: divide by 10 after each of these numbers of epochs, such as [30, 60, 80]", gt=0
    )
    warmup_epochs: float = option(1.0, "epochs over which the learning rate rises to its full value", ge=0)
    label_smoothing: float = option(0.0, "label smoothing of the cross-entropy", ge=0, lt=1)
    accumulate: int = option(
        1, "parts of a rank's batch that pass through the model one after another, to save memory", ge=1, le=65536
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16", "o2"] = option(
        "fp32",
        "arithmetic: fp32; tf32 in matrix products; bf16 or fp16 (with loss scaling) where autocast allows;"
        " o2: model in fp16 except its norms, optimizer weights in fp32, as in Apex O2",
    )
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = option(
        "none", "compile the model with torch.compile in this mode"
    )
    cuda_graph: bool = option(False, "record a whole step once and replay it, on a GPU")
    try_convolutions: bool = option(
        True,
        "on a GPU, benchmark cuDNN's convolutions once per image size and use the fastest; another process may choose"
        " others, and then the last bits of losses differ",
    )
    sync_norm: bool = option(False, "batch statistics over all ranks in each step, instead of per rank")
    ema_half_life: float = option(
        0.0, "half-life, in steps, of a weight in the moving average that is evaluated; 0: no average", ge=0
    )
    ema_every: int = option(1, "steps between updates of the moving average", ge=1)
    evaluation: Literal["parallel", "serial"] = option(
        "parallel", "evaluate on all ranks, or on rank 0 while the others wait, as naive scripts do"
    )
    async_checkpoint: bool = option(True, "write checkpoints while training continues")
    seed: int = option(0, "seed of initial weights, order and augmentation", ge=0, lt=2**32)
    evaluate_every: int = option(1, "evaluate every this many epochs, and after the last", ge=1)
    evaluate_batch: int = option(256, "samples per rank and evaluation step", ge=1)
    checkpoint_every: int = option(0, "steps between checkpoints; 0: at the end of each epoch", ge=0)
    keep_checkpoints: int = option(2, "checkpoints kept, newest last", ge=1, le=1000)
    stop_after: int = option(0, "stop after this many steps in total, as if interrupted; 0: never", ge=0)
    check_replicas: int = option(
        0,
        "steps between digests of all parameters and buffers, which should agree on all ranks; 0: none",
        ge=0,
        le=10**9,
    )
    stop_at_top1: float = option(
        0.0, "stop after the evaluation whose top-1 accuracy is at least this, as a fraction; 0: never", ge=0, le=1
    )
    save_on_term: bool = option(
        False,
        "on SIGTERM, write a checkpoint and end within launch.grace_s, as SIGUSR1 always does; always on in job"
        " scripts that may be requeued",
    )
    resume: str = option("", "run directory or checkpoint file to resume from; empty: start from scratch")
    log_every: int = option(
        10, "steps between points of the training-loss curve; points are written ten at a time", ge=1
    )
    log_accuracy: bool = option(
        False, "also record the training batches' top-1 and top-5 accuracy as curves; one class per sample, no mixup"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """How ranks share one step: DistributedDataParallel and its options, or FSDP2."""

    strategy: Literal["ddp", "fsdp"] = option(
        "ddp", "every rank has the whole model (ddp), or a share of its weights and optimizer state (fsdp)"
    )
    backend: Literal["auto", "nccl", "gloo"] = option(
        "auto",
        "communication between ranks: nccl, with one GPU per rank; gloo, on CPUs, and on GPUs via the CPU, where ranks"
        " may share one; auto: nccl where each rank has its own GPU, else gloo",
    )
    bucket_mb: tuple[float, ...] = option(
        (),
        "ddp: size of a bucket in MiB; several, in the order in which they become ready, the last also for all further"
        " buckets, need torch 2.13; empty: 1 for the first, 25 for the others",
        gt=0,
        le=65536,
    )
    bucket_view: bool = option(True, "ddp with overlap: gradients are views of their buckets, which saves a copy")
    batched_copy: bool = option(
        False, "ddp with overlap: gradients are copied into a bucket all at once when it is full; needs torch 2.13"
    )
    static_graph: bool = option(
        False, "ddp with overlap: promise that each step uses the same parameters; not with train.accumulate"
    )
    broadcast_buffers: bool = option(
        False, "ddp with overlap: broadcast rank 0's batch statistics to all ranks in each step"
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = option(
        "none", "ddp: format in which gradients are sent; powersgd: as low-rank matrices, with overlap only"
    )
    powersgd_rank: int = option(1, "ddp: rank of PowerSGD's approximation", ge=1, le=1024)
    powersgd_start: int = option(1000, "ddp: steps before PowerSGD begins to compress", ge=2)
    overlap: bool = option(True, "ddp: send gradients during backward; false: all of them after it")
    reshard: bool = option(
        True, "fsdp: free gathered weights after forward, to save memory; false: only after backward"
    )
