"""Images per second of the reference trainer beside others: same network, same pictures, in turns.

    python benchmarks/trainer_peers.py [--quick] [--model resnet18] [--pictures N] [--size N] [--batch N] [--steps N]
        [--rounds N] [--threads 1,2] [--workers N] [--set OPTION=VALUE] [--output FILE]

The others (``trainer_loops.py``) are the loop of PyTorch's ImageNet example as it is, and again with channels last,
Lightning, and accelerate. They read JPEG files by a DataLoader with Pillow; allpull reads a pack of the same bytes.
``allpull`` is ``train`` in a process where nobody observes, ``allpull, observed`` the command `allpull train`, read
from its run directory, and ``allpull, cached batch`` has one batch again and again, as if data were free: the first
over the last is real over synthetic. All load with ``--workers`` beside the threads that compute: threads here,
processes there. All compute what the precision says; neither compiles, unless ``--set`` has allpull do so.

Each measurement is a process of its own; after steps that warm up, the wall time of ``--steps`` is taken, and CPU time
beside it. Ways take turns, in an order drawn anew in each round, and ratios are of the same round, so that a busy
machine disturbs them less than it does rates. Pictures (those of ``loader_peers.py``) are enough for no loader to run
dry, and come from the page cache. A peer that is not installed is reported with the reason; `make frameworks` brings
Lightning and accelerate. ``--quick`` shows in a minute that all of it works, and nothing more.

Where torch finds a GPU, all train on it, timm as well, and the share of the data sheet's peak stands beside the rates.
Nobody has tried that yet: this was written, and has run, on machines without one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from allpull.pack.encode import Recipe
from allpull.pack.plan import Layout, plan
from allpull.pack.sources import SOURCES
from allpull.pack.write import write_pack
from allpull.rundir.read import find_runs, read_run
from loader_peers import make_folder
from stored import ROOT, keep
from trainer_loops import CHANNELS, FRAMEWORKS, LOOPS, ON_GPU, Rate, Setting, network_of

CHILD = ROOT / "benchmarks" / "trainer_loops.py"
OURS, OBSERVED, CACHED, EXAMPLE = "allpull", "allpull, observed", "allpull, cached batch", "example"
ALWAYS = (OURS, OBSERVED, CACHED, EXAMPLE, "example, channels last")
PACKAGES = ("lightning", "accelerate", "timm")
PRECISIONS = ("fp32", "bf16")
SPARE = 4  # batches that nobody trains on, so that loaders have work until the clock is stopped
TIMEOUT_S = 1200

FULL = {"pictures": 192, "size": 128, "batch": 16, "steps": 6, "warm_up": 2, "rounds": 3, "threads": "1,2"}
QUICK = {"pictures": 64, "size": 64, "batch": 8, "steps": 3, "warm_up": 1, "rounds": 1, "threads": "1"}

PEAKS = {
    "NVIDIA A100-SXM4-40GB": {"fp32": 19.5e12, "bf16": 312e12},
    "NVIDIA A100-SXM4-80GB": {"fp32": 19.5e12, "bf16": 312e12},
    "NVIDIA H100 80GB HBM3": {"fp32": 67e12, "bf16": 989e12},
    "NVIDIA H200": {"fp32": 67e12, "bf16": 989e12},
}
"""Device → FLOP/s by precision, dense, as in NVIDIA's data sheets; fp32 is without TF32."""

Found = dict[tuple[str, int, str], list[Rate]]
"""Precision, threads and way → a rate of each round."""


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
        for threads, precision in product(self.threads, PRECISIONS):
            yield replace(self.setting, threads=threads, precision=precision)


