"""What observation adds to a step, told within one process: its hooks are in place and taken away in alternation.

    python benchmarks/overhead_inside.py [--loops mlp,conv] [--seconds 60] [--output FILE]

Two processes that run the same loop differ by some percent, by where their memory happens to lie, and that hides
microseconds in a step of milliseconds (``overhead.py`` compares processes, because other tools allow nothing else).
Here all else stays the same. Every step is timed on its own, in CPU time of its thread: blocks of a few steps follow
each other in random order, and what is added is the median over pairs of blocks of the difference of their medians,
which neither a drifting clock nor a disturbed step moves. What is done for many steps at once (deriving them from
notes, formatting, writing) is timed where it is done, left out of its step, and shared among the steps. CPU time of
other threads is shown as the difference of its means. Intervals are 95 %, from resampling the pairs. Beside it stands
what the records say themselves (``recording_ns``).

A third kind of block is the control: wrappers that only pass calls on stand in the places of the hooks. What they add
is what any observer in Python adds that wraps so many calls, and what putting wrappers in place and taking them away
adds by itself: a class whose method is exchanged makes the interpreter look up anew what it had remembered.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

from allpull.observe.hooks.imports import AfterImport
from allpull.observe.hooks.inference.deferred import Deferred
from allpull.observe.hooks.install import Program, start
from allpull.observe.hooks.torch.networks import SLOT
from allpull.observe.recording.recorder import Recorder
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from overhead_loop import Batch, Step, training
from stored import keep

LOOPS = {"tiny": 1, "calls": 1, "arrays": 24, "conv": 1, "mlp": 16}
"""Loop of ``overhead_loop.py`` → batch."""

KINDS = PLAIN, PASSED, SEEN = "plain", "passed on", "observed"
"""Of blocks: without any wrapper, with wrappers that do nothing, and with the hooks."""

WARM_UP_STEPS = 20
BLOCK_STEPS = 8  # that are timed: few, so that both blocks of a pair meet the same machine
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


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of ``function`` that does nothing."""

    def observed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return observed


def nothing(*_: Any) -> None:
    """An optimizer's hook that does nothing."""


class Hooks:
    """All that stands between the loop and torch, to be exchanged: for each kind of block its functions."""

    def __init__(self, network: Any, before: list[Any]) -> None:
        self._network = network
        wrapped = [getattr(*place) for place in PLACES]
        passing = [one if one is plain else passed_on(plain) for one, plain in zip(wrapped, before, strict=True)]
        self._places = dict(zip(KINDS, (before, passing, wrapped), strict=True))
        self._slots = dict(zip(KINDS, (None, passed_on(network._call_impl), vars(network)[SLOT]), strict=True))
        self._hooks: list[tuple[Any, dict[str, dict[Any, Any]]]] = [
            (there, dict(zip(KINDS, ({}, dict.fromkeys(there, nothing), dict(there)), strict=True)))
            for there in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
        ]

    def turn(self, kind: str) -> None:
        """Put those of one kind in place."""
        for (holder, name), function in zip(PLACES, self._places[kind], strict=True):
            setattr(holder, name, function)
        object.__setattr__(self._network, SLOT, self._slots[kind])
        for there, hooks in self._hooks:
            there.clear()
            there.update(hooks[kind])


