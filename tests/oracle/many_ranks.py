"""Runs of many ranks: with nothing but jitter, and with one fault each, beside the same without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.oracle.judged import Judged
from tests.oracle.records import Link, Recording
from tests.oracle.training import Device, Training, Wire, even, spread

STEP_SD = 0.68  # of the jitter of a phase: forward and backward vary on their own
RANKS_PER_HOST = 8
SMALL, SURELY = 1.015, 1.03  # true speed-ups: from the one a finding is right, from the other silence is wrong
NEAR = 0.015  # of the true speed-up
SLOWER = 4.5  # a link that is slow
MIB = 1 << 20
DEVICE, RECORDED = Device(), Recording()
FAST = Wire(latency_s=0.0002, bytes_per_s=2e10)
THIN = Wire(latency_s=0.0002, bytes_per_s=3e9)


@dataclass(frozen=True, kw_only=True)
class ManyRanks:
    """One run: the fault, the same without it, how it is recorded, and the rules and ranks that may be named.

    ``rules`` empty: nothing is to be found.
    """

    faulty: Training
    mended: Training
    recording: Recording = RECORDED
    rules: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None


Case = Callable[[int, int], ManyRanks]
"""Ranks, steps → a run."""


def equal(
    ranks: int,
    steps: int,
    jitter: float = 0.01,
    wire: Wire = FAST,
    count: int = 4,
    device: Device | None = DEVICE,
) -> Training:
    """Steps of 98 ms."""
    return even(
        ranks=ranks,
        hosts=ranks // RANKS_PER_HOST,
        steps=steps,
        jitter=jitter,
        seed=ranks,
        device=device,
        buckets=spread(total=64 * MIB, count=count),
        wire=wire,
    )


def healthy(jitter: float) -> Case:
    def made(ranks: int, steps: int) -> ManyRanks:
        one = equal(ranks, steps, jitter)
        return ManyRanks(faulty=one, mended=one)

    return made


def slow_rank(sds: float) -> Case:
    """Rank a third of the way is later by so many standard deviations of a step."""

    def made(ranks: int, steps: int) -> ManyRanks:
        one = equal(ranks, steps)
        late = one.later("backward", sds * 0.01 * STEP_SD * 0.1, rank=ranks // 3)
        return ManyRanks(faulty=late, mended=one, rules=("slow-rank",), ranks=(ranks // 3,))

    return made


def slow_host(ranks: int, steps: int) -> ManyRanks:
    one = equal(ranks, steps)
    of_host = tuple(range(RANKS_PER_HOST, 2 * RANKS_PER_HOST))
    late = one.later("forward", 0.008, rank=slice(of_host[0], of_host[-1] + 1))
    return ManyRanks(faulty=late, mended=one, rules=("uneven-hosts",), ranks=of_host)


def rotating(jitter: float) -> Case:
    def made(ranks: int, steps: int) -> ManyRanks:
        one = equal(ranks, steps, jitter)
        late = one
        for step, rank in enumerate(np.random.default_rng(7).integers(ranks, size=steps)):
            late = late.later("forward", 0.020, rank=int(rank), steps=step)
        return ManyRanks(faulty=late, mended=one, rules=("rotating-imbalance",), ranks=())

    return made


def loaders(ranks: int, steps: int) -> ManyRanks:
    one = equal(ranks, steps, device=None)
    late = one.later("input", 0.030, rank=slice(None))
    without = dataclasses.replace(one, input=np.zeros_like(one.input))
    return ManyRanks(faulty=late, mended=without, rules=("input-bound",), ranks=())


def one_loader(ranks: int, steps: int) -> ManyRanks:
    one = equal(ranks, steps, device=None)
    late = one.later("input", 0.030, rank=ranks // 2)
    return ManyRanks(faulty=late, mended=one, rules=("slow-loader-rank",), ranks=(ranks // 2,))


def _ring(ranks: int, round_trip_s: float, slow_host: int | None = None) -> dict[tuple[int, int], Link]:
    """Connections of a ring over hosts, which carry the gradients of steps of 0.1 s and more; pings between all."""
    hosts = ranks // RANKS_PER_HOST
    sent = 2 * (hosts - 1) / hosts * 64 * MIB / 0.1
    return {
        (one, (one + 1) % hosts): Link(
            sent_bytes=sent,
            busy_share=0.2 * (SLOWER if slow_host in (one, (one + 1) % hosts) else 1.0),
            rtt_s=round_trip_s,
        )
        for one in range(hosts)
    }


def slow_link(ranks: int, steps: int) -> ManyRanks:
    """A ring is as fast as its slowest link."""
    one = equal(ranks, steps, wire=THIN, device=None)
    thin = equal(ranks, steps, wire=Wire(latency_s=0.0002, bytes_per_s=THIN.bytes_per_s / SLOWER), device=None)
    recording = Recording(links=_ring(ranks, 1e-4, slow_host=1))
    return ManyRanks(
        faulty=thin,
        mended=one,
        recording=recording,
        rules=("slow-link",),
        ranks=tuple(range(RANKS_PER_HOST, 2 * RANKS_PER_HOST)),
    )


def distant(ranks: int, steps: int) -> ManyRanks:
    """Forty buckets that each take 4 ms of latency; in ten of four times the size most of it is gone."""
    far = Wire(latency_s=0.004, bytes_per_s=2e10)
    round_trip_s = 0.0035 / (ranks // RANKS_PER_HOST - 1)
    recording = Recording(there_s=round_trip_s / 2, back_s=round_trip_s / 2, links=_ring(ranks, round_trip_s))
    return ManyRanks(
        faulty=equal(ranks, steps, wire=far, count=40, device=None),
        mended=equal(ranks, steps, wire=far, count=5, device=None),
        recording=recording,
        rules=("latency-bound",),
        ranks=(),
    )


def wrong(run: ManyRanks, judged: Judged) -> str | None:
    """What is wrong about an explanation of ``run``: rule, ranks, price, or a false alarm; None: nothing.

    A loss below ``SMALL`` need not be found. Others than the expected finding may price the same time.
    """
    first = judged.priced[0] if judged.priced else None
    if not run.rules or judged.truth < SMALL:
        return None if first is None else "false alarm"
    if first is None:
        return None if judged.truth < SURELY else "missed"
    if first.rule not in run.rules or first.gain is None:
        return "rule"
    if run.ranks is not None and tuple(first.ranks) != run.ranks:
        return "ranks"
    is_near = abs(first.gain.value / judged.truth - 1) <= NEAR
    is_within = (first.gain.low or 0.0) <= judged.truth <= (first.gain.high or 0.0)
    return None if is_near or is_within else "price"


CASES: dict[str, Case] = {
    "healthy": healthy(0.01),
    "healthy, more jitter": healthy(0.03),
    **{f"a rank later by {sds:g} sd": slow_rank(sds) for sds in (0.3, 1.0, 3.0, 5.0, 10.0, 30.0)},
    "a slow host": slow_host,
    "another rank late in each step": rotating(0.01),
    "another rank late in each step, more jitter": rotating(0.03),
    "all loaders": loaders,
    "one loader": one_loader,
    "a slow link": slow_link,
    "a distant network": distant,
}
