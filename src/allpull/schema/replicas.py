"""Whether the ranks of a data-parallel training have the same parameters and buffers."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record


class ReplicaDifference(Record):
    """A rank whose copy of the network differs from that of most ranks."""

    rank: int
    step: int = Field(description="the first check that found it, as steps done")
    tensor: str = Field(description="the first that differs")
    tensors: int = Field(description="how many differ in that check")


class Replicas(Record):
    """Whether all ranks have the same parameters and buffers."""

    checked: int = Field(description="steps at which the copies of two ranks or more were compared")
    ranks: int = Field(description="that wrote digests")
    sharded: int = Field(description="parameters that are sharded over ranks, and not compared")
    differ: list[ReplicaDifference] = Field(description="ranks with other parameters than most; each once")
    buffers_differ: list[ReplicaDifference] = Field(
        description="the same of buffers: batch statistics differ by design where DDP does not broadcast them"
    )
