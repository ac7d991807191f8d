"""What observation costs a program that nobody edited, beside torch.profiler and TraceML, in alternation.

    python benchmarks/overhead.py [--loops conv,tiny,ddp,calls] [--sets 2] [--repeats 30] [--traceml FOLDER]
        [--output FILE]

Every way of running trains the same loop in processes of its own, all there at once; each trains a fixed number of
steps while the others wait, in an order drawn anew each time. (For a fixed time, whatever slows a step would go unseen:
fewer steps would be made.) Ratios are of all the time that one way took to that of plain training, with 95 % intervals
from resampling the paired repeats; CPU time is that of the rank, with its threads, and hardly minds other load.

- ``conv``: a step of 15 to 25 ms, one process. The batch that takes so long here is found at first, then kept.
- ``tiny``: one layer, a batch of one sample: the cost itself.
- ``ddp``: two ranks, a network with batch norm, whose buffers DDP broadcasts before each forward pass.
- ``calls``: ``tiny`` with 16 all-reduces a step, in a group of one.

``torch.profiler`` is on all the time, and started and stopped with each repeat; it writes no file. TraceML is told of
steps by ``trace_step``, and is found in ``--traceml`` (``pip install --no-deps --target build/traceml traceml-ai
msgspec nvidia-ml-py pyyaml``). What observed runs say of themselves (``recording_ns``) stands beside what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allpull.rundir.read.run import read_run
from stored import ROOT, keep

LOOP = ROOT / "benchmarks" / "overhead_loop.py"
STEPS = {"conv": 5, "tiny": 500, "ddp": 100, "calls": 200}
"""Loop → steps of each repeat: about a tenth of a second, so that what else runs meets all ways alike."""

RANKS = {"conv": 1, "tiny": 1, "ddp": 2, "calls": 1}
WARM_UP_REPEATS = 3
CONV_STEP_S = 0.020
START_S = 180
RESAMPLES = 2000
TRACEML = ROOT / "build" / "traceml"
TRACE = "every=500,steps=3"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")

Times = dict[str, list[dict[str, float]]]
"""Way → wall and CPU time of a step in each repeat, ns."""


class Unavailable(Exception):
    """A way cannot be had here; its words say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one process has to train, and where it finds its orders."""

    loop: str
    batch: int
    socket: str
    scratch: Path
    traceml: Path | None

    def program(self, *more: str) -> list[str]:
        """The loop with its arguments."""
        return [str(LOOP), self.loop, self.socket, "--batch", str(self.batch), *more]

    def started(self, *more: str) -> list[str]:
        """The command that a user has already."""
        ranks = RANKS[self.loop]
        launcher = [] if ranks == 1 else [*TORCHRUN, str(ranks)]
        return [sys.executable, *launcher, *self.program(*more)]


def plain(asked: Asked) -> list[str]:
    """Nobody watches."""
    return asked.started()


def allpull(asked: Asked, *options: str) -> list[str]:
    """`allpull run` before the same command."""
    return [sys.executable, "-m", "allpull", "run", "--out", str(asked.scratch), *options, "--", *asked.started()]


def allpull_traced(asked: Asked) -> list[str]:
    """`allpull run` with profiler windows."""
    return allpull(asked, "--trace", TRACE)


def profiler(asked: Asked) -> list[str]:
    """torch.profiler all the time."""
    return asked.started("--beside", "profiler")


def traceml(asked: Asked) -> list[str]:
    """`traceml run`, which starts ranks itself."""
    if asked.traceml is None or not (asked.traceml / "traceml_ai").is_dir():
        raise Unavailable("traceml-ai is not installed in the folder that --traceml names")
    options = ["--logs-dir", str(asked.scratch), "--nproc-per-node", str(RANKS[asked.loop])]
    script, *arguments = asked.program("--beside", "traceml")
    return [sys.executable, "-m", "traceml_ai.launcher.cli", "run", *options, script, "--args", *arguments]


WAYS: dict[str, Callable[[Asked], list[str]]] = {
    "plain": plain,
    "allpull": allpull,
    "allpull_traced": allpull_traced,
    "profiler": profiler,
    "traceml": traceml,
}


class Ranks:
    """The ranks of one way of running, which train when they are ordered to."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], listener: socket.socket, ranks: int):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        self._lines = [self._connected(listener).makefile("rw", encoding="ascii") for _ in range(ranks)]

    def train(self, steps: int) -> dict[str, float]:
        """Train so many steps; what one of them took, ns: the wall time of the slowest rank, the mean CPU time."""
        for lines in self._lines:
            lines.write(f"{steps}\n")
            lines.flush()
        took = [json.loads(lines.readline() or self._ended()) for lines in self._lines]
        wall_ns, cpu_ns = ([one[clock] / steps for one in took] for clock in ("wall_ns", "cpu_ns"))
        return {"wall": max(wall_ns), "cpu": sum(cpu_ns) / len(cpu_ns)}

    def end(self) -> None:
        """No more orders: the program ends, and whoever watched it."""
        for lines in self._lines:
            lines.close()
        self._process.wait()
        self._log.close()

    def _connected(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + START_S
        while not select.select([listener], [], [], 0.2)[0]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise Unavailable(self._ended())
        return listener.accept()[0]

    def _ended(self) -> str:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        raise Unavailable(said[-1] if said else "it ended without a word")


@contextmanager
def running(way: str, asked: Asked) -> Iterator[Ranks]:
    """The ranks of ``way``, warmed up."""
    path = [str(asked.traceml)] if way == "traceml" else []
    path += [part for part in (os.environ.get("PYTHONPATH"),) if part]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(asked.socket)
        listener.listen()
        ranks = Ranks(WAYS[way](asked), environment, listener, RANKS[asked.loop])
        try:
            for _ in range(WARM_UP_REPEATS):
                ranks.train(STEPS[asked.loop])
            yield ranks
        finally:
            ranks.end()


def one_set(loop: str, batch: int, repeats: int, traceml_folder: Path | None) -> tuple[Times, dict[str, Any]]:
    """Time of a step in each repeat by way; and by way what it says of itself, ns a step, or why it cannot be had."""
    times: Times = {}
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        asked = {
            way: Asked(
                loop=loop,
                batch=batch,
                socket=f"{scratch}/{way}",
                scratch=Path(scratch) / f"of_{way}",
                traceml=traceml_folder,
            )
            for way in WAYS
        }
        with ExitStack() as stack:
            there = {}
            for way in WAYS:
                try:
                    there[way] = stack.enter_context(running(way, asked[way]))
                except Unavailable as reason:
                    said[way] = str(reason)
            for _ in range(repeats):
                for way in random.sample(list(there), len(there)):
                    times.setdefault(way, []).append(there[way].train(STEPS[loop]))
        for way in there:
            if way.startswith("allpull"):
                said[way] = recorded_ns(asked[way].scratch)
    return times, said


def recorded_ns(folder: Path) -> float:
    """What the run in ``folder`` says that recording one of its steps took, ns."""
    (directory,) = folder.iterdir()
    return float(read_run(directory).steps["recording_ns"].drop_nulls().mean())


def conv_batch() -> int:
    """The batch with which a step of the loop ``conv`` takes about ``CONV_STEP_S`` here."""
    batch = 16
    with tempfile.TemporaryDirectory() as scratch:
        for attempt in range(2):
            asked = Asked(loop="conv", batch=batch, socket=f"{scratch}/{attempt}", scratch=Path(scratch), traceml=None)
            with running("plain", asked) as ranks:
                step_s = min(ranks.train(STEPS["conv"])["cpu"] for _ in range(9)) / 1e9
            batch = max(1, round(batch * CONV_STEP_S / step_s))
    return batch


def measured(sets: Sequence[Times], way: str) -> dict[str, Any]:
    """What ``way`` took beside plain training: ratios, and what it added to a step, from all repeats of all sets."""
    found: dict[str, Any] = {}
    draws = np.random.default_rng(0)
    for clock in ("wall", "cpu"):
        plain_ns, taken_ns = (
            np.array([one[clock] for times in sets for one in times.get(name, ())]) for name in ("plain", way)
        )
        drawn = draws.integers(0, len(plain_ns), (RESAMPLES, len(plain_ns)))  # repeats stay in their pairs
        ratios = taken_ns[drawn].sum(axis=1) / plain_ns[drawn].sum(axis=1)
        added_us = (taken_ns - plain_ns)[drawn].mean(axis=1) / 1e3
        found[f"{clock}_ratio"] = _interval(taken_ns.sum() / plain_ns.sum(), ratios, 4)
        found[f"{clock}_added_us"] = _interval((taken_ns - plain_ns).mean() / 1e3, added_us, 1)
    return found


def _interval(value: float, resampled: Any, digits: int) -> dict[str, float]:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {name: round(float(number), digits) for name, number in (("value", value), ("low", low), ("high", high))}


def of_loop(loop: str, options: argparse.Namespace) -> dict[str, Any]:
    """The rows of one loop, a way each."""
    batch = conv_batch() if loop == "conv" else 1 + (loop == "ddp")  # batch norm wants two samples
    sets, said = [], {}
    for _ in range(options.sets):
        times, words = one_set(loop, batch, options.repeats, options.traceml)
        sets.append(times)
        for way, word in words.items():
            said.setdefault(way, []).append(word)
    plain_us = [one["cpu"] / 1e3 for times in sets for one in times["plain"]]
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        row: dict[str, Any] = {"way": way}
        if not all(way in times for times in sets):
            row["skipped"] = said[way][0]
        elif way != "plain":
            row.update(measured(sets, way))
            if way in said:
                row["says_us"] = round(sum(said[way]) / len(said[way]) / 1e3, 1)
        rows.append(row)
    about = {"loop": loop, "ranks": RANKS[loop], "batch": batch, "steps": STEPS[loop] * options.repeats * options.sets}
    return {**about, "plain_step_us": round(float(np.median(plain_us)), 1), "ways": rows}


def main() -> None:
    """Measure every loop and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", default=",".join(STEPS))
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--traceml", type=Path, default=TRACEML)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    loops = [of_loop(loop, options) for loop in options.loops.split(",")]
    keep(options.output, {"sets": options.sets, "repeats": options.repeats, "loops": loops})


if __name__ == "__main__":
    main()
