"""What bf16 costs or saves on a CPU by the instructions that it has: steps under autocast beside those in fp32.

    python benchmarks/bf16_on_cpus.py [--rounds N] [--output FILE]

One processor stands for older ones, by having oneDNN leave newer instructions alone (``ONEDNN_MAX_CPU_ISA``), each time
in a process of its own; what the processor itself lacks is left out. Both precisions train on one thread, the same
network from the same weights on the same batch, in turns; what counts is the CPU time of a pair of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from allpull.train.numerics.precision import instructions
from memory_layout import WARM_UP, Case, training
from stored import keep

KINDS = {
    "AVX2": "avx2",
    "AVX512_CORE_VNNI": "avx512_vnni",
    "AVX512_CORE_BF16": "avx512_bf16",
    "AVX512_CORE_AMX": "amx_bf16",
}
"""What oneDNN is told to keep to, and the instructions without which a processor cannot show it."""
NETWORKS = (("resnet8", 28, 64), ("resnet18", 64, 16))
CHILD = "--child"


def measured(model: str, size: int, batch: int, rounds: int) -> dict[str, object]:
    """How many times as long a step in bf16 takes as one in fp32, as a spread over pairs of steps."""
    single, half = (
        training(Case(model=model, size=size, batch=batch, precision=precision), torch.channels_last)
        for precision in ("fp32", "bf16")
    )
    for _ in range(WARM_UP):
        single()
        half()
    ratios = []
    for number in range(rounds):
        if number % 2:
            half_s, single_s = half(), single()
        else:
            single_s, half_s = single(), half()
        ratios.append(half_s / single_s)
    spread = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    return {
        "model": model,
        "size": size,
        "batch": batch,
        "bf16_over_fp32": {name: round(value, 2) for name, value in spread.items()},
    }


def in_a_process(kind: str, rounds: int) -> list[dict[str, object]]:
    """The rows of a processor that has no newer instructions than ``kind``."""
    command = [sys.executable, __file__, CHILD, "--rounds", str(rounds)]
    environ = {**os.environ, "ONEDNN_MAX_CPU_ISA": kind}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    rows: list[dict[str, object]] = json.loads(said)
    return [{"instructions": kind, **row} for row in rows]


def main() -> None:
    """Measure, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of steps of a network")
    parser.add_argument("--output", type=Path, help="store the result here")
    parser.add_argument(CHILD, action="store_true", help="measure this process alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        sys.stdout.write(json.dumps([measured(*network, options.rounds) for network in NETWORKS]))
        return
    here = instructions()
    rows = [row for kind, needs in KINDS.items() if needs in here for row in in_a_process(kind, options.rounds)]
    keep(options.output, {"rounds": options.rounds, "threads": 1, "rows": rows})


if __name__ == "__main__":
    main()
