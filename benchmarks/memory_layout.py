"""Channels last or first on a CPU: which of both orders in memory makes a training step cheaper, and by how much.

    python benchmarks/memory_layout.py [--rounds N] [--keep FILE] [--output FILE]

Each case is a network, a size of picture, a batch and a precision. Both orders train in one process on one thread, the
same network from the same weights on the same batch, in turns; what counts is the CPU time of a pair of steps, which
other programs on the machine disturb little. ``--keep`` remembers cases, so that a measurement that was broken off
goes on; a file begun with other rounds, sources or versions, or on another machine, is refused.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from allpull.schema.trainspec import ModelSpec, TrainSpec
from allpull.train.models.build import build
from allpull.train.optim.optimizer import sgd
from stored import Kept, keep

CLASSES = 10
WARM_UP = 2
GREY = ("resnet8",)  # networks that are measured on pictures of one channel, as their recipes have


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained: ``batch`` square pictures of ``size`` pixels a side."""

    model: str
    size: int
    batch: int
    precision: str


CASES = tuple(
    Case(model=model, size=size, batch=batch, precision=precision)
    for model, size, batch in (
        ("resnet8", 8, 64),
        ("resnet8", 28, 64),
        ("resnet18", 64, 32),
        ("resnet18", 96, 32),
        ("resnet18", 128, 16),
        ("resnet18", 224, 8),
        ("resnet50", 64, 32),
        ("resnet50", 128, 16),
        ("resnet50", 224, 8),
    )
    for precision in ("fp32", "bf16")
)


def training(case: Case, layout: torch.memory_format) -> Callable[[], float]:
    """Makes one step, and returns its CPU seconds."""
    torch.manual_seed(0)
    channels = 1 if case.model in GREY else 3
    model = build(ModelSpec(name=case.model), channels=channels, classes=CLASSES, pixels=(case.size, case.size))
    model.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs
    optimizer = sgd(model, TrainSpec(lr=0.01))
    images = torch.randn(case.batch, channels, case.size, case.size).contiguous(memory_format=layout)
    targets = torch.randint(0, CLASSES, (case.batch,))

    def step() -> float:
        begin_s = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
            logits = model(images)
        torch.autograd.backward(nn.functional.cross_entropy(logits.float(), targets))
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - begin_s

    return step


def measured(case: Case, rounds: int) -> str:
    """How many times as fast channels last is, as a spread over pairs of steps; a row as JSON."""
    last, first = training(case, torch.channels_last), training(case, torch.contiguous_format)
    for _ in range(WARM_UP):
        last()
        first()
    pairs = []
    for number in range(rounds):
        if number % 2:
            last_s, first_s = last(), first()
        else:
            first_s, last_s = first(), last()
        pairs.append((last_s, first_s))
    ratios = [first_s / last_s for last_s, first_s in pairs]
    row = {
        **asdict(case),
        "images_per_cpu_s": round(case.batch / statistics.median(last_s for last_s, _ in pairs), 1),
        "times_channels_first": {
            "median": round(statistics.median(ratios), 3),
            "low": round(min(ratios), 3),
            "high": round(max(ratios), 3),
        },
    }
    return json.dumps(row)


def main() -> None:
    """Measure, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of steps of a case")
    parser.add_argument("--keep", type=Path, help="remember cases here, and go on from those of last time")
    parser.add_argument("--output", type=Path, help="store the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = Kept(options.keep, {"rounds": options.rounds, "threads": 1})
    said = [kept(json.dumps(asdict(case)), partial(measured, case, options.rounds)) for case in CASES]
    keep(options.output, {"rounds": options.rounds, "threads": 1, "rows": [json.loads(row) for row in said]})


if __name__ == "__main__":
    main()
