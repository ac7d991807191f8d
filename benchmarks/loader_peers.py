"""Samples per second and core of the loader beside others: the same pictures, one thread, CPU time, in turns.

    python benchmarks/loader_peers.py [--quality 94] [--pictures 800] [--rounds 8] [--source DIR] [--output FILE]

What each path does is said in ``loader_paths.py``. ``stock`` is torchvision's usual transforms through Pillow, written
out; torchvision's own code, which does a little more besides, stands beside it. ``decoding … alone`` is pure decoding:
the loader's samples by the loader's own reading, decoding, cutting and resizing, one after the other in one thread into
one image that stays in the cache; the loader divided by it is what batches, labels, slots and threads leave.

CPU time of the whole process is counted, and paths take turns, so that a busy machine disturbs ratios little; a ratio
is that of the same round, and the median of those is shown, with least and most. ``--source``: a folder of class
folders of JPEGs; without it, pictures of about 500 × 375 pixels are cut from scikit-learn's photographs and saved at
``--quality``: 94 makes light ones, 98 such as are about as heavy as ImageNet's.

A peer that is not installed, or does not work, is reported with the reason. All of these went into one environment:

    pip install torch torchvision webdataset scikit-learn numba opencv-python-headless simplejpeg pillow
    pip install nvidia-dali-cuda120                              # runs without a GPU
    apt install libopencv-dev libturbojpeg0-dev pkg-config g++   # FFCV has no wheel
    pip install --no-deps --no-build-isolation ffcv              # with setuptools; it wants tqdm, pandas, matplotlib,
    pip install assertpy terminaltables fastargs imgcat tqdm pandas matplotlib pytorch_pfn_extras
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from allpull.data.jpeg.restart import best_tool
from allpull.data.loader.batches import Plan
from allpull.data.loader.pack_batches import PackBatches, Reading
from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.write import write_pack
from allpull.data.sources import SOURCES, guess
from loader_paths import (
    BATCH,
    LOOK,
    QUALITY,
    SMALL_QUALITY,
    SMALL_SIDE,
    OneEpoch,
    dali_path,
    decoding_path,
    ffcv_path,
    make_folder,
    our_path,
    stock_path,
    torchvision_path,
    webdataset_path,
)
from stored import keep

PACKS = {
    "jpeg": Recipe(kind="jpeg"),
    "jpeg-restart": Recipe(kind="jpeg-restart", tool=best_tool()),
    "jpeg-256": Recipe(kind="jpeg-side", side=SMALL_SIDE, quality=SMALL_QUALITY),
    "raw-256": Recipe(kind="raw", side=SMALL_SIDE),
}
ONE = Reading(threads=1)
FAST, MAPPED = Reading(threads=1, fast=True), Reading(threads=1, access="map")
OURS = {  # name → pack, how it is read
    **{f"allpull {kind}": (kind, ONE) for kind in PACKS},
    **{f"allpull {kind}, fast transform": (kind, FAST) for kind in PACKS if kind != "raw-256"},
    "allpull raw-256, mapped": ("raw-256", MAPPED),
}
ALONE = {
    **{f"decoding {kind} alone": (kind, ONE) for kind in PACKS},
    "decoding raw-256 alone, mapped": ("raw-256", MAPPED),
}
PEERS = ("opencv-python-headless", "simplejpeg", "pillow", "torchvision", "webdataset", "nvidia-dali-cuda120", "ffcv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How many times as fast as ``base`` the path ``ours`` was meant to be."""

    ours: str
    base: str
    times: float


