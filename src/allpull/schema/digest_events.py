"""Events with digests, which are equal where ranks have the same: their first batches, and replicas of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from allpull.schema.base import Record


class FirstBatches(Record):
    """Digests of the first batches that this rank trained on; equal on ranks that train on the same samples.

    Of each tensor in the memory of the host, at most 4096 elements at equal distances count.
    """

    kind: Literal["first_batches"]
    digests: str = Field(max_length=1000, pattern="^([0-9a-f]{8})*$", description="eight digits per batch")
    iterable_workers: int | None = Field(
        None, ge=0, description="workers of the loader that gave them, where its data set is an IterableDataset"
    )
    t_ns: int


class ReplicaTensors(Record):
    """The tensors that ``replica`` events from here on digest, in their order; written again where they change."""

    kind: Literal["replica_tensors"]
    step: int = Field(ge=0)
    parameters: list[Annotated[str, Field(max_length=1000)]] = Field(max_length=1_000_000)
    buffers: list[Annotated[str, Field(max_length=1000)]] = Field(max_length=1_000_000)
    sharded: int = Field(ge=0, description="parameters of which this rank has only a part; they are not replicas")
    t_ns: int


class Replica(Record):
    """Digests of this rank's parameters and buffers before a step; equal on all ranks where replicas agree.

    A digest is the sum, modulo 2⁶⁴ and folded to 32 bits, of the mixed bits of all elements.
    """

    kind: Literal["replica"]
    step: int = Field(ge=0, description="steps done")
    parameters: str = Field(max_length=8_000_000, pattern="^([0-9a-f]{8})*$", description="eight digits per tensor")
    buffers: str = Field(max_length=8_000_000, pattern="^([0-9a-f]{8})*$", description="eight digits per tensor")
    t_ns: int
