"""What a training to a target takes: epochs, time, interruptions, energy and cost (part of `allpull predict RUN…`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

NOTED_CHANCE = 0.001  # that a training is interrupted: below it, nothing is said


class Bounds(Record):
    """The 5, 50 and 95 % of the draws; ``value`` is None where only bounds are known, a bound where there is none."""

    value: float | None
    low: float | None
    high: float | None


class Interruptions(Record):
    """What failures of the machine do to the training."""

    source: Literal["published", "stated"] = Field(
        description="of the rate: stated by the user, or that of 16,384 H100 (Llama Team 2024)"
    )
    mean_between_s: Bounds = Field(description="mean time between interruptions of a job of these ranks")
    chance: Bounds = Field(description="that the training is interrupted at all, without the time that this costs")
    checkpoint_interval_s: Bounds | None = Field(
        description="work between two checkpoints: as stated, else the best (Daly 2006); None: writing one is not timed"
    )
    useful_share: Bounds | None = Field(
        description="training without interruptions ÷ with them; None: `time_s` has no interruptions in it"
    )


class TargetForecast(Record):
    """A training to a target on one number of ranks."""

    ranks: int
    hosts: int
    global_batch: float = Field(description="samples per optimizer step")
    target: str = Field(description="such as 0.759 of test_top1, or a number of epochs")
    epochs_from: Literal["stated", "runs", "published"]
    recipe: str | None = Field(description="name of the published recipe; None: of the user's own")
    epochs: Bounds
    bounded: str | None = Field(description="why the epochs have only bounds; None: they have an estimate")
    time_s: Bounds = Field(description="from the start to the target, with interruptions where they could be priced")
    interruptions: Interruptions
    energy_kwh: Bounds | None = Field(description="None: power was neither measured nor stated")
    power_from: Literal["measured", "stated"] | None
    cost: Bounds | None = Field(description="in the currency of the price; None: no price was stated")
    notes: list[str]