class Together:
    """CPU time of what is done for many steps at once, by the calls that are wrapped here."""

    def __init__(self) -> None:
        self.ns = 0
        self._runs = False
        for holder, name in ((Deferred, "repeat"), (Recorder, "_flush")):
            setattr(holder, name, self._timed(getattr(holder, name)))

    def _timed(self, function: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            if self._runs:  # the one calls the other
                function(*args)
                return
            begin_ns, self._runs = time.thread_time_ns(), True
            try:
                function(*args)
            finally:
                self.ns += time.thread_time_ns() - begin_ns
                self._runs = False

        return timed


class Blocks:
    """Blocks of steps of one loop, timed."""

    def __init__(self, step: Step, batches: Iterator[Batch], together: Together) -> None:
        self._step, self._fetch = step, batches.__next__
        self._together = together
        self.median_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.others_us: dict[str, list[float]] = {kind: [] for kind in KINDS}  # CPU time of other threads, per step

    def train(self, steps: int) -> list[float]:
        """Microseconds of each step, in its thread, without what was done for many steps at once."""
        step, fetch, together, clock_ns = self._step, self._fetch, self._together, time.thread_time_ns
        taken_us = []
        for _ in range(steps):
            together_ns, begin_ns = together.ns, clock_ns()
            step(fetch())
            taken_us.append((clock_ns() - begin_ns - (together.ns - together_ns)) / 1e3)
        return taken_us

    def add(self, kind: str) -> None:
        """One more block of this kind."""
        self.train(SETTLE_STEPS)
        others_ns = time.process_time_ns() - time.thread_time_ns()
        self.median_us[kind].append(float(np.median(self.train(BLOCK_STEPS))))
        others_ns = time.process_time_ns() - time.thread_time_ns() - others_ns
        self.others_us[kind].append(others_ns / BLOCK_STEPS / 1e3)


def begun(directory: Path) -> Program:
    """Have this process observed, as a program that nobody edited."""
    for folder in layout.FOLDERS:
        (directory / folder).mkdir(parents=True)
    job = directory / layout.SPEC
    JobFile(directory=str(directory), budget=1 << 28, warmup_steps=5).write(str(job))
    program = start(str(job), AfterImport(print))
    program.torch_imported()
    return program


def compared(loop: str, seconds: float) -> dict[str, Any]:
    """One loop, with and without; for a process of its own, which is left as it is."""
    torch.set_num_threads(1)
    batch, together = LOOPS[loop], Together()
    before = [getattr(*place) for place in PLACES]
    with tempfile.TemporaryDirectory() as folder:
        program = begun(Path(folder))
        network, batches, step = training(loop, batch)
        blocks = Blocks(step, batches, together)
        blocks.train(WARM_UP_STEPS)
        hooks = Hooks(network, before)
        together.ns, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for kind in random.sample(KINDS, len(KINDS)):
                hooks.turn(kind)
                blocks.add(kind)
        hooks.turn(SEEN)
        program.session.close()
        lines = (Path(folder) / layout.steps_file(0)).read_text("ascii").splitlines()[1 + WARM_UP_STEPS :]
    says_us = np.mean([json.loads(line)["recording_ns"] / 1e3 for line in lines])
    told = _told(blocks, together.ns / len(lines) / 1e3)
    return {"loop": loop, "batch": batch, **told, "says_us": round(float(says_us), 1)}


def _told(blocks: Blocks, together_us: float) -> dict[str, Any]:
    plain_us = np.array(blocks.median_us[PLAIN])
    drawn = np.random.default_rng(0).integers(0, len(plain_us), (RESAMPLES, len(plain_us)))  # pairs stay together

    def added(kind: str, together_us: float) -> dict[str, float]:
        more_us = np.array(blocks.median_us[kind]) - plain_us
        low, high = np.percentile(np.median(more_us[drawn], axis=1), [2.5, 97.5])
        values = {"value": np.median(more_us), "low": low, "high": high}
        return {name: round(float(value + together_us), 1) for name, value in values.items()}

    return {
        "plain_step_us": round(float(np.median(plain_us)), 1),
        "added_us": added(SEEN, together_us),
        "passed_on_us": added(PASSED, 0),
        "together_us": round(together_us, 1),
        "other_threads_us": round(float(np.mean(blocks.others_us[SEEN]) - np.mean(blocks.others_us[PLAIN])), 1),
        "pairs": len(plain_us),
    }


def main() -> None:
    """Measure every loop, each in a process of its own, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", default=",".join(LOOPS), help="which, with commas between")
    parser.add_argument("--seconds", type=float, default=60, help="for each loop")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    spawn = torch.multiprocessing.get_context("spawn")
    rows = []
    for loop in options.loops.split(","):
        with spawn.Pool(1) as pool:
            rows.append(pool.apply(compared, (loop, options.seconds)))
    keep(options.output, {"seconds": options.seconds, "loops": rows})


if __name__ == "__main__":
    main()
