"""The rehearsals of `predict_rehearsed.py`: what calibrates a forecast, what it must foresee, and what it is asked.

Rates are such that the link is the limit of an exchange, not the two cores that carry all ranks: 16 links of 100 Mbit/s
or 8 of 200 are 1.6 Gbit/s, and a core carries 2. Batches are equal, so this is weak scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SHRINK = 25  # of ResNet-50's 102 MB of gradients: 4.1 MB
RATE = 100  # Mbit/s, of every calibration
FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 80.0, 160.0, 5.0
BUCKETS_MIB = (0.0, 8.0, 400.0)
"""Before shrinking: DDP's own sizes, which make five buckets, about a dozen, and a single one."""
JITTER_MS = 30.0  # exponential, each rank its own, before forward
SLOW_MS = 60.0  # of forward: the exchange, which is longer than backward, would hide it there
EVALUATION_MS = 1500.0  # by one rank alone
EPOCH_STEPS = 48  # of one rank; N ranks take 48/N for as many samples
LOADER_RATE = 300  # Mbit/s
SAMPLE_MS = 50.0  # that a worker takes for a sample
BATCH = 16  # of the program with a loader
WARMUP = 5  # steps; DDP makes its buckets anew after the first

Quantity = Literal["step", "epoch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One job on a virtual cluster of one rank per host; ``mbit`` is the rate of its links in Mbit/s, as shaped.

    ``workers`` 0: the virtual accelerator trains, otherwise `tuned_program.py` with so many workers of its loader.
    """

    name: str
    ranks: int
    mbit: int = RATE
    bucket_mib: float = 0.0
    steps: int = 20
    accelerator: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[Mapping[str, Any], ...] = ()
    workers: int = 0

    def toml(self, seed: int) -> str:
        """The cluster file; ``seed`` is that of its jitter, so that no two jobs draw the same."""
        head = ["[cluster]", f"hosts = {self.ranks}"]
        if self.workers:
            return "\n".join([*head, f'link = "{self.mbit} Mbit/s"']) + "\n"
        lines = [
            *head,
            f'link = "{self.mbit * SHRINK} Mbit/s"',
            f"shrink = {SHRINK}",
            "[accelerator]",
            'model = "resnet50"',
            "batch = 64",
            f"forward_ms = {FORWARD_MS}",
            f"backward_ms = {BACKWARD_MS}",
            f"optimizer_ms = {OPTIMIZER_MS}",
            *([f"bucket_mib = {self.bucket_mib}"] if self.bucket_mib else []),
            *(f"{name} = {value}" for name, value in self.accelerator.items()),
        ]
        for fault in self.faults:
            planted = {**fault, **({"seed": seed} if fault["kind"] == "jitter" else {})}
            lines += ["[[faults]]", *(f"{name} = {_toml(value)}" for name, value in planted.items())]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One forecast: from the runs ``calibration`` (and their probe), of the run ``truth``, by the options ``asked``."""

    group: str
    truth: Rehearsal
    calibration: tuple[Rehearsal, ...]
    asked: tuple[str, ...] = ()
    quantity: Quantity = "step"

    @property
    def name(self) -> str:
        """What is foreseen, and from what where the same truth is foreseen twice."""
        return f"{self.group}: {self.truth.name}"


ONE = Rehearsal(name="n1", ranks=1, steps=60)
TWO = Rehearsal(name="n2", ranks=2, steps=60)

_JITTER = ({"kind": "jitter", "std": f"{JITTER_MS} ms", "distribution": "exponential"},)
JITTER_ONE = Rehearsal(name="n1-jitter", ranks=1, steps=80, faults=_JITTER)
JITTER_TWO = Rehearsal(name="n2-jitter", ranks=2, steps=60, faults=_JITTER)

_SLOW = ({"kind": "slow-rank", "rank": 1, "delay": f"{SLOW_MS} ms", "where": "forward"},)
SLOW_TWO = Rehearsal(name="n2-slow", ranks=2, steps=40, faults=_SLOW)

LOADED_ONE = Rehearsal(name="n1-workers1", ranks=1, mbit=LOADER_RATE, workers=1, steps=30)
LOADED_TWO = Rehearsal(name="n2-workers1", ranks=2, mbit=LOADER_RATE, workers=1, steps=30)

PROBE_RANKS, PROBE_SIZES = 2, "8,4KiB,64KiB,256KiB,1MiB,4MiB"
"""Of the all-reduce probe at ``RATE``: as its defaults, from a latency alone to the size of the gradients."""


def serial(ranks: int, epochs: int, *, beyond: int = 0) -> Rehearsal:
    """Rank 0 evaluates alone after each epoch; ``beyond`` steps follow the last, so that its end is recorded."""
    every = EPOCH_STEPS // ranks
    alone = {"kind": "sequential-evaluation", "duration": f"{EVALUATION_MS} ms", "every": every}
    return Rehearsal(
        name=f"n{ranks}-serial",
        ranks=ranks,
        steps=epochs * every + beyond,
        accelerator={"epoch_steps": every},
        faults=(alone,),
    )


def parallel(ranks: int, epochs: int) -> Rehearsal:
    """Each rank evaluates its share after each epoch."""
    every = EPOCH_STEPS // ranks
    shared = {"epoch_steps": every, "evaluation_ms": EVALUATION_MS / ranks, "evaluate_every": 1}
    return Rehearsal(name=f"n{ranks}-parallel", ranks=ranks, steps=epochs * every + 2, accelerator=shared)


SERIAL_ONE, SERIAL_TWO = serial(1, 2), serial(2, 3)


def cases() -> list[Case]:
    """All forecasts; several may have the same truth."""
    plain = (ONE, TWO)
    found = [
        Case(group="size and rate", truth=_plain(ranks, mbit), calibration=plain, asked=_rate(mbit))
        for mbit, sizes in ((50, (2, 4, 8, 16)), (100, (3, 4, 6, 8, 16)), (200, (2, 4, 8)))
        for ranks in sizes
    ]
    found += [
        Case(
            group="bucket size",
            truth=Rehearsal(name=f"n{ranks}-bucket{mib:g}", ranks=ranks, bucket_mib=mib, steps=17),
            calibration=plain,
            asked=("--what-if", f"bucket={mib / SHRINK * 2**20:.0f}B"),
        )
        for mib in BUCKETS_MIB[1:]
        for ranks in (2, 4, 8)
    ]
    found += [
        Case(
            group="jitter",
            truth=Rehearsal(name=f"n{ranks}-jitter", ranks=ranks, steps=50, faults=_JITTER),
            calibration=(JITTER_ONE, JITTER_TWO),
        )
        for ranks in (4, 8)
    ]
    found += [
        Case(
            group="slow rank removed",
            truth=TWO if ranks == 2 else _plain(ranks, RATE),
            calibration=(ONE, SLOW_TWO),
            asked=("--what-if", "slow-rank=removed"),
        )
        for ranks in (2, 4, 8)
    ]
    found += [
        Case(
            group="loader",
            truth=Rehearsal(
                name=f"n{ranks}-workers{workers}", ranks=ranks, mbit=LOADER_RATE, workers=workers, steps=29
            ),
            calibration=(LOADED_ONE, LOADED_TWO),
            asked=("--what-if", f"workers={workers}") if workers > 1 else (),
        )
        for ranks, workers in ((2, 2), (2, 3), (4, 1), (4, 2), (4, 3))
    ]
    for ranks in (4, 8):
        calibration = (SERIAL_ONE, SERIAL_TWO)
        alone, shared = serial(ranks, 3, beyond=2), parallel(ranks, 3)
        together = ("--what-if", "evaluation=parallel")
        found.append(Case(group="serial evaluation", truth=alone, calibration=calibration, quantity="epoch"))
        found.append(
            Case(group="parallel evaluation", truth=shared, calibration=calibration, quantity="epoch", asked=together)
        )
    return found


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _plain(ranks: int, mbit: int) -> Rehearsal:
    return Rehearsal(name=f"n{ranks}-{mbit}M", ranks=ranks, mbit=mbit, steps=17)


def _rate(mbit: int) -> tuple[str, ...]:
    return () if mbit == RATE else ("--what-if", f"link=x{mbit / RATE:g}")
