"""What the ranks of a run read: mean rates, over named windows, per sample, and over time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record


class IoWindow(Record):
    """Mean reading over one window of a run, summed over ranks."""

    name: Literal["all steps", "steady steps", "training"] = Field(
        description="training: the epochs of `epoch_s`, without their evaluations and checkpoints"
    )
    seconds: float
    read_bytes_per_s: float | None
    reads_per_s: float | None
    storage_read_bytes_per_s: float | None
    read_bytes: float | None
    reads: float | None
    samples: int | None = Field(description="trained in it, of all ranks")


class IoOverTime(Record):
    """Reading summed over ranks, over the time of a run; at most 300 intervals."""

    begin_s: list[float] = Field(description="begin of each interval, after the first step began")
    end_s: list[float]
    read_bytes_per_s: list[float | None]
    reads_per_s: list[float | None]
    storage_read_bytes_per_s: list[float | None]
    ranks: list[int] = Field(description="ranks measured in each interval")


class Io(Record):
    """Reading by ranks and their loader workers over the steady window."""

    read_bytes_per_s: float | None
    reads_per_s: float | None
    storage_read_bytes_per_s: float | None
    read_bytes_per_sample: float | None = Field(
        None, description="read in the window `training` ÷ its samples; without complete epochs, in `all steps`"
    )
    reads_per_sample: float | None = None
    windows: list[IoWindow] = Field(default_factory=list, description="means over named windows, evaluations included")
    over_time: IoOverTime | None = Field(None, description="filled where one run is shown")
