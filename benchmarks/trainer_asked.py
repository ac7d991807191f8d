"""What ``trainer_peers.py`` is asked for, and the pictures that takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from allpull.data.loader.pool import default_threads
from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.write import write_pack
from allpull.data.sources import SOURCES
from loader_paths import make_folder
from trainer_data import ON_GPU, PICTURES, SPARE, Setting

DISTINCT = 4096  # pictures; more are further names of these, which are decoded as often and need no time to be made

FULL = {"model": "resnet18", "pictures": 192, "size": 128, "batch": 16, "steps": 6, "warm_up": 2, "rounds": 3}
QUICK = {**FULL, "pictures": 64, "size": 64, "batch": 8, "steps": 3, "warm_up": 1, "rounds": 1}
GPU = {"model": "resnet50", "pictures": 17408, "size": 224, "batch": 256, "steps": 48, "warm_up": 16, "rounds": 3}
EVERYWHERE = {"threads": "1", "workers": 1, "precisions": "fp32,bf16", "minutes": float("inf")}
GPU_ALSO = {
    "workers": default_threads(),
    "precisions": "bf16",
    "minutes": 8.0,
}  # and two for pictures, their pack and what is under way


def pictures(folder: Path, count: int) -> Path:
    """An ImageFolder of ``count`` pictures, of which ``DISTINCT`` are different and the rest further names of them."""
    make_folder(folder, min(count, DISTINCT))
    made = sorted(folder.rglob("*.jpg"))
    for number in range(len(made), count):
        one = made[number % len(made)]
        one.with_name(f"again-{number:06d}.jpg").hardlink_to(one)
    return folder


def prepare(options: argparse.Namespace, scratch: Path) -> Setting:
    """Make the pictures, a pack of them and a recipe below ``scratch``; the setting that uses them."""
    folder = pictures(scratch / "pictures", options.pictures)
    listing = SOURCES.load("imagefolder")(folder, None)
    packing = plan(listing, Recipe(kind="jpeg"), Layout(seed=0))
    pack = write_pack(packing, scratch / "pack", workers=options.workers).directory
    recipe = scratch / "recipe.toml"
    recipe.write_text('name = "trainer-peers"\n', encoding="utf-8")
    return Setting(
        precision="fp32",
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


def asked(about: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, with the defaults of ``QUICK`` where that was asked for, and else of a GPU where there is one."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and once")
    parser.add_argument("--model", help="a name from `allpull train --list-models`")
    for name in ("pictures", "size", "batch", "steps", "warm-up", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--minutes", type=float, help="begin no round that would not end in this time")
    parser.add_argument("--threads", help="numbers of computing threads, with commas")
    parser.add_argument("--workers", type=int, help="of each loader: threads of allpull's, or processes")
    parser.add_argument("--precisions", help="of fp32 and bf16, with commas")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="more options of allpull's")
    parser.add_argument("--keep", type=Path, help="remember measurements here, and go on from those of last time")
    parser.add_argument("--output", type=Path, help="store the result here")
    quick = parser.parse_known_args(arguments)[0].quick
    parser.set_defaults(**EVERYWHERE, **(QUICK if quick else FULL))
    if ON_GPU and not quick:
        parser.set_defaults(**GPU, **GPU_ALSO)
    options = parser.parse_args(arguments)
    needed = (options.warm_up + options.steps + SPARE) * options.batch
    if options.pictures < needed:
        parser.error(f"--pictures {options.pictures}: steps of one epoch, and {SPARE} to spare, need {needed}")
    return options
