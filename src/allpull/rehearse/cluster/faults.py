"""The faults that a cluster file may plant: one record per kind, with the fields of its ``[[faults]]`` table.

Faults of the virtual accelerator affect only its training (``ranks.faults`` plants them). Faults of links, hosts,
ranks and clocks affect any command. ``from_s`` of both counts from the end of the first step, which all ranks complete
together (for a probe, which has no steps, from the start of all ranks). A link or uplink whose fault has no ``from_s``
is slow from before the start; a clock is always wrong from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from allpull.rehearse.cluster.quantity import in_si, needed, rate_option, time_option
from allpull.schema.option import option

ALL = -1  # "rank" was omitted: the fault applies to no particular rank
MAX_RANK = 65535
MAX_OFFSET_S = 86_400.0  # a day: covers any wrong time zone
MAX_PPM = 10_000  # 1 %: the owner of a worse clock would notice


def _from_step() -> Any:
    return option(0, "first step that it touches, counted from 0", ge=0)


def _from_s() -> Any:
    return option(0.0, "seconds after the first step of all ranks at which it begins", ge=0, le=1_000_000)


def _rank(help_text: str) -> Any:
    return needed(help_text, ge=0, le=MAX_RANK)


def _any_rank(help_text: str) -> Any:
    return option(ALL, help_text, ge=0, le=MAX_RANK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank computes longer in each step; rotating: rank 0 in step 0, rank 1 in step 1, and so on."""

    kind: Literal["slow-rank"]
    delay: str = time_option("how much longer it computes")
    rank: int = _any_rank("which rank; omit it if the fault rotates")
    rotating: bool = option(False, "another rank each step")
    where: Literal["forward", "backward", "input"] = option("backward", "where it is slow")
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Compute time varies from step to step and rank to rank."""

    kind: Literal["jitter"]
    std: str = time_option("standard deviation of what is added")
    distribution: Literal["normal", "exponential", "lognormal", "uniform"] = option(
        "exponential", "shape; normal has mean 0 (std at most a third of what varies), the others begin at 0 or above"
    )
    rank: int = _any_rank("which rank; omitted: all, each with its own draws")
    where: Literal["forward", "backward", "input"] = option("forward", "what varies")
    seed: int = option(0, "another seed is another series of draws", ge=0)
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """All ranks stall every so many steps, or one of them does, or another one each time."""

    kind: Literal["pause"]
    duration: str = time_option("how long a pause is")
    every: int = needed("steps from one pause to the next; 1: each step", ge=1)
    rank: int = _any_rank("which rank; omitted: all of them, or with rotating another one each time")
    rotating: bool = option(False, "another rank at each pause")
    where: Literal["forward", "backward", "input"] = option("forward", "where it pauses")
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenEvaluation:
    """One rank takes longer in the evaluation that all ranks do together."""

    kind: Literal["uneven-evaluation"]
    rank: int = _rank("which rank")
    duration: str = time_option("how much longer it evaluates")
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLoader:
    """Batches arrive late."""

    kind: Literal["slow-loader"]
    delay: str = time_option("how much later a batch comes")
    rank: int = _any_rank("which rank; omitted: all of them")
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialEvaluation:
    """Rank 0 evaluates alone, and the others wait for it."""

    kind: Literal["sequential-evaluation"]
    duration: str = time_option("how long rank 0 evaluates")
    every: int = needed("steps from one evaluation to the next", ge=1)
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialCheckpoint:
    """Rank 0 writes a checkpoint alone, and the others wait for it in their next collective."""

    kind: Literal["sequential-checkpoint"]
    duration: str = time_option("how long rank 0 writes")
    every: int = needed("steps from one checkpoint to the next", ge=1)
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenShards:
    """One rank has more samples than the others, and computes proportionally longer."""

    kind: Literal["uneven-shards"]
    rank: int = _rank("which rank")
    factor: float = needed("its samples over those of another rank", gt=0, le=1000)
    from_step: int = _from_step()
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """The link of one host has a lower rate, in both directions."""

    kind: Literal["slow-link"]
    host: int = needed("which host, counted from 0", ge=0)
    rate: str = rate_option("its rate from then on, before shrinking", "")
    factor: float = option(0.0, "or: the share of its rate that is left", gt=0, le=1)
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowUplink:
    """The uplink shared by the hosts of one switch has a lower rate, in both directions."""

    kind: Literal["slow-uplink"]
    switch: int = needed("which switch, counted from 0 in the order of the file", ge=0)
    rate: str = rate_option("its rate from then on, before shrinking", "")
    factor: float = option(0.0, "or: the share of its rate that is left", gt=0, le=1)
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCutOff:
    """One host loses its network connection, as if its cable were pulled."""

    kind: Literal["host-cut-off"]
    host: int = needed("which host, counted from 0", ge=0)
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """One rank is ended by SIGKILL."""

    kind: Literal["kill-rank"]
    rank: int = _rank("which rank")
    from_s: float = _from_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The wall clock of one host is wrong from the start, and may drift; its monotonic clock is correct."""

    kind: Literal["clock-offset"]
    host: int = needed("which host, counted from 0", ge=0)
    offset: str = time_option(
        "how far it is ahead of the others; negative: behind", "0 s", signed=True, le=MAX_OFFSET_S
    )
    drift_ppm: float = option(0.0, "microseconds that it gains every second", ge=-MAX_PPM, le=MAX_PPM)


AcceleratorFault = (
    SlowRank
    | Jitter
    | Pause
    | SlowLoader
    | SequentialEvaluation
    | SequentialCheckpoint
    | UnevenEvaluation
    | UnevenShards
)
MachineFault = SlowLink | SlowUplink | HostCutOff | KillRank | ClockOffset
Fault = AcceleratorFault | MachineFault

KINDS: Mapping[str, type[Fault]] = {
    "slow-rank": SlowRank,
    "jitter": Jitter,
    "pause": Pause,
    "slow-loader": SlowLoader,
    "sequential-evaluation": SequentialEvaluation,
    "sequential-checkpoint": SequentialCheckpoint,
    "uneven-evaluation": UnevenEvaluation,
    "uneven-shards": UnevenShards,
    "slow-link": SlowLink,
    "slow-uplink": SlowUplink,
    "host-cut-off": HostCutOff,
    "kill-rank": KillRank,
    "clock-offset": ClockOffset,
}
"""Name → record. To add a fault, add a class here and a line to this table."""


def plain(fault: Fault) -> dict[str, Any]:
    """``fault`` in SI units, as in ``ranks.faults`` and ``truth.json``; a ``rank`` of None: no particular rank.

    >>> plain(SlowRank(kind="slow-rank", rotating=True, delay="40 ms"))["rank"]
    'rotating'
    """
    values = in_si(fault)
    if values.get("rank") == ALL:
        values["rank"] = None
    if values.pop("rotating", False):
        values["rank"] = "rotating"
    return values
