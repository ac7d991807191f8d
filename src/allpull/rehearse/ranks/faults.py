"""The faults that a virtual accelerator can have: (faults, moment) → extra seconds in each place.

A fault is a plain dictionary: ``kind`` is a name in ``KINDS`` and the other keys are the fields of its class; those
without a default are required. Fields of every kind: ``from_step`` (0) and ``from_s`` (0.0,
seconds since the first step ended); a fault has begun once both have passed.

    {"kind": "slow-rank", "rank": 3, "where": "backward", "delay_s": 0.04, "from_step": 20}
    {"kind": "slow-rank", "rank": "rotating", "where": "forward", "delay_s": 0.04}
    {"kind": "jitter", "distribution": "exponential", "std_s": 0.005, "where": "forward", "seed": 0}
    {"kind": "pause", "every": 10, "duration_s": 0.5}               without a rank: every rank; or "rotating"
    {"kind": "slow-loader", "rank": 1, "delay_s": 0.1}              without a rank: every rank
    {"kind": "sequential-evaluation", "every": 20, "duration_s": 0.5}
    {"kind": "sequential-checkpoint", "every": 50, "duration_s": 0.3}
    {"kind": "uneven-evaluation", "rank": 1, "duration_s": 0.5}
    {"kind": "uneven-shards", "rank": 0, "factor": 1.5}

Everything here is a pure function of its arguments: a fault is identical in every rehearsal, and the planted values
can be computed afterwards without querying the ranks. Faults of links, hosts and clocks are handled elsewhere:
``read`` ignores kinds that it does not know.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from allpull.errors import BadInput

ROTATING = "rotating"
FORWARD = "forward"
BACKWARD = "backward"
INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The position in a training: ``step`` of ``rank``, ``elapsed_s`` after the first step ended there."""

    rank: int
    ranks: int
    step: int
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """The time that faults add to one step of one rank.

    Seconds in each place, negative where jitter shortens it; ``share`` is the rank's number of samples over that of a
    healthy rank. Evaluation and checkpoint are work of this rank alone, after the step; ``common_evaluation_s`` is of
    its part in the evaluation by all ranks.
    """

    input_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    evaluation_s: float = 0.0
    common_evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    share: float = 1.0

    def __add__(self, other: Extra) -> Extra:
        return Extra(
            input_s=self.input_s + other.input_s,
            forward_s=self.forward_s + other.forward_s,
            backward_s=self.backward_s + other.backward_s,
            evaluation_s=self.evaluation_s + other.evaluation_s,
            common_evaluation_s=self.common_evaluation_s + other.common_evaluation_s,
            checkpoint_s=self.checkpoint_s + other.checkpoint_s,
            share=self.share * other.share,
        )


NOTHING = Extra()


