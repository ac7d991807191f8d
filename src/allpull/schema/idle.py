"""How much of an epoch the accelerators ran nothing of the training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

IdleSource = Literal["device times", "profiler windows", "GPU utilisation"]


class EpochIdle(Record):
    """One epoch."""

    epoch: int
    share: float | None = Field(description="None: its accelerators' times are not known")


class AcceleratorIdle(Record):
    """The share of an epoch's wall time in which an accelerator ran nothing of ours, mean over accelerators.

    A collective runs on the accelerator while it waits for other ranks, so waiting inside it is not idle.
    """

    share: float | None = Field(description="mean over the epochs that epoch_s averages; None: reason says why")
    source: IdleSource | None = Field(
        description="device times: of steps, a lower bound by at most a tenth of them; profiler windows: of their steps"
        " alone; GPU utilisation: samples of the driver, which counts other programs' kernels as running too"
    )
    known: float | None = Field(description="share of the epochs' time, of all ranks, that the source covers")
    epochs: list[EpochIdle] = Field(description="those averaged, at most the last 1,000; empty for profiler windows")
    reason: str | None = Field(description="why there is no share")