def observed(setting: Setting) -> Rate:
    """The rate of `allpull train`, from the step records that it leaves.

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
    return Rate(images_per_s=setting.steps * setting.batch / taken_s)


def child(way: str, setting: Setting) -> Rate:
    """The rate of one of ``LOOPS``, in a process of its own.

    Raises:
        Failed: it is not installed, or ended with an error.
    """
    said = _output([sys.executable, str(CHILD), way, json.dumps(asdict(setting))], setting)
    return Rate(**json.loads(said.splitlines()[-1]))


def _output(command: Sequence[str], setting: Setting) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def measure(bench: Bench) -> tuple[Found, dict[str, str]]:
    """The rates of all ways, and which peers could not be had, with the reason.

    Raises:
        Failed: one that has to be there could not.
    """
    found: Found = {}
    absent = {} if ON_GPU else {"timm": "compared on a GPU only"}
    chance = random.Random(0)
    for turn in range(bench.rounds):
        for setting in bench.settings():
            ways = [way for way in (*LOOPS, OBSERVED) if way not in absent]
            for way in chance.sample(ways, len(ways)):
                try:
                    rate = observed(setting) if way == OBSERVED else child(way, setting)
                except Failed as failed:
                    if way in ALWAYS or turn:  # a peer that is there for one round is there for all
                        raise
                    absent[way] = str(failed)
                    continue
                found.setdefault((setting.precision, setting.threads, way), []).append(rate)
                where = f"{setting.precision}, threads: {setting.threads},"
                print(f"{turn} {where} {way:24} {rate.images_per_s:8.1f} images/s", file=sys.stderr, flush=True)
    return {key: rates for key, rates in found.items() if key[2] not in absent}, absent


def summary(found: Found, flop_per_image: float, device: str) -> list[dict[str, Any]]:
    """A row for each precision, number of threads and way: images/s, CPU time, and ratios to the example's loop."""
    rows: list[dict[str, Any]] = []
    for (precision, threads, way), rates in sorted(found.items()):
        images_per_s = [rate.images_per_s for rate in rates]
        cpu_s = [rate.cpu_s_per_image for rate in rates if rate.cpu_s_per_image is not None]
        peak = PEAKS.get(device, {}).get(precision)
        rows.append(
            {
                "precision": precision,
                "threads": threads,
                "way": way,
                "images_per_s": _spread(images_per_s, 1),
                "times_example": _spread(_ratios(rates, found[precision, threads, EXAMPLE]), 3),
                "cpu_ms_per_image": round(statistics.median(cpu_s) * 1e3, 2) if cpu_s else None,
                "share_of_peak": round(statistics.median(images_per_s) * flop_per_image / peak, 4) if peak else None,
            }
        )
    return rows


def within(found: Found) -> list[dict[str, Any]]:
    """What data and observation cost allpull's own trainer: ratios of rates within a round."""
    rows: list[dict[str, Any]] = []
    for precision, threads in sorted({key[:2] for key in found}):
        real, seen, free = (found[precision, threads, way] for way in (OURS, OBSERVED, CACHED))
        rows.append(
            {
                "precision": precision,
                "threads": threads,
                "real_over_cached": _spread(_ratios(real, free), 3),
                "observed_over_unobserved": _spread(_ratios(seen, real), 3),
            }
        )
    return rows


def _ratios(rates: Sequence[Rate], base: Sequence[Rate]) -> list[float]:
    return [one.images_per_s / other.images_per_s for one, other in zip(rates, base, strict=True)]


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    spread = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, digits) for name, value in spread.items()}


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
        found, absent = measure(Bench(setting=setting, threads=threads, rounds=options.rounds))
    device = torch.cuda.get_device_name() if ON_GPU else "cpu"
    work = flop_per_image(setting)
    about = ("model", "size", "batch", "warm_up", "steps", "rounds", "pictures", "workers", "set")
    keep(
        options.output,
        {
            **{name: getattr(options, name) for name in about},
            "device": device,
            "flop_per_image": work,
            "peers": versions(),
            "rows": summary(found, work, device),
            "within": within(found),
            "absent": absent,
        },
    )


if __name__ == "__main__":
    main()
