"""What recording costs on a GPU: the same program recorded and not, in turns, and each call that recording makes.

    python benchmarks/gpu_recording.py [--rounds N] [--steps N] [--output FILE]

The program is that of ``tests/gpu``; its own events of CUDA time its steps. A small network is paced by its host, and
pays for each microsecond that its host spends; a large one keeps the device busy, and its host has time. In each round
both are trained as they are and under `allpull run`, in an order drawn anew; ratios are of medians of the same round.
``calls_us`` are the calls of torch that a mark on the device takes, in a tight loop: in a program they take longer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stored import ROOT, keep

PROGRAM = ROOT / "tests" / "gpu" / "program.py"
SIZES = {
    "paced by its host": ("--width", "16", "--batch", "4"),
    "keeps its device busy": ("--width", "256", "--batch", "64"),
}
SETTLED = 20  # steps that choose convolutions and fill caches
CALLS = 2000


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a GPU that torch can use")
    device = torch.cuda.get_device_name()
    sizes = {name: cost(words, options.rounds, options.steps) for name, words in SIZES.items()}
    keep(options.output, {"device": device, "rounds": options.rounds, "sizes": sizes, "calls_us": calls_us()})


def cost(words: tuple[str, ...], rounds: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step of the program with these options, not recorded and recorded, and what recording adds."""
    pairs = []
    for _ in range(rounds):
        ways = [False, True]
        random.shuffle(ways)
        took = {way: step_ms([*words, "--steps", str(steps)], recorded=way) for way in ways}
        pairs.append((took[False], took[True]))
    ratios = sorted(recorded / bare for bare, recorded in pairs)
    return {
        "bare_ms": round(statistics.median(bare for bare, _ in pairs), 4),
        "recorded_ms": round(statistics.median(recorded for _, recorded in pairs), 4),
        "added_ms": round(statistics.median(recorded - bare for bare, recorded in pairs), 4),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratios[0], 4), round(ratios[-1], 4)],
    }


def step_ms(words: list[str], *, recorded: bool) -> float:
    """The median step of one training, ms."""
    with tempfile.TemporaryDirectory() as folder:
        observed = ["-m", "allpull", "run", "--out", folder, "--", sys.executable] if recorded else []
        subprocess.run([sys.executable, *observed, str(PROGRAM), folder, *words], check=True, stdout=subprocess.DEVNULL)
        measured = json.loads((Path(folder) / "own-0.json").read_text(encoding="ascii"))
    return statistics.median(measured["step_ms"][SETTLED:])


def calls_us() -> dict[str, float]:
    """Microseconds of each call that a mark on the device makes."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream()
    for event in (first, second):
        event.record(stream)
    torch.cuda.synchronize()
    calls: dict[str, Callable[[], object]] = {
        "current_stream": torch.cuda.current_stream,
        "is_current_stream_capturing": torch.cuda.is_current_stream_capturing,
        "query": first.query,
        "elapsed_time": lambda: first.elapsed_time(second),
        "record": lambda: first.record(stream),
    }
    return {name: round(1e6 * seconds(call), 3) for name, call in calls.items()}


def seconds(call: Callable[[], object]) -> float:
    """The median of some calls, s each."""
    took = []
    for _ in range(CALLS):
        begun_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun_s)
    return statistics.median(took)


if __name__ == "__main__":
    main()
