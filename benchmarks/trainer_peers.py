"""Images per second of the reference trainer beside others: same network, same pictures, in turns.

    python benchmarks/trainer_peers.py [--quick] [--model resnet18] [--pictures N] [--size N] [--batch N] [--steps N]
        [--rounds N] [--threads 1,2] [--workers N] [--set OPTION=VALUE] [--keep FILE] [--output FILE]

The others (``trainer_loops.py``) are the loop of PyTorch's ImageNet example as it is, and again with channels last,
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
``--keep`` remembers each measurement, so that a comparison that was broken off goes on. ``--quick`` shows in a minute
that all of it works, and nothing more.

Where torch finds a GPU, all train on it, timm as well. Nobody has tried that yet: this was written, and has run, on
machines without one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from allpull.pack.encode import Recipe
from allpull.pack.plan import Layout, plan
from allpull.pack.sources import SOURCES
from allpull.pack.write import write_pack
from allpull.rundir.read import find_runs, read_run
from loader_paths import make_folder
from stored import ROOT, Kept, keep
from trainer_data import DATA, ON_GPU, ONE_BATCH, PICTURES, SPARE, Setting
from trainer_loops import CHANNELS, FRAMEWORKS, LOOPS, Rate, network_of
from trainer_table import (
    EXAMPLE,
    OBSERVED,
    OURS,
    Case,
    Found,
    Products,
    observed_over_unobserved,
    real_over_synthetic,
    summary,
)

CHILD = ROOT / "benchmarks" / "trainer_loops.py"
ALWAYS = (OURS, OBSERVED, "allpull, compiled", EXAMPLE, "example, channels last")
PACKAGES = ("lightning", "accelerate", "timm")
PRECISIONS = ("fp32", "bf16")
TIMEOUT_S = 1200

FULL = {"pictures": 192, "size": 128, "batch": 16, "steps": 6, "warm_up": 2, "rounds": 3, "threads": "1"}
QUICK = {"pictures": 64, "size": 64, "batch": 8, "steps": 3, "warm_up": 1, "rounds": 1, "threads": "1"}


class Failed(Exception):
    """A way could not be measured; its words say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured, and how often: ``setting`` in each precision and with each number of threads."""

    setting: Setting
    threads: tuple[int, ...]
    rounds: int

    def settings(self) -> Iterator[Setting]:
        """Each that is to be measured."""
        for threads, precision, data in product(self.threads, PRECISIONS, DATA):
            yield replace(self.setting, threads=threads, precision=precision, data=data)


def observed(setting: Setting) -> str:
    """The rate of `allpull train`, as JSON, from the step records that it leaves.

    Raises:
        Failed: it did not train.
    """
    with tempfile.TemporaryDirectory() as out:
        sets = setting.options(f"train.stop_after={setting.in_all}")
        command = [sys.executable, "-m", "allpull", "train", setting.recipe, "-n", "1", "--launcher", "local"]
        _output([*command, "--out", out, *(word for one in sets for word in ("--set", one))], setting)
        (directory,) = find_runs(Path(out))
        ends_ns = read_run(directory).steps["end_ns"].to_list()
    taken_s = (ends_ns[setting.in_all - 1] - ends_ns[setting.warm_up - 1]) / 1e9
    return json.dumps(asdict(Rate(images_per_s=setting.steps * setting.batch / taken_s)))


def child(way: str, setting: Setting) -> str:
    """The rate of one of ``LOOPS``, as JSON, or of products of matrices, in a process of its own.

    Raises:
        Failed: it is not installed, or ended with an error.
    """
    return _output([sys.executable, str(CHILD), way, json.dumps(asdict(setting))], setting).splitlines()[-1]


def _output(command: Sequence[str], setting: Setting) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def ways_of(setting: Setting) -> list[str]:
    """The ways that are compared: nobody else observes, and timm brings a loader of its own."""
    if setting.data == ONE_BATCH:
        return [way for way in LOOPS if way != "timm"]
    return [*LOOPS, OBSERVED]


def measure(bench: Bench, kept: Kept) -> tuple[Found, Products, dict[str, str]]:
    """The rates of all ways, and of products, and which peers could not be had, with the reason.

    Raises:
        Failed: one that has to be there could not.
    """
    found: Found = {}
    products: Products = {}
    absent = {} if ON_GPU else {"timm": "compared on a GPU only"}
    chance = random.Random(0)
    for turn in range(bench.rounds):
        for setting in bench.settings():
            case = Case(precision=setting.precision, threads=setting.threads, data=setting.data)
            where = f"{turn} {case.precision}, threads: {case.threads}, {case.data}"
            best = float(kept(f"{where}: products", partial(child, "products", setting)))
            products[case.precision, case.threads] = max(best, products.get((case.precision, case.threads), 0.0))
            ways = ways_of(setting)
            for way in (one for one in chance.sample(ways, len(ways)) if one not in absent):
                work = partial(observed, setting) if way == OBSERVED else partial(child, way, setting)
                try:
                    rate = Rate(**json.loads(kept(f"{where}: {way}", work)))
                except Failed as failed:
                    if way in ALWAYS or turn:  # a peer that is there for one round is there for all
                        raise
                    absent[way] = str(failed)
                    continue
                found.setdefault(case, {}).setdefault(way, []).append(rate)
                print(f"{where}: {way:24} {rate.images_per_s:8.1f} images/s", file=sys.stderr, flush=True)
    return {case: {way: of[way] for way in of if way not in absent} for case, of in found.items()}, products, absent


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


def prepare(options: argparse.Namespace, scratch: Path) -> Setting:
    """Make the pictures, a pack of them and a recipe below ``scratch``; the setting that uses them."""
    folder = make_folder(scratch / "pictures", options.pictures)
    listing = SOURCES.load("imagefolder")(folder, None)
    pack = write_pack(plan(listing, Recipe(kind="jpeg"), Layout(seed=0)), scratch / "pack", workers=1).directory
    recipe = scratch / "recipe.toml"
    recipe.write_text('name = "trainer-peers"\n', encoding="utf-8")
    return Setting(
        precision=PRECISIONS[0],
        data=PICTURES,
        threads=1,
        workers=options.workers,
        model=options.model,
        size=options.size,
        batch=options.batch,
        warm_up=options.warm_up,
        steps=options.steps,
        folder=str(folder),
        pack=str(pack),
        recipe=str(recipe),
        sets=tuple(options.set),
    )


def asked() -> argparse.Namespace:
    """The options, with the defaults of ``QUICK`` where that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and once")
    parser.add_argument("--model", default="resnet18", help="a name from `allpull train --list-models`")
    for name in ("pictures", "size", "batch", "steps", "warm-up", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--threads", help="numbers of computing threads, with commas")
    parser.add_argument("--workers", type=int, default=1, help="of each loader: threads of allpull's, or processes")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="more options of allpull's")
    parser.add_argument("--keep", type=Path, help="remember measurements here, and go on from those of last time")
    parser.add_argument("--output", type=Path, help="store the result here")
    parser.set_defaults(**(QUICK if parser.parse_known_args()[0].quick else FULL))
    options = parser.parse_args()
    needed = (options.warm_up + options.steps + SPARE) * options.batch
    if options.pictures < needed:
        parser.error(f"--pictures {options.pictures}: steps of one epoch, and {SPARE} to spare, need {needed}")
    return options


def main() -> None:
    """Measure, and print or keep the result."""
    options = asked()
    with tempfile.TemporaryDirectory() as scratch:
        setting = prepare(options, Path(scratch))
        threads = tuple(int(one) for one in options.threads.split(","))
        bench = Bench(setting=setting, threads=threads, rounds=options.rounds)
        found, products, absent = measure(bench, Kept(options.keep))
    work = flop_per_image(setting)
    about = ("model", "size", "batch", "warm_up", "steps", "rounds", "pictures", "workers", "set")
    keep(
        options.output,
        {
            **{name: getattr(options, name) for name in about},
            "device": torch.cuda.get_device_name() if ON_GPU else "cpu",
            "flop_per_image": work,
            "products_flop_per_s": {f"{name}, threads: {threads}": rate for (name, threads), rate in products.items()},
            "peers": versions(),
            "rows": summary(found, work, products),
            "real_over_synthetic": real_over_synthetic(found),
            "observed_over_unobserved": observed_over_unobserved(found),
            "absent": absent,
        },
    )


if __name__ == "__main__":
    main()