GOALS = (
    Goal(ours="allpull jpeg", base="stock", times=2.3),
    Goal(ours="allpull jpeg-restart", base="stock", times=3.3),
    Goal(ours="allpull jpeg-256", base="stock", times=6.0),
    Goal(ours="allpull raw-256", base="stock", times=12.0),
    Goal(ours="allpull jpeg", base="FFCV jpeg", times=1.5),
    Goal(ours="allpull raw-256", base="FFCV raw-256", times=1.3),
    Goal(ours="allpull jpeg", base="DALI on the CPU", times=1.7),
    *(Goal(ours=f"allpull {kind}", base=f"decoding {kind} alone", times=0.9) for kind in PACKS),
    Goal(ours="allpull raw-256, mapped", base="decoding raw-256 alone, mapped", times=0.9),
)


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", type=int, default=QUALITY, help="of the JPEGs that are made")
    parser.add_argument("--pictures", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = options.source or make_folder(Path(name) / "pictures", options.pictures, options.quality)
        paths, absent, about = prepare(folder, Path(name), options.quality)
        found = measure(paths, options.rounds)
    made = f"{options.pictures} made, of quality {options.quality}, {about['bits_a_pixel']} bits a pixel"
    result = {
        "pictures": "given" if options.source else made,
        "rounds": options.rounds,
        "batch": BATCH,
        **about,
        "paths": rates(found),
        "goals": [against(goal, found) for goal in GOALS],
        "absent": absent,
        "peers": {package: _version(package) for package in PEERS},
    }
    keep(options.output, result)


def prepare(folder: Path, scratch: Path, quality: int) -> tuple[dict[str, OneEpoch], dict[str, str], dict[str, Any]]:
    """All paths that work here, why others do not, and what their packs are."""
    packs, bytes_each = {}, {}
    for kind, recipe in PACKS.items():
        listing = SOURCES.load(guess(folder))(folder, None)
        written = write_pack(plan(listing, recipe, Layout(seed=0)), scratch / kind, workers=1)
        packs[kind] = written.directory
        bytes_each[kind] = round(sum(shard.bytes for shard in written.header.shards) / written.header.records)
    paths = {"stock": stock_path(folder)}
    for kind, pack in packs.items():  # what is compared stands together
        paths |= {name: our_path(pack, reading) for name, (of, reading) in OURS.items() if of == kind}
        paths |= {name: decoding_path(pack, reading) for name, (of, reading) in ALONE.items() if of == kind}
    peers: dict[str, Callable[[], OneEpoch]] = {
        "torchvision": lambda: torchvision_path(folder),
        "WebDataset": lambda: webdataset_path(folder, scratch),
        "DALI on the CPU": lambda: dali_path(folder),
        "FFCV jpeg": lambda: ffcv_path(folder, scratch, "jpg", None, quality),
        "FFCV jpeg-256": lambda: ffcv_path(folder, scratch, "jpg", SMALL_SIDE, SMALL_QUALITY),
        "FFCV raw-256": lambda: ffcv_path(folder, scratch, "raw", SMALL_SIDE, SMALL_QUALITY),
    }
    absent = {}
    for peer, make in peers.items():
        try:
            paths[peer] = make()
        except (ImportError, AttributeError, RuntimeError, OSError) as error:
            absent[peer] = f"{type(error).__name__}: {error}"
    source = PackBatches(packs["jpeg"], Plan(global_batch=1, rank=0, ranks=1, seed=0), LOOK)
    rows = source.pack.rows
    bits = 8 * float(rows["length"].sum()) / float((rows["height"].astype(float) * rows["width"]).sum())
    return (
        paths,
        absent,
        {
            "resizer": source.resizer,
            "restarts_by": best_tool(),
            "bytes_a_record": bytes_each,
            "bits_a_pixel": round(bits, 1),
        },
    )


def measure(paths: dict[str, OneEpoch], rounds: int) -> dict[str, list[float]]:
    """Samples per CPU second of each path, one number a round; the first, warming, round is left out.

    Every other round goes backwards, so that what drifts within a round falls on both sides of a ratio.
    """
    found: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(rounds + 1):
        for name in list(paths) if turn % 2 else reversed(list(paths)):
            begin = time.process_time()
            samples = paths[name]()
            if turn:
                found[name].append(samples / (time.process_time() - begin))
    return found


def rates(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, low and high of each path, and the median of its ratios to stock of the same round."""
    return {
        name: {
            "samples_per_cpu_s": round(statistics.median(values), 1),
            "low": round(min(values), 1),
            "high": round(max(values), 1),
            "times_stock": round(statistics.median(ratios(values, found["stock"])), 2),
        }
        for name, values in found.items()
    }


def against(goal: Goal, found: dict[str, list[float]]) -> dict[str, Any]:
    """What was reached of a goal; ``times`` None where the other is not here."""
    said: dict[str, Any] = {"ours": goal.ours, "base": goal.base, "goal": goal.times, "times": None}
    if goal.base in found:
        times = ratios(found[goal.ours], found[goal.base])
        low, high = round(min(times), 2), round(max(times), 2)
        said |= {"times": round(statistics.median(times), 2), "low": low, "high": high}
    return said


def ratios(values: list[float], base: list[float]) -> list[float]:
    """Each round's ratio."""
    return [value / other for value, other in zip(values, base, strict=True)]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
