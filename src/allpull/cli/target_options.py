"""Options of ``allpull predict`` about a target: epochs, price, power, checkpoints and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpull.errors import BadInput
from allpull.units import parse_time_s

if TYPE_CHECKING:
    from allpull.predict.targets import TargetRequest
    from allpull.predict.terms.cost import Price
    from allpull.predict.terms.failures import FailureRate

PER_HOST = "/host"

Accuracy = Annotated[
    float | None,
    typer.Option("--target", metavar="SHARE", help="Time to an accuracy that some of the runs reached, such as 0.759."),
]
Epochs = Annotated[
    float | None, typer.Option("--epochs", metavar="N", help="Time for so many epochs, whatever the batch.")
]
EpochsFrom = Annotated[
    str | None,
    typer.Option("--epochs-from", metavar="RECIPE", help="Time to a published target, such as mlperf-lars-75.9."),
]
EpochSamples = Annotated[
    float | None,
    typer.Option("--epoch-samples", metavar="N", help="Samples of an epoch. [default: as in the runs, or the recipe]"),
]
PriceText = Annotated[
    str | None,
    typer.Option("--price", metavar="PRICE", help="Of an hour of a rank, or of a host: 2.50, or 30/host."),
]
Watts = Annotated[
    float | None,
    typer.Option("--watts", metavar="W", min=0, help="Mean power of a rank. [default: as recorded of accelerators]"),
]
HostWatts = Annotated[
    float | None, typer.Option("--host-watts", metavar="W", min=0, help="Mean power of a host besides. [default: 0]")
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="TIME", help="What writing a checkpoint takes. [default: as in the runs]"),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option("--checkpoint-every", metavar="TIME", help="Work between checkpoints. [default: the best]"),
]
Restart = Annotated[
    str | None, typer.Option("--restart", metavar="TIME", help="From an interruption to the next step. [default: 0]")
]
Failures = Annotated[
    str | None,
    typer.Option(
        "--failures",
        metavar="N/HOURS",
        help="Interruptions in so many rank-hours, such as 3/20000. [default: published ones]",
    ),
]


NAMES = (
    *("target", "epochs", "epochs_from", "epoch_samples", "price", "watts", "host_watts"),
    *("checkpoint", "checkpoint_every", "restart", "failures"),
)
"""Parameters of the command that these options are."""


def target_request(options: Mapping[str, Any]) -> TargetRequest | None:
    """What the parameters ``NAMES`` of ``options`` ask for; None: nothing.

    Raises:
        BadInput: one of them makes no sense, or they name no target, or several.
    """
    if all(options[name] is None for name in NAMES):
        return None
    from allpull.predict.targets import TargetRequest  # noqa: PLC0415  numpy is not needed for --help

    price, failures, checkpoint = options["price"], options["failures"], options["checkpoint"]
    every, restart = options["checkpoint_every"], options["restart"]
    return TargetRequest(
        accuracy=options["target"],
        epochs=options["epochs"],
        epochs_from=options["epochs_from"],
        epoch_samples=options["epoch_samples"],
        price=None if price is None else parse_price(price),
        rank_w=options["watts"],
        host_w=options["host_watts"] or 0.0,
        checkpoint_s=None if checkpoint is None else parse_time_s(checkpoint),
        checkpoint_every_s=None if every is None else parse_time_s(every),
        restart_s=0.0 if restart is None else parse_time_s(restart),
        failure_rate=None if failures is None else parse_failures(failures),
    )


def parse_price(text: str) -> Price:
    """The price of an hour.

    Raises:
        BadInput: it is none.

    >>> parse_price("2.50"), parse_price("30/host")
    (Price(per_hour=2.5, per_host=False), Price(per_hour=30.0, per_host=True))
    """
    from allpull.predict.terms.cost import Price  # noqa: PLC0415

    return Price(per_hour=_number(text.removesuffix(PER_HOST), "--price", "2.50 or 30/host"), per_host=PER_HOST in text)


def parse_failures(text: str) -> FailureRate:
    """Interruptions in rank-hours.

    Raises:
        BadInput: it is no such pair of numbers.

    >>> parse_failures("3/20000")
    FailureRate(interruptions=3.0, rank_hours=20000.0)
    """
    from allpull.predict.terms.failures import FailureRate  # noqa: PLC0415

    count, slash, hours = text.partition("/")
    example = "3/20000"
    if not slash:
        raise BadInput(f"--failures {text!r}: interruptions and rank-hours are two numbers", hint=f"such as {example}")
    return FailureRate(
        interruptions=_number(count, "--failures", example), rank_hours=_number(hours, "--failures", example)
    )


def _number(text: str, option: str, example: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{option}: {text!r} is no number", hint=f"such as {example}")
    return number
