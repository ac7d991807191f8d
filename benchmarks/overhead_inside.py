"""What observation adds to a step, told within one process: its hooks are in place and taken away in alternation.

    python benchmarks/overhead_inside.py [--repeats 120] [--output FILE]

Two processes that run the same loop differ by some percent, by where their memory happens to lie, and that hides
microseconds in a step of milliseconds (``overhead.py`` compares processes, because other tools allow nothing else).
Here all else stays the same. Times are CPU time of the process; intervals are 95 %, from resampling the pairs; what is
added is the median of the pairs. Beside it stands what the records say themselves (``recording_ns``).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

from allpull.observe.hooks.imports import AfterImport
from allpull.observe.hooks.install import Program, start
from allpull.observe.hooks.torch.networks import SLOT
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from overhead_loop import Step, training
from stored import keep

LOOPS = {"tiny": (1, 300), "calls": (1, 100), "arrays": (24, 150), "conv": (1, 40), "mlp": (16, 15)}
"""Loop of ``overhead_loop.py`` → batch, and steps of each block: some 50 ms."""

WARM_UP_STEPS = 20
SETTLE_STEPS = 2  # of each block, before it is timed
RESAMPLES = 2000
PLACES: tuple[tuple[Any, str], ...] = (
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader.DataLoader, "__iter__"),
    (torch.autograd, "backward"),
    (optim.Optimizer, "zero_grad"),
    (dist, "all_reduce"),
    (dist.Work, "wait"),
    (torch, "from_numpy"),
)
"""What the loops call of all that is wrapped, besides the network itself and the optimizers' hooks."""


class Hooks:
    """All that stands between the loop and torch, to be put in place and taken away."""

    def __init__(self, network: Any, before: list[Any]) -> None:
        self._network = network
        self._before = before
        self._wrapped = [getattr(*place) for place in PLACES]
        self._slot = vars(network)[SLOT]
        hooks = (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
        self._hooks = [(there, dict(there)) for there in hooks]

    def turn(self, *, on: bool) -> None:
        """In place, or taken away."""
        for (holder, name), function in zip(PLACES, self._wrapped if on else self._before, strict=True):
            setattr(holder, name, function)
        object.__setattr__(self._network, SLOT, self._slot if on else None)
        for there, hooks in self._hooks:
            there.clear()
            there.update(hooks if on else {})


def begun(directory: Path) -> Program:
    """Have this process observed, as a program that nobody edited."""
    for folder in layout.FOLDERS:
        (directory / folder).mkdir(parents=True)
    job = directory / layout.SPEC
    JobFile(directory=str(directory), budget=1 << 28, warmup_steps=5).write(str(job))
    program = start(str(job), AfterImport(print))
    program.torch_imported()
    return program


def compared(loop: str, repeats: int) -> dict[str, Any]:
    """One loop, with and without; for a process of its own, which is left as it is."""
    torch.set_num_threads(1)
    batch, steps = LOOPS[loop]
    before = [getattr(*place) for place in PLACES]
    with tempfile.TemporaryDirectory() as folder:
        program = begun(Path(folder))
        network, batches, step = training(loop, batch)

        def train(count: int, step: Step = step, fetch: Callable[[], Any] = batches.__next__) -> int:
            begin_ns = time.process_time_ns()
            for _ in range(count):
                step(fetch())
            return time.process_time_ns() - begin_ns

        train(WARM_UP_STEPS)
        hooks = Hooks(network, before)
        taken_us: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeats):
            for on in random.sample((False, True), 2):
                hooks.turn(on=on)
                train(SETTLE_STEPS)
                taken_us[on].append(train(steps) / steps / 1e3)
        hooks.turn(on=True)
        program.session.close()
        lines = (Path(folder) / layout.steps_file(0)).read_text("ascii").splitlines()[1 + WARM_UP_STEPS :]
    says_us = np.mean([json.loads(line)["recording_ns"] / 1e3 for line in lines])
    told = _told(np.array(taken_us[False]), np.array(taken_us[True]))
    return {"loop": loop, "batch": batch, **told, "says_us": round(float(says_us), 1)}


def _told(plain_us: Any, seen_us: Any) -> dict[str, Any]:
    drawn = np.random.default_rng(0).integers(0, len(plain_us), (RESAMPLES, len(plain_us)))  # pairs stay together
    added = np.median((seen_us - plain_us)[drawn], axis=1)
    low, high = np.percentile(added, [2.5, 97.5])
    values = {"value": np.median(seen_us - plain_us), "low": low, "high": high}
    return {
        "plain_step_us": round(float(np.median(plain_us)), 1),
        "added_us": {name: round(float(value), 1) for name, value in values.items()},
    }


def main() -> None:
    """Measure every loop, each in a process of its own, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=120)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    spawn = torch.multiprocessing.get_context("spawn")
    rows = []
    for loop in LOOPS:
        with spawn.Pool(1) as pool:
            rows.append(pool.apply(compared, (loop, options.repeats)))
    keep(options.output, {"repeats": options.repeats, "loops": rows})


if __name__ == "__main__":
    main()
