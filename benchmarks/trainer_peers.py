"""Images per second of the reference trainer beside others: same network, same pictures, in turns.

    python benchmarks/trainer_peers.py [--quick] [--model resnet18] [--pictures N] [--size N] [--batch N] [--steps N]
        [--rounds N] [--minutes N] [--threads 1,2] [--workers N] [--precisions fp32,bf16] [--set OPTION=VALUE]
        [--keep FILE] [--output FILE]

The others (``trainer_others.py``) are the loop of PyTorch's ImageNet example as it is, and again with channels last,
Lightning, and accelerate. ``allpull`` is ``train`` in a process where nobody observes, ``allpull, observed`` the
command `allpull train`, read from its run directory, and ``allpull, compiled`` has ``train.compile=default``, whose
first step, which translates, is not timed. All compute what the precision says.

**pictures**: the others read JPEG files by a DataLoader with Pillow; allpull reads a pack of the same bytes, by its own
decoder. All load with ``--workers`` beside the threads that compute: threads here, processes there. There are enough
pictures for no loader to run dry, and they come from the page cache. **one batch**: all train on one batch, the same
numbers for all, again and again, as if data were free: with the same initial weights and optimizer they have the same
losses, which is checked. The first over the second is real over synthetic.

Each measurement is a process of its own; after steps that warm up, the wall time of ``--steps`` is taken, and CPU time
beside it. Ways take turns, in an order drawn anew in each round, and ratios are of the same round, so that a busy
machine disturbs them less than it does rates; ratios of CPU time are disturbed least. ``products`` is the rate at which
the device multiplies large matrices, measured in each round as well: what a way computes over that is its share of the
peak. A peer that is not installed is reported with the reason; `make frameworks` brings Lightning and accelerate.
``--keep`` remembers each measurement, so that a comparison that was broken off goes on, with more rounds or minutes if
they are asked for; a file that was begun with other settings, sources or versions, or on another device, is refused.
``--quick`` shows in a minute that all of it works, and nothing more.

**On a GPU**, where torch finds one, the same command measures ResNet-50 at 224 pixels in bf16, batches of 256, with as
many workers as there are processors, beside timm and torchvision's reference as well, and more of allpull's:
``recorded`` has ``train.cuda_graph=true``, and ``two ranks, Gloo`` half of the batch in each of two ranks that share
the GPU. It takes ``--minutes`` at most (8, but for the measurement that is under way): no round is begun that would not
end in time, and one that is broken off is left out. Nobody has tried that yet: this was written, and has run, on
machines without a GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from allpull.rundir.read.places import find_runs
from allpull.rundir.read.run import read_run
from stored import ROOT, Kept, keep
from trainer_asked import asked, prepare
from trainer_data import CHANNELS, DATA, ON_GPU, ONE_BATCH, Setting
from trainer_loops import FRAMEWORKS, LOOPS
from trainer_shared import Rate, network_of
from trainer_table import (
    EXAMPLE,
    OBSERVED,
    OURS,
    Case,
    Found,
    Products,
    evened,
    observed_over_unobserved,
    over_fastest_peer,
    peak_of,
    real_over_synthetic,
    summary,
)

CHILD = ROOT / "benchmarks" / "trainer_loops.py"
PRODUCTS, TWO_RANKS = "products", "allpull, two ranks, Gloo"
ALWAYS = (OURS,) if ON_GPU else (OURS, OBSERVED, EXAMPLE, "example, channels last")
GPU_ONLY = ("allpull, recorded", TWO_RANKS, "timm", "torchvision")
PACKAGES = ("lightning", "accelerate", "timm", "torchvision")
ASKED = ("model", "size", "batch", "warm_up", "steps", "pictures", "workers", "set")
TIMEOUT_S = 180 if ON_GPU else 1200


class Failed(Exception):
    """A way could not be measured; its words say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured, and how often at most: ``setting`` in each precision and with each number of threads.

    ``minutes``: no round is begun that would end later, if it takes as long as the longest so far.
    """

    setting: Setting
    threads: tuple[int, ...]
    rounds: int
    precisions: tuple[str, ...] = ("fp32", "bf16")
    minutes: float = float("inf")

    def settings(self) -> Iterator[Setting]:
        """Each that is to be measured."""
        for threads, precision, data in product(self.threads, self.precisions, DATA):
            yield replace(self.setting, threads=threads, precision=precision, data=data)


def observed(setting: Setting, ranks: int = 1) -> str:
    """The rate of `allpull train`, as JSON, from the step records that it leaves; ``ranks`` share batch and workers.

    Raises:
        Failed: it did not train.
    """
    shared = replace(setting, batch=setting.batch // ranks, workers=max(1, setting.workers // ranks))
    more = [f"train.stop_after={setting.in_all}", *(["parallel.backend=gloo"] if ranks > 1 else [])]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "allpull", "train", setting.recipe, "-n", str(ranks), "--launcher", "local"]
        _output([*command, "--out", out, *(word for one in shared.options(*more) for word in ("--set", one))], setting)
        (directory,) = find_runs(Path(out))
        steps = read_run(directory).steps
    ends_ns = steps.filter(steps["rank"] == 0)["end_ns"].to_list()
    taken_s = (ends_ns[setting.in_all - 1] - ends_ns[setting.warm_up - 1]) / 1e9
    return json.dumps(asdict(Rate(images_per_s=setting.steps * shared.batch * ranks / taken_s)))


def child(way: str, setting: Setting) -> str:
    """The rate of one of ``LOOPS``, as JSON, or of products of matrices, in a process of its own.

    Raises:
        Failed: it is not installed, or ended with an error.
    """
    return _output([sys.executable, str(CHILD), way, json.dumps(asdict(setting))], setting).splitlines()[-1]


def _output(command: Sequence[str], setting: Setting) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"it had not ended after {TIMEOUT_S} s") from late
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def ways_of(setting: Setting) -> dict[str, Callable[[], str]]:
    """The ways that are compared, and what measures them; only allpull observes, and has ranks that share a GPU."""
    ways: dict[str, Callable[[], str]] = {way: partial(child, way, setting) for way in LOOPS}
    if setting.data == ONE_BATCH:
        return ways
    return {**ways, OBSERVED: partial(observed, setting), TWO_RANKS: partial(observed, setting, 2)}


def measure(bench: Bench, kept: Kept) -> tuple[Found, Products, dict[str, str]]:
    """The rates of all ways, and of products, and which could not be had, with the reason.

    Raises:
        Failed: one that has to be there could not.
    """
    found: Found = {}
    products: Products = {}
    absent = {} if ON_GPU else dict.fromkeys(GPU_ONLY, "compared on a GPU only")
    chance, longest_s, end_s = random.Random(0), 0.0, time.monotonic() + bench.minutes * 60
    for turn in range(bench.rounds):
        round_s = time.monotonic()
        if round_s + longest_s > end_s:
            print(f"{turn} of {bench.rounds} rounds, for lack of time", file=sys.stderr, flush=True)
            break
        for setting in bench.settings():
            case = Case(precision=setting.precision, threads=setting.threads, data=setting.data)
            where = f"{turn} {case.precision}, threads: {case.threads}, {case.data}"
            ways: dict[str, Callable[[], str]] = {PRODUCTS: partial(child, PRODUCTS, setting), **ways_of(setting)}
            for way in (PRODUCTS, *chance.sample([*ways][1:], len(ways) - 1)):
                if way in absent or time.monotonic() > end_s:
                    continue
                try:
                    said = kept(f"{where}: {way}", ways[way])
                except Failed as failed:
                    if way in (PRODUCTS, *ALWAYS):
                        raise
                    absent[way] = str(failed)
                    continue
                if way == PRODUCTS:
                    which = case.precision, case.threads
                    products[which] = max(float(said), products.get(which, 0.0))
                    continue
                rate = Rate(**json.loads(said))
                found.setdefault(case, {}).setdefault(way, []).append(rate)
                print(f"{where}: {way:24} {rate.images_per_s:8.1f} images/s", file=sys.stderr, flush=True)
        longest_s = max(longest_s, time.monotonic() - round_s)
    there = {case: {way: of[way] for way in of if way not in absent} for case, of in found.items()}
    return evened(there), products, absent


def flop_per_image(setting: Setting) -> float:
    """Floating-point operations of forward and backward for one picture, by torch's own count."""
    batch = 2  # batch statistics need two values
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network_of(setting)(torch.zeros(batch, CHANNELS, setting.size, setting.size)).sum().backward()
    return float(counter.get_total_flops()) / batch


