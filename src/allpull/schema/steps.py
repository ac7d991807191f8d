"""``steps/rank-NNNNN.jsonl``: a header line, then one line per optimizer step of one rank.

Steps are contiguous: one begins when the one before ended, so that an evaluation or checkpoint between two steps
is part of the later one. All times are integer nanoseconds of the host's monotonic clock.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from allpull.schema.base import Record

Tag = Literal["warmup", "first_batch", "evaluation", "checkpoint", "resumed", "skipped", "traced"]

PHASES = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
"""Spans that a rank may record; analysis splits ``backward`` into compute, wait and transfer, and adds ``other``."""

PROFILER = "torch.profiler"
"""In ``sources``: the steps were read from its traces."""

ROLLOUTS = (ROLLOUT, ENVIRONMENT) = ("rollout", "environment")
"""Named phases of reinforcement learning, which the hooks record too: useful work, part of ``forward`` once read."""


class Clock(Record):
    """One moment on both clocks: torch stamps real time, we stamp monotonic time."""

    monotonic_ns: int
    realtime_ns: int


class Compared(Record):
    """A host's clock compared with that of another, estimated after the run from timestamps of both.

    Each look is a moment of the host's own clock, by how much it was ahead then, and how wrong that may be, in ns.
    """

    against: str = Field(description="the reference host; it has no looks")
    looks: list[Annotated[list[int], Field(min_length=3, max_length=3)]] = Field(max_length=10_000)


class StepsHeader(Record):
    """First line of a steps file: the rank that wrote it, and how."""

    schema_: str = Field(alias="schema")
    rank: int = Field(ge=0)
    local_rank: int = Field(ge=0)
    ranks: int = Field(ge=1, le=1_000_000)
    host: str
    boot_id: str | None = None
    pid: int = Field(ge=0)
    clock: Clock
    boundary: str = Field(description="how the end of a step is known, such as marks.step")
    sources: list[str] = Field(default_factory=list, description="sources of the times")
    cpus: str | None = Field(None, description="CPUs that the rank may run on, such as 0-3,8")
    warmup_steps: int = Field(0, ge=0)
    compared: Compared | None = Field(
        None, description="its host's clock, from the collectives of an imported run; recorded runs have pings"
    )
    budget: int = Field(description="bytes that the file may take; records are thinned before it is spent")


Collective = Annotated[list[int | None], Field(min_length=5, max_length=5)]
"""A collective that the program called, or that DDP made in forward. ``kind`` is the ``id`` of an event
``collective_kind``. The rank was blocked for ``blocked_ns`` up to ``end_ns``; both are null where it never waited.
"""


Reduction = Annotated[list[int], Field(min_length=9)]
"""A reduction of gradients in backward. ``network`` counts the networks of a rank that reduce, from 0. Its backward
pass lasted from ``begin_ns`` to ``done_ns``, when the reduced gradients were back. By then the step had spent
``input_ns`` to ``optimizer_ns`` in these phases, time blocked in backward included. ``ready_ns`` of its buckets follow,
as in the step; the last is the arrival. Several networks that reduce in one backward pass have equal ``begin_ns``.
"""


class StepRecord(Record):
    """One optimizer step of one rank. A time that was not measured is null, never 0."""

    step: int = Field(ge=0, description="from 0, counted over the whole training, resumed runs included")
    epoch: int = Field(ge=0)
    begin_ns: int
    end_ns: int
    samples: int | None = Field(None, ge=0, description="samples of this rank")
    elements: int | None = Field(
        None,
        ge=0,
        description="elements of this rank's batches, padding included: of the largest tensor of each. Absent after the"
        " first step up to that in which they are not proportional to samples",
    )
    input_ns: int | None = Field(None, ge=0, description="blocked in the loader")
    copy_ns: int | None = Field(None, ge=0, description="host to device")
    forward_ns: int | None = Field(None, ge=0)
    backward_ns: int | None = Field(None, ge=0, description="inside backward, collectives included")
    optimizer_ns: int | None = Field(None, ge=0)
    evaluation_ns: int | None = Field(None, ge=0)
    checkpoint_ns: int | None = Field(None, ge=0)
    arrival_ns: int | None = Field(
        None,
        description="when the last gradient was ready: arrival at the last reduction. Where an accelerator computes, "
        "when the host had issued it; events have the moments of the device",
    )
    done_ns: int | None = Field(None, description="when these reduced gradients were back")
    recording_ns: int | None = Field(None, ge=0, description="time that recording the previous step took")
    queued_ns: int | None = Field(
        None,
        ge=0,
        description="time that the training thread was runnable without a CPU; steps shorter than 10 ms share, by their"
        " lengths, what is read for them every 50 ms",
    )
    tags: list[Tag] = Field(default_factory=list, description="reasons to leave this step out of rates")
    named: dict[str, int] | None = Field(None, description="phases that the program named, in ns")
    collective_ns: int | None = Field(
        None, ge=0, description="blocked in collectives outside DDP's backward; not part of any other phase"
    )
    backward_passes: int | None = Field(None, ge=0, description="more than one where gradients accumulate")
    collectives: list[Collective] | None = Field(
        None, description="[kind, sequence number in its group, begin_ns, blocked_ns, end_ns] of each, in order"
    )
    ready_ns: list[int] | None = Field(
        None,
        description="for each bucket, in the order of reduction, when the last gradient of it and of all earlier ones"
        " was ready; the last is arrival_ns. A single moment: the buckets are not distinguished",
    )
    reductions: list[Reduction] | None = Field(
        None,
        description="[network, begin_ns, done_ns, input_ns, copy_ns, forward_ns, backward_ns, optimizer_ns, ready_ns of"
        " each bucket] of each reduction, in order; arrival_ns, done_ns and ready_ns are of the last. Absent: there was"
        " at most one, of network 0, in the only backward pass",
    )