class Fault(Protocol):
    """One planted fault."""

    @property
    def from_step(self) -> int:
        """The first step that it affects."""
        ...

    @property
    def from_s(self) -> float:
        """The time from which it acts, in seconds since the first step ended."""
        ...

    def adds(self, moment: Moment) -> Extra:
        """The time that it adds at ``moment``, once it has begun."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank computes longer in each step: ``rank`` is its number, or "rotating" for rank step mod ranks."""

    rank: int | str
    delay_s: float
    where: str = BACKWARD
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``delay_s`` in forward or backward of the slow rank."""
        slow = moment.step % moment.ranks if self.rank == ROTATING else self.rank
        return _at(self.where, self.delay_s) if moment.rank == slow else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Compute time that varies from step to step and rank to rank; ``std_s`` is its standard deviation.

    ``exponential`` and ``lognormal`` have a mean of ``std_s``, ``uniform`` ranges from 0 to √12 · ``std_s``, and
    ``normal`` has mean 0: it shortens as often as it lengthens. Without a ``rank``, each rank draws its own jitter.
    """

    distribution: str
    std_s: float
    where: str = FORWARD
    rank: int | None = None
    seed: int = 0
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """One draw, identical for the same seed, rank and step."""
        if self.rank is not None and moment.rank != self.rank:
            return NOTHING
        chance = random.Random(f"{self.seed} {self.where} {moment.rank} {moment.step}")  # noqa: S311  no secret
        return _at(self.where, DISTRIBUTIONS[self.distribution](chance, self.std_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Every ``every`` steps ``rank`` stalls: its number, "rotating" for another one each time, or None for all."""

    duration_s: float
    every: int
    rank: int | str | None = None
    where: str = FORWARD
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``duration_s`` in the steps in which the rank stalls."""
        turn, left = divmod(moment.step + 1, self.every)
        stalls = turn % moment.ranks if self.rank == ROTATING else self.rank
        return _at(self.where, self.duration_s) if left == 0 and stalls in (None, moment.rank) else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenEvaluation:
    """One rank takes longer in the evaluation by all ranks."""

    rank: int
    duration_s: float
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``duration_s`` in the evaluation that ends an epoch, on that rank."""
        return Extra(common_evaluation_s=self.duration_s) if moment.rank == self.rank else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLoader:
    """Batches arrive late, on one ``rank`` or, without one, on all."""

    delay_s: float
    rank: int | None = None
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``delay_s`` of additional waiting for the loader."""
        return Extra(input_s=self.delay_s) if self.rank in (None, moment.rank) else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialEvaluation:
    """Rank 0 alone evaluates every ``every`` steps, and the others wait for it in a barrier."""

    every: int
    duration_s: float
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``duration_s`` of evaluation on rank 0."""
        due = moment.rank == 0 and (moment.step + 1) % self.every == 0
        return Extra(evaluation_s=self.duration_s) if due else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialCheckpoint:
    """Rank 0 alone writes a checkpoint every ``every`` steps; the others wait for it in the next all-reduce."""

    every: int
    duration_s: float
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """``duration_s`` of checkpointing on rank 0."""
        due = moment.rank == 0 and (moment.step + 1) % self.every == 0
        return Extra(checkpoint_s=self.duration_s) if due else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenShards:
    """One rank has ``factor`` times the samples of the others, and computes proportionally longer."""

    rank: int
    factor: float
    from_step: int = 0
    from_s: float = 0.0

    def adds(self, moment: Moment) -> Extra:
        """A share of ``factor`` on that rank."""
        return Extra(share=self.factor) if moment.rank == self.rank else NOTHING


KINDS: Mapping[str, Callable[..., Fault]] = {
    "slow-rank": SlowRank,
    "jitter": Jitter,
    "pause": Pause,
    "slow-loader": SlowLoader,
    "sequential-evaluation": SequentialEvaluation,
    "sequential-checkpoint": SequentialCheckpoint,
    "uneven-evaluation": UnevenEvaluation,
    "uneven-shards": UnevenShards,
}
"""Name → class of fault. To add a fault, add a class here and a line to this table."""


def _lognormal(chance: random.Random, std_s: float) -> float:
    # mean = standard deviation requires a variance of ln 2 in the logarithm
    return chance.lognormvariate(math.log(std_s) - math.log(2) / 2, math.sqrt(math.log(2))) if std_s else 0.0


DISTRIBUTIONS: Mapping[str, Callable[[random.Random, float], float]] = {
    "normal": lambda chance, std_s: chance.gauss(0.0, std_s),
    "exponential": lambda chance, std_s: chance.expovariate(1.0) * std_s,
    "lognormal": _lognormal,
    "uniform": lambda chance, std_s: chance.uniform(0.0, math.sqrt(12.0) * std_s),
}
"""Name → function (random generator, standard deviation in s) → one draw in s."""


def read(plain: Iterable[Mapping[str, Any]]) -> tuple[Fault, ...]:
    """The faults among ``plain`` that this module defines, as records; a null field takes its default.

    Raises:
        BadInput: a fault has an unknown or missing field, or an unknown place or distribution.
    """
    return tuple(_read(number, fault) for number, fault in enumerate(plain) if fault.get("kind") in KINDS)


def _read(number: int, plain: Mapping[str, Any]) -> Fault:
    kind: Any = KINDS[plain["kind"]]
    known = {field.name for field in fields(kind)}
    values = {key: value for key, value in plain.items() if key != "kind" and value is not None}
    if unknown := sorted(set(values) - known):
        raise BadInput(f"faults[{number}] ({plain['kind']}): no field {', '.join(unknown)}", hint=_fields(known))
    try:
        fault: Fault = kind(**values)
    except TypeError as error:
        raise BadInput(f"faults[{number}] ({plain['kind']}): {error}", hint=_fields(known)) from error
    _check(f"faults[{number}] ({plain['kind']})", values)
    return fault


def _check(place: str, values: Mapping[str, Any]) -> None:
    choices = {"where": (FORWARD, BACKWARD, INPUT), "distribution": tuple(DISTRIBUTIONS)}
    for name, allowed in choices.items():
        if name in values and values[name] not in allowed:
            raise BadInput(f"{place}: {name} is '{values[name]}'", hint=f"one of {', '.join(allowed)}")
    if isinstance(values.get("rank"), str) and values["rank"] != ROTATING:
        raise BadInput(f"{place}: rank is '{values['rank']}'", hint=f"a number, or {ROTATING}")
    for name in ("delay_s", "std_s", "duration_s", "factor", "from_step", "from_s"):
        value = values.get(name, 0)
        if not math.isfinite(value) or value < 0:
            raise BadInput(f"{place}: {name} is {value}", hint="a finite number of at least 0")
    if values.get("every", 1) < 1:
        raise BadInput(f"{place}: every is {values['every']}", hint="a number of steps, at least 1")


def _fields(known: Iterable[str]) -> str:
    return f"its fields are {', '.join(sorted(known))}"


def added(faults: Iterable[Fault], moment: Moment) -> Extra:
    """The time that all active ``faults`` add to one step of one rank."""
    total = NOTHING
    for fault in faults:
        if moment.step >= fault.from_step and moment.elapsed_s >= fault.from_s:
            total += fault.adds(moment)
    return total


def meets(faults: Iterable[Fault], step: int) -> bool:
    """Whether the ranks meet in a barrier after ``step``, as in a script that evaluates on rank 0.

    The barrier is present from the start, even before the fault has begun: ranks that each read their own clock would
    not agree on the step from which it applies.
    """
    return any(isinstance(fault, SequentialEvaluation) and (step + 1) % fault.every == 0 for fault in faults)


def _at(where: str, seconds: float) -> Extra:
    if where == INPUT:
        return Extra(input_s=seconds)
    return Extra(backward_s=seconds) if where == BACKWARD else Extra(forward_s=seconds)
