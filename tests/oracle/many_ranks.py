"""Runs of many ranks: with nothing but jitter, and with one fault each, beside the same without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.oracle.records import Link, Recording
from tests.oracle.training import Device, Training, Wire, even, spread

STEP_SD = 0.68  # of the jitter of a phase: forward and backward vary on their own
RANKS_PER_HOST = 8
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ManyRanks:
    """One run: the fault, the same without it, how it is recorded, and the rules and ranks that may be named.

    ``least``: a true speed-up below it is too small to be a finding. ``rules`` empty: nothing is to be found.
    """

    faulty: Training
    mended: Training
    recording: Recording = Recording()  # frozen
    rules: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    least: float = 1.02


Case = Callable[[int, int], ManyRanks]
"""Ranks, steps → a run."""


def equal(ranks: int, steps: int, jitter: float = 0.01, wire: Wire | None = None, count: int = 4) -> Training:
    """Steps of 98 ms on devices."""
    return even(
        ranks=ranks,
        hosts=ranks // RANKS_PER_HOST,
        steps=steps,
        jitter=jitter,
        seed=ranks,
        device=Device(),
        buckets=spread(total=64 * MIB, count=count),
        wire=wire or Wire(latency_s=0.0002, bytes_per_s=2e10),
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
    one = equal(ranks, steps)
    late = one.later("input", 0.030, rank=slice(None))
    return ManyRanks(faulty=late, mended=one, rules=("input-bound",), ranks=())


def one_loader(ranks: int, steps: int) -> ManyRanks:
    one = equal(ranks, steps)
    late = one.later("input", 0.030, rank=ranks // 2)
    return ManyRanks(faulty=late, mended=one, rules=("slow-loader-rank",), ranks=(ranks // 2,))


def _ring(ranks: int, slow_host: int | None = None) -> dict[tuple[int, int], Link]:
    """Connections of a ring over hosts that carry the gradients of steps of 0.1 s and more, those of one host slowly."""
    hosts = ranks // RANKS_PER_HOST
    sent = 2 * (hosts - 1) / hosts * 64 * MIB / 0.1
    return {
        (one, (one + 1) % hosts): Link(
            sent_bytes=sent, busy_share=0.9 if slow_host in (one, (one + 1) % hosts) else 0.2, rtt_s=1e-4
        )
        for one in range(hosts)
    }


def slow_link(ranks: int, steps: int) -> ManyRanks:
    one = equal(ranks, steps)
    thin = equal(ranks, steps, wire=Wire(latency_s=0.0002, bytes_per_s=6e8))
    recording = Recording(links=_ring(ranks, slow_host=1))
    return ManyRanks(faulty=thin, mended=one, recording=recording, rules=("slow-link", "network-bound"))


def distant(ranks: int, steps: int) -> ManyRanks:
    """Forty buckets that each take 4 ms of latency: what larger ones would gain depends on their size."""
    hosts = ranks // RANKS_PER_HOST
    far = equal(ranks, steps, wire=Wire(latency_s=0.004, bytes_per_s=2e10), count=40)
    round_trip_s = 0.003 / (hosts - 1)
    recording = Recording(there_s=round_trip_s / 2, back_s=round_trip_s / 2, links=_ring(ranks))
    return ManyRanks(
        faulty=far,
        mended=equal(ranks, steps, wire=Wire(latency_s=0.004, bytes_per_s=2e10), count=1),
        recording=recording,
        rules=("latency-bound", "network-bound", "no-overlap"),
    )


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
