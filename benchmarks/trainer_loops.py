"""The trainings that ``trainer_peers.py`` measures: one of them in this process, and what its steps took.

    python benchmarks/trainer_loops.py LOOP SETTING

SETTING is a JSON object with the fields of ``Setting``; the last line printed is one with those of ``Rate``. A peer
that is not installed ends the process with its ImportError. Lightning and accelerate are found in ``build/frameworks``
(`make frameworks`) where the environment has none.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from allpull import marks
from allpull.config.load import load_spec
from allpull.train.loop import train
from allpull.train.numerics.precision import allow_tf32
from allpull.train.parallel.ranks import join
from stored import ROOT
from trainer_data import DEVICE, ON_GPU, Setting
from trainer_others import accelerate, example, lightning, timm, torchvision
from trainer_shared import Losses, Stopwatch

FRAMEWORKS = ROOT / "build" / "frameworks"
SIDE = 8192 if ON_GPU else 2048  # of the matrices whose product shows what the device can do
NOT_SO = ("train.compile:", "train.cuda_graph:")  # remarks that begin so: it was asked for, and is not so


def ours(setting: Setting, stop: Stopwatch, more: tuple[str, ...] = ()) -> Losses:
    """The trainer of allpull as it is, by ``train``, in one rank that nobody observes; ``more`` options than all.

    Raises:
        RuntimeError: it trained otherwise than was asked.
    """
    spec, said = load_spec(setting.recipe, setting.options(*more)), list[str]()
    with tempfile.TemporaryDirectory() as scratch, patch.object(marks, "remark", said.append):
        losses: Losses = [*train(spec, join(setting.threads, spec.parallel), Path(scratch), stop).losses]
    for remark in said:
        if remark.startswith(NOT_SO):
            raise RuntimeError(remark)
    return losses


def products_per_s(precision: str) -> float:
    """Floating-point operations a second in products of large square matrices, the best of ten, in ``precision``."""
    left, right = (torch.randn(SIDE, SIDE, device=DEVICE) for _ in range(2))
    if precision == "bf16":
        left, right = left.bfloat16(), right.bfloat16()
    best_s = float("inf")
    for _ in range(10):
        begin_s = time.perf_counter()
        left @ right
        if ON_GPU:
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - begin_s)
    return 2 * SIDE**3 / best_s


LOOPS: dict[str, Callable[[Setting, Stopwatch], Losses]] = {
    "allpull": ours,
    "allpull, compiled": partial(ours, more=("train.compile=default",)),
    "allpull, recorded": partial(ours, more=("train.cuda_graph=true",)),
    "example": example,
    "example, channels last": partial(example, layout=torch.channels_last),
    "Lightning": lightning,
    "accelerate": accelerate,
    "timm": timm,
    "torchvision": torchvision,
}
"""Way of training → the loop, which returns the loss of each step."""


def main(name: str, words: str) -> None:
    """Train as ``words`` say, and print the rate; with ``products`` for a name, that of multiplying matrices."""
    fields = json.loads(words)
    setting = Setting(**{**fields, "sets": tuple(fields["sets"])})
    sys.path.append(str(FRAMEWORKS))  # last: what the environment has itself comes before
    torch.set_num_threads(setting.threads)
    if ON_GPU:
        allow_tf32(setting.precision != "fp32")  # as allpull's fp32 means it, for all of them
    if name == "products":
        print(products_per_s(setting.precision))
        return
    stop = Stopwatch(setting)
    losses = LOOPS[name](setting, stop)
    print(json.dumps(asdict(stop.rate(losses))))


if __name__ == "__main__":
    main(*sys.argv[1:])
