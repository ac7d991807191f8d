"""Synchronous data-parallel training as a plan: what each rank does in each step, and how long each part takes.

A step of a rank is a list of phases; a phase is a list of parts: seconds of work, a bucket that is ready, a collective
that is called, or the wait for all buckets. ``simulator`` lets it happen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
"""Seconds, a row per rank and a column per step."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together, ready after this share of backward."""

    bytes: int
    ready: float


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective that the program calls: after this share of a phase, blocking it."""

    op: str
    bytes: int
    phase: Literal["forward", "backward"] = "forward"
    at: float = 0.0
    root: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward and backward; without ``reduces`` it runs under ``no_sync``."""

    forward: Times
    backward: Times
    buckets: tuple[Bucket, ...] = ()
    reduces: bool = True
    calls: tuple[Call, ...] = ()
    network: int = 0


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Seconds of a collective: latency + bytes over rate."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: int) -> float:
        return self.latency_s + size / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator whose host issues each part in ``issue_share`` of its time, and may be ``ahead`` steps ahead."""

    issue_share: float = 0.3
    ahead: int = 2
    pieces: int = 1
    sync: bool = False


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Workers of each rank that make batches meanwhile, as those of a DataLoader: batch k is made by worker k mod n.

    ``ahead``: batches of each worker that are ordered and not taken yet.
    """

    workers: int
    batch_s: Times
    ahead: int = 2


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that decides how long a run takes."""

    ranks: int
    hosts: int
    steps: int
    passes: tuple[Pass, ...]
    wire: Wire
    wire_factor: Times
    input: Times
    copy: Times
    other: Times
    optimizer: Times
    evaluation: Times
    checkpoint: Times
    device: Device | None = None
    calls: tuple[Call, ...] = ()
    steps_per_epoch: int | None = None
    loader: Loader | None = None  # ``input`` is then the time to take a batch from it

    def host(self, rank: int) -> int:
        return rank * self.hosts // self.ranks

    def later(
        self,
        phase: str,
        seconds: float | Times,
        *,
        rank: int | slice,
        steps: int | slice = slice(None),
        number: int = 0,
    ) -> Training:
        """The same training in which ``phase`` (of pass ``number``) takes longer on ``rank`` in ``steps``."""
        if phase not in ("forward", "backward"):
            return dataclasses.replace(self, **{phase: _longer(getattr(self, phase), seconds, rank, steps)})
        longer = dataclasses.replace(
            self.passes[number], **{phase: _longer(getattr(self.passes[number], phase), seconds, rank, steps)}
        )
        passes = (*self.passes[:number], longer, *self.passes[number + 1 :])
        return dataclasses.replace(self, passes=passes)


def _longer(times: Times, seconds: float | Times, rank: int | slice, steps: int | slice) -> Times:
    longer = times.copy()
    longer[rank, steps] += seconds
    return longer


def even(
    *,
    ranks: int = 4,
    hosts: int = 1,
    steps: int = 40,
    input_s: float = 0.001,
    copy_s: float = 0.0,
    other_s: float = 0.0005,
    forward_s: float = 0.030,
    backward_s: float = 0.060,
    optimizer_s: float = 0.004,
    buckets: tuple[Bucket, ...] | None = None,
    passes: int = 1,
    reduces: tuple[bool, ...] | None = None,
    wire: Wire = Wire(latency_s=0.0002, bytes_per_s=5e9),  # frozen
    jitter: float = 0.01,
    seed: int = 1,
    device: Device | None = None,
    calls: tuple[Call, ...] = (),
) -> Training:
    """A training in which all ranks do the same, each phase within ``jitter`` (relative standard deviation)."""
    rng = np.random.default_rng(seed)

    def times(seconds: float) -> Times:
        return seconds * np.clip(1.0 + jitter * rng.standard_normal((ranks, steps)), 0.5, 2.0)

    cut = buckets if buckets is not None else spread(total=64 << 20, count=4)
    reducing = reduces or (True,) * passes
    return Training(
        ranks=ranks,
        hosts=hosts,
        steps=steps,
        passes=tuple(
            Pass(forward=times(forward_s), backward=times(backward_s), buckets=cut, reduces=reducing[number])
            for number in range(passes)
        ),
        wire=wire,
        wire_factor=times(1.0)[:1],
        input=times(input_s),
        copy=times(copy_s),
        other=times(other_s),
        optimizer=times(optimizer_s),
        evaluation=np.zeros((ranks, steps)),
        checkpoint=np.zeros((ranks, steps)),
        device=device,
        calls=calls,
    )


def spread(*, total: int, count: int, last: float = 1.0) -> tuple[Bucket, ...]:
    """Equal buckets of gradients that become ready evenly over backward, up to its share ``last``."""
    return tuple(Bucket(bytes=total // count, ready=last * (number + 1) / count) for number in range(count))


# What a step consists of


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A bucket's last gradient."""

    bucket: Bucket


class Fetch:
    """The batch of the step is taken from the loader."""


class Join:
    """Backward returns when all buckets are back."""


Part = float | Ready | Call | Fetch | Join


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    parts: list[Part]
    number: int | None = None  # of the pass


def phases(training: Training, rank: int, step: int) -> Iterator[Phase]:
    """What ``rank`` does in ``step``; what happens between two steps belongs to the later one."""
    for name in ("evaluation", "checkpoint", "input", "copy", "other"):
        seconds = float(getattr(training, name)[rank, step])
        fetches = [Fetch()] if name == "input" and training.loader is not None else []
        if seconds or fetches:
            yield Phase(name=name, parts=[*fetches, seconds])
    for number, one in enumerate(training.passes):
        calls = [*training.calls, *one.calls]
        stops = [(call.at, call) for call in calls if call.phase == "forward"]
        yield Phase(name="forward", parts=_cut(float(one.forward[rank, step]), stops), number=number)
        stops = [(call.at, call) for call in calls if call.phase == "backward"]
        if one.reduces:
            stops += [(bucket.ready, Ready(bucket=bucket)) for bucket in one.buckets]
        parts = _cut(float(one.backward[rank, step]), stops)
        yield Phase(name="backward", parts=[*parts, Join()] if one.reduces else parts, number=number)
    yield Phase(name="optimizer", parts=[float(training.optimizer[rank, step])])


def _cut(seconds: float, stops: list[tuple[float, Ready | Call]]) -> list[Part]:
    parts: list[Part] = []
    done = 0.0
    for share, stop in sorted(stops, key=lambda pair: pair[0]):
        parts += [(share - done) * seconds, stop]
        done = share
    parts.append((1.0 - done) * seconds)
    return [part for part in parts if not isinstance(part, float) or part > 0]
