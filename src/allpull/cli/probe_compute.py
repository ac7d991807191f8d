"""``allpull probe compute``: how long a training step of a model takes, by batch, precision and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_options import Duration, Where, measure, parse_counts, parse_names, parse_seconds
from allpull.cli.say import answer, answer_json, note
from allpull.errors import BadInput, UnknownName
from allpull.kernel import usable_cpus
from allpull.units import parse_bytes

EXAMPLE = "allpull probe compute resnet50 --batch 1,8,32 --precision fp32,bf16"

BUILDER = "allpull.train.models.build:build"  # by name: rooms on one floor do not import each other
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MOST_BATCH, MOST_SIZE, MOST_THREADS = 1 << 20, 8192, 4096
MOST_CHANNELS, MOST_CLASSES = 4096, 1 << 20
USED = tuple(
    f"model.{name}" for name in ("width", "norm", "norm_scale", "conv_bias", "stride", "head", "zero_init", "blur_pool")
)

Model = Annotated[str, typer.Argument(help="A model of allpull train --list-models, torchvision:NAME or timm:NAME.")]
Batches = Annotated[str, typer.Option("--batch", help="Batch sizes, such as 1,2,4,8.")]
Precisions = Annotated[str, typer.Option("--precision", help="One or several of fp32, tf32, bf16 and fp16.")]
Threads = Annotated[
    str | None, typer.Option("--threads", help="Threads of torch, such as 1,2. [default: all cores of this machine]")
]
Size = Annotated[int, typer.Option("--size", min=1, max=MOST_SIZE, help="Pixels per side; Inception-v3 takes 299.")]
Channels = Annotated[int, typer.Option("--channels", min=1, max=MOST_CHANNELS, help="Channels of an image.")]
Classes = Annotated[int, typer.Option("--classes", min=1, max=MOST_CLASSES, help="Number of classes.")]
Largest = Annotated[bool, typer.Option("--largest-batch", help="Also find the largest batch that fits into memory.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Memory that the largest batch has to fit into. [default: what the GPU has; CPUs: half of what is free]",
    ),
]
BucketSize = Annotated[str, typer.Option("--bucket-size", help="Largest size of a bucket of gradients.")]


def compute(  # noqa: PLR0917  one parameter an option, called by typer alone
    model: Model,
    batches: Batches = "1,2,4,8,16,32",
    precisions: Precisions = "fp32,bf16",
    threads: Threads = None,
    size: Size = 224,
    channels: Channels = 3,
    classes: Classes = 1000,
    bucket_size: BucketSize = "25MiB",
    largest_batch: Largest = False,
    memory_limit: MemoryLimit = None,
    duration: Duration = "2s",
    launcher: Where = None,
    sets: ProbeSets = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Time training steps of a model.

    By batch size, precision and threads; and when each bucket of gradients is ready.
    """
    from allpull.analyse.probes.compute import computed  # noqa: PLC0415  numpy is not needed for --help
    from allpull.jobs.placement import is_here, need_torch  # noqa: PLC0415
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.report.terminal.probe import compute_table  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.probes import ComputeAnswer  # noqa: PLC0415
    from allpull.train.models import LIBRARIES, MODELS  # noqa: PLC0415

    if model.partition(":")[0] not in (*MODELS.names(), *LIBRARIES):
        raise UnknownName("model", model, MODELS.names())
    options: dict[str, object] = {
        "builder": BUILDER,
        "batches": parse_counts(batches, "--batch", most=MOST_BATCH),
        "precisions": parse_names(precisions, "precision", PRECISIONS),
        "threads": parse_counts(threads or str(usable_cpus()), "--threads", most=MOST_THREADS),
        "size": size,
        "channels": channels,
        "classes": classes,
        "bucket_bytes": parse_bytes(bucket_size),
        "seconds": parse_seconds(duration),
    }
    options |= _search(memory_limit, largest_batch=largest_batch)
    if not options["bucket_bytes"]:
        raise BadInput(f"--bucket-size {bucket_size}: a bucket holds something", hint="such as 25MiB")
    given, accepted = _overrides(model, sets or []), (*USED, "model.name")
    request = ProbeRequest(name="compute", ranks=1, launcher=launcher, sets=given, accepts=accepted, min_ranks=1)
    spec = specification(request, notify=note)
    if is_here(spec):
        need_torch()
        from allpull.train.models.build import trainable_parameters  # noqa: PLC0415  torch: only now

        trainable_parameters(spec.model, channels=channels, classes=classes, pixels=(size, size))
    record, directory = measure("compute", spec, out, options)
    result = computed(read_probe(directory, "compute", ComputeAnswer), record.id)
    answer_json(result) if as_json else answer(compute_table(result))


def _search(memory_limit: str | None, *, largest_batch: bool) -> dict[str, object]:
    """Options of the search for the largest batch; none where it is not requested."""
    if memory_limit is not None and not largest_batch:
        raise BadInput("--memory-limit is for the largest batch", hint="add --largest-batch")
    return {"largest_batch": True, "memory_limit": parse_bytes(memory_limit or "0")} if largest_batch else {}


def _overrides(model: str, sets: list[str]) -> list[str]:
    """The user's overrides with those of a probe on one host."""
    if any(text.partition("=")[0].strip() == "model.name" for text in sets):
        raise BadInput("--set model.name: the model is given without it", hint=f"as in allpull probe compute {model}")
    one_host = [] if any(text.startswith("launch.hosts") for text in sets) else ["launch.hosts=1"]
    return [*sets, *one_host, f"model.name={model}"]