def versions() -> dict[str, str | None]:
    """Versions of the peers' packages; None: not installed."""
    found = {name: importlib.metadata.distributions(name=name, path=[*sys.path, str(FRAMEWORKS)]) for name in PACKAGES}
    return {name: next((one.version for one in distributions), None) for name, distributions in found.items()}


def main() -> None:
    """Measure, and print or keep the result."""
    options = asked(__doc__ or "")
    device = torch.cuda.get_device_name() if ON_GPU else "cpu"
    about = {name: getattr(options, name) for name in ASKED}
    kept = Kept(options.keep, {**about, "device": device, "peers": versions()})
    with tempfile.TemporaryDirectory() as scratch:
        setting = prepare(options, Path(scratch))
        threads = tuple(int(one) for one in options.threads.split(","))
        bench = Bench(
            setting=setting,
            threads=threads,
            rounds=options.rounds,
            precisions=tuple(options.precisions.split(",")),
            minutes=options.minutes,
        )
        found, products, absent = measure(bench, kept)
    work = flop_per_image(setting)
    keep(
        options.output,
        {
            **about,
            "rounds": max(len(rates) for ways in found.values() for rates in ways.values()),
            "device": device,
            "peak_flop_per_s": peak_of(device),
            "flop_per_image": work,
            "products_flop_per_s": {f"{name}, threads: {threads}": rate for (name, threads), rate in products.items()},
            "peers": versions(),
            "rows": summary(found, work, products, peak_of(device)),
            "over_fastest_peer": over_fastest_peer(found),
            "real_over_synthetic": real_over_synthetic(found),
            "observed_over_unobserved": observed_over_unobserved(found),
            "absent": absent,
        },
    )


if __name__ == "__main__":
    main()
