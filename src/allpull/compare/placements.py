"""Two placements of as many ranks, by the all-reduces that probes timed on them: one leaf switch or two, say.

Each probe counts as its median per size, on the log scale, with the standard error of that median over repetitions
(bootstrap). Between placements it is ``analyse.effect``, as for runs. With one probe each, what varies from probe to
probe is not known: the interval is then that of the repetitions alone, and a note says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allpull.analyse.effect import CONFIDENCE, Measured, effect
from allpull.errors import BadInput
from allpull.schema.base import tag
from allpull.schema.compared import Decision, PlacedProbe, PlacementResult, PlacementSize
from allpull.schema.host import HostRecord
from allpull.schema.probes import AllreduceAnswer
from allpull.schema.results import Interval
from allpull.schema.run import RunRecord

RESAMPLES = 1000
LEAF = -2  # of a topology's parts: the last is the host itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """An all-reduce probe: its record, its hosts, and what it measured."""

    record: RunRecord
    hosts: Sequence[HostRecord]
    answer: AllreduceAnswer


def compare_placements(before: Sequence[Probed], after: Sequence[Probed]) -> PlacementResult:
    """The time of each size on the placement ``after`` over that on ``before``.

    Raises:
        BadInput: the probes have different ranks, back-ends or devices, or no size in common.
    """
    every = [*before, *after]
    _check(every)
    measured = [{one.size_bytes: one.times_s for one in probe.answer.results} for probe in every]
    sizes = sorted(set.intersection(*(set(one) for one in measured)))
    if not sizes:
        raise BadInput("the probes have no size in common", hint="probe both placements with the same --sizes")
    old, new = measured[: len(before)], measured[len(before) :]
    compared = [_of_size(size, [one[size] for one in old], [one[size] for one in new]) for size in sizes]
    return PlacementResult(
        schema=tag("placements"),
        before=[_placed(one) for one in before],
        after=[_placed(one) for one in after],
        confidence=CONFIDENCE,
        sizes=compared,
        decision=compared[-1].decision,
        notes=list(_notes(before, after, compared)),
    )


def leaf_switch(host: HostRecord) -> str | None:
    """The leaf switch above ``host``; None where Slurm names none."""
    parts = (host.topology or "").split(".")
    return parts[LEAF] if len(parts) > 1 else None


def _check(probes: Sequence[Probed]) -> None:
    facts = {
        "ranks": {str(one.answer.ranks) for one in probes},
        "back-end": {str(one.answer.backend) for one in probes},
        "device": {str(one.answer.device) for one in probes},
    }
    for name, values in facts.items():
        if len(values) > 1:
            raise BadInput(
                f"the probes differ in {name}: {', '.join(sorted(values))}",
                hint="probe the same ranks on both placements, with the same options",
            )


def _of_size(size: int, before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> PlacementSize:
    old, new = ([_median(times_s) for times_s in side] for side in (before, after))
    found = effect(old, new)
    bounds = found.bounds() or found.within_bounds()
    decision: Decision = "not decidable"
    if bounds is not None:
        decision = "slower" if bounds[0] > 0 else "faster" if bounds[1] < 0 else "no difference shown"
    low, high = (None, None) if bounds is None else (math.exp(bound) for bound in bounds)
    return PlacementSize(
        size_bytes=size,
        before_s=math.exp(statistics.fmean(one.value for one in old)),
        after_s=math.exp(statistics.fmean(one.value for one in new)),
        ratio=Interval(value=math.exp(found.value), low=low, high=high),
        basis=found.basis,
        decision=decision,
    )


def _median(times_s: Sequence[float]) -> Measured:
    """The logarithm of the median with its standard error; without one for a single repetition."""
    times = np.log(np.asarray(times_s, dtype=np.float64))
    if times.size < 2:
        return Measured(value=float(np.median(times)))
    drawn = np.random.default_rng(0).choice(times, (RESAMPLES, times.size))
    return Measured(value=float(np.median(times)), error=float(np.median(drawn, axis=1).std(ddof=1)))


def _placed(probe: Probed) -> PlacedProbe:
    switches = [leaf_switch(host) for host in probe.hosts]
    known = [one for one in switches if one is not None]
    return PlacedProbe(
        run=probe.record.id,
        ranks=probe.answer.ranks,
        hosts=[host.host for host in probe.hosts] or list(probe.record.hosts),
        switches=known if known and len(known) == len(switches) else None,
    )


def _notes(before: Sequence[Probed], after: Sequence[Probed], sizes: Sequence[PlacementSize]) -> Iterator[str]:
    if any(one.basis == "unknown" for one in sizes):
        yield (
            "what varies from probe to probe is not known, and not in the intervals: probe each placement three times "
            "or more, in turns"
        )
    places = [{tuple(sorted(_placed(one).hosts)) for one in side} for side in (before, after)]
    if places[0] & places[1]:
        yield "both sides have the same hosts: unless the network between them was changed, this is one placement"
    if len({host.fingerprint for one in (*before, *after) for host in one.hosts}) > 1:
        yield "the hosts are not all equal machines: a difference may be theirs"
