"""Healthy runs of many shapes: nothing is to be found."""

from __future__ import annotations

import dataclasses

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.records import Recording
from tests.oracle.training import Call, Device, Training, Wire, even, spread

MIB = 1 << 20
FAST = Wire(latency_s=5e-5, bytes_per_s=2e10)
BROADCAST = (Call(op="broadcast", bytes=4096, root=0),)
GATHERS = tuple(Call(op="all_gather", bytes=8192, at=share / 10) for share in range(1, 10))


def evaluated(training: Training, seconds: float) -> Training:
    """All ranks evaluate after every 20th step."""
    longer = training.later("evaluation", seconds, rank=slice(None), steps=slice(20, None, 20))
    return dataclasses.replace(longer, steps_per_epoch=20)


def adversarial() -> Training:
    """A discriminator with a network of its own, then a generator."""
    both = even(passes=2, forward_s=0.020, backward_s=0.030, seed=29)
    discriminator = dataclasses.replace(both.passes[0], network=1, buckets=spread(total=16 * MIB, count=2))
    return dataclasses.replace(both, passes=(discriminator, both.passes[1]))


HEALTHY: dict[str, tuple[Training, Recording]] = {
    "two ranks": (even(ranks=2, seed=11), Recording()),
    "four ranks": (even(seed=12), Recording()),
    "eight ranks on four hosts": (
        even(ranks=8, hosts=4, seed=13),
        Recording(offsets_s=(0.0, 40.0, -7.0, 1e-3), drift=(0.0, 2e-5, -1e-5, 0.0)),
    ),
    "sixteen ranks": (even(ranks=16, hosts=2, steps=24, seed=14), Recording()),
    "noisy": (even(steps=60, jitter=0.03, seed=15), Recording()),
    "short steps": (
        even(
            steps=120,
            forward_s=0.001,
            backward_s=0.002,
            optimizer_s=2e-4,
            input_s=5e-5,
            other_s=5e-5,
            wire=FAST,
            buckets=spread(total=1 * MIB, count=2),
            seed=16,
        ),
        Recording(),
    ),
    "without bucket times": (even(seed=17), Recording(buckets=False)),
    "accumulation under no_sync": (
        even(passes=4, reduces=(False, False, False, True), forward_s=0.010, backward_s=0.020, seed=18),
        Recording(),
    ),
    "four reducing passes of few bytes": (
        even(
            passes=4,
            forward_s=0.010,
            backward_s=0.020,
            wire=FAST,
            buckets=spread(total=8 * MIB, count=4),
            seed=28,
        ),
        Recording(),
    ),
    "two networks in turn": (adversarial(), Recording()),
    "evaluation shared by all": (evaluated(even(steps=90, seed=19), 0.15), Recording()),
    "broadcast buffers": (even(calls=BROADCAST, wire=FAST, seed=20), Recording()),
    "synchronised batch norm": (even(calls=GATHERS, wire=FAST, seed=21, jitter=0.005), Recording()),
    "host ahead of its device": (even(device=Device(), seed=22), Recording()),
    "device that is read in each step": (
        even(device=Device(sync=True, issue_share=0.2, pieces=8), seed=23),
        Recording(),
    ),
    "devices on four hosts": (
        even(ranks=8, hosts=4, device=Device(), seed=24),
        Recording(offsets_s=(0.0, 40.0, -7.0, 1e-3)),
    ),
    "broadcast buffers on devices": (even(calls=BROADCAST, wire=FAST, device=Device(), seed=25), Recording()),
    "synchronised batch norm on devices": (
        even(calls=GATHERS, wire=FAST, device=Device(), seed=26, jitter=0.005),
        Recording(),
    ),
    "loaders that devices hide": (even(input_s=0.040, device=Device(issue_share=0.2), seed=27), Recording()),
}


@pytest.mark.parametrize("shape", HEALTHY)
def test_nothing_is_found(judge: Judge, shape: str) -> None:
    training, recording = HEALTHY[shape]
    judged = judge(training, recording=recording)
    assert judged.explained.window.steps >= 20, judged.notes()
    assert not judged.priced, judged.said()
    assert judged.explained.healthy is not None
