"""Samples per second and core of the loader beside others: the same pictures, one thread, CPU time, in turns.

    python benchmarks/loader_peers.py [--pictures 400] [--rounds 5] [--source DIR] [--output FILE]

Every path makes 224 × 224 random-resized crops, half of them mirrored. ``stock`` is what torchvision's reference does
(Pillow, float32, normalised), written out here; the others stop where they would hand over: uint8 from allpull and
DALI, float32 from WebDataset, whose samples are decoded by stock. CPU time of the whole process is counted, and paths
take turns, so that a busy machine disturbs ratios little. ``--source``: a folder of class folders of JPEGs; without
it, pictures of about 500 × 375 pixels and quality 94 are cut from scikit-learn's photographs, or made from noise with
a photograph's spectrum where it is not installed. A peer that is not here is reported with the reason.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from allpull.load.alone import drain
from allpull.load.batches import Plan
from allpull.load.crop import DRAWS, Look, views
from allpull.load.decode import Stored
from allpull.load.order import uniforms
from allpull.load.packed import PackedSource, Reading
from allpull.pack.encode import Recipe
from allpull.pack.plan import Layout, plan
from allpull.pack.sources import SOURCES, guess
from allpull.pack.write import write_pack
from stored import keep

LOOK = Look(size=224, mirror=True)
BATCH = 32
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
PACKS = {
    "jpeg": Recipe(kind="jpeg"),
    "jpeg-restart": Recipe(kind="jpeg-restart"),
    "jpeg-256": Recipe(kind="jpeg-side", side=256),
    "raw-256": Recipe(kind="raw", side=256),
}
OURS = {  # name → pack, options
    "allpull jpeg": ("jpeg", {}),
    "allpull jpeg, fast transform": ("jpeg", {"fast": True}),
    "allpull jpeg-restart": ("jpeg-restart", {}),
    "allpull jpeg-restart, fast transform": ("jpeg-restart", {"fast": True}),
    "allpull jpeg-256": ("jpeg-256", {}),
    "allpull jpeg-256, fast transform": ("jpeg-256", {"fast": True}),
    "allpull raw-256": ("raw-256", {}),
}
OneEpoch = Callable[[], int]
"""Makes one epoch; the samples made."""


def photographs() -> list[Image.Image]:
    """Photographs of scikit-learn's, or noise with their spectrum (Field 1987)."""
    found = find_spec("sklearn")
    if found is not None and found.submodule_search_locations:
        folder = Path(found.submodule_search_locations[0]) / "datasets" / "images"
        return [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))]
    generator = np.random.default_rng(1)
    frequency = np.hypot(np.fft.fftfreq(427)[:, None], np.fft.fftfreq(640)[None])
    frequency[0, 0] = 1
    planes = np.fft.ifft2(np.fft.fft2(generator.normal(size=(3, 427, 640))) / frequency).real
    planes = (planes - planes.min()) / (planes.max() - planes.min()) * 255
    return [Image.fromarray(planes.transpose(1, 2, 0).astype(np.uint8))]


def make_folder(root: Path, pictures: int) -> Path:
    """An ImageFolder of ``pictures`` cuts."""
    chance, photos = random.Random(0), photographs()
    for number in range(pictures):
        width, height = chance.choice([(500, 375), (500, 333), (375, 400), (500, 400)])
        photo = photos[number % len(photos)]
        left, top = chance.randrange(photo.width - width + 1), chance.randrange(photo.height - height + 1)
        path = root / f"class{number % 4}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.crop((left, top, left + width, top + height)).save(path, quality=94)
    return root


def stock(data: Path | io.BytesIO, number: int, epoch: int) -> torch.Tensor:
    """RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize, as torchvision's with Pillow."""
    with Image.open(data) as file:
        picture = file.convert("RGB")
    draws = uniforms(0, epoch, np.array([number]), DRAWS)
    (view,) = views(LOOK, np.array([[picture.height, picture.width]]), draws)
    box = view.box
    cut = picture.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    made = cut.resize((LOOK.size, LOOK.size), Image.Resampling.BILINEAR)
    if view.mirrored:
        made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    tensor = torch.from_numpy(np.array(made)).permute(2, 0, 1).contiguous().float().div_(255)
    return tensor.sub_(MEAN[:, None, None]).div_(STD[:, None, None])


def stock_path(folder: Path) -> OneEpoch:
    """Files of a folder by ``stock``, collated."""
    files, epochs = sorted(folder.rglob("*.jpg")), count()

    def one_epoch() -> int:
        epoch = next(epochs)
        for start in range(0, len(files), BATCH):
            chosen = enumerate(files[start : start + BATCH], start)
            torch.stack([stock(path, number, epoch) for number, path in chosen])
        return len(files)

    return one_epoch


def our_path(pack: Path, options: dict[str, bool]) -> OneEpoch:
    """The loader with one thread."""
    rank = Plan(global_batch=BATCH, rank=0, ranks=1, seed=0)
    source, epochs = PackedSource(pack, rank, LOOK, Reading(threads=1, **options)), count()
    return lambda: drain(source.training(next(epochs))).samples + BATCH  # it leaves the first batch out of its time


def decoder_path(pack: Path) -> OneEpoch:
    """The same samples without batches, threads or a ring: what decoding, cutting and resizing alone costs."""
    source = PackedSource(pack, Plan(global_batch=BATCH, rank=0, ranks=1, seed=0), LOOK, Reading(threads=1))
    slot, epochs = np.zeros((LOOK.size, LOOK.size, source.channels), source.dtype), count()
    sizes = np.stack([source.pack.rows["height"], source.pack.rows["width"]], 1).astype(np.int64)

    def one_epoch() -> int:
        seen = views(LOOK, sizes, uniforms(0, next(epochs), np.arange(len(source)), DRAWS))
        for record, view in enumerate(seen):
            source.decoder.into(slot, Stored.of(source.pack, record, source.pack.whole(record)), view)
        return len(source)

    return one_epoch


def webdataset_path(folder: Path, scratch: Path) -> OneEpoch:
    """WebDataset from one tar, in this process, its pictures by ``stock``."""
    webdataset = import_module("webdataset")
    files, epochs = sorted(folder.rglob("*.jpg")), count()
    with tarfile.open(scratch / "all.tar", "w") as tar:
        for path in files:
            tar.add(path, path.name)

    def samples() -> Iterator[torch.Tensor]:
        epoch = next(epochs)
        read = webdataset.WebDataset(str(scratch / "all.tar"), shardshuffle=False).shuffle(100)
        for number, sample in enumerate(read):
            yield stock(io.BytesIO(sample["jpg"]), number, epoch)

    def one_epoch() -> int:
        return sum(len(torch.stack(part)) for part in _parts(samples()))

    return one_epoch


def _parts(samples: Iterator[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    part: list[torch.Tensor] = []
    for one in samples:
        part.append(one)
        if len(part) == BATCH:
            yield part
            part = []
    if part:
        yield part


def dali_path(folder: Path) -> OneEpoch:
    """DALI on the CPU with one thread: fused decoding of random crops, linear resizing, flips, uint8."""
    dali, fn = import_module("nvidia.dali"), import_module("nvidia.dali.fn")
    # nothing in advance: what it did while others are measured would be counted as theirs
    serial = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
    pipe = dali.Pipeline(batch_size=BATCH, num_threads=1, device_id=None, seed=0, **serial)
    with pipe:
        jpegs, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="files")
        pictures = fn.decoders.image_random_crop(jpegs, device="cpu", random_area=[0.08, 1.0])
        resized = fn.resize(pictures, size=[LOOK.size, LOOK.size], antialias=False)
        pipe.set_outputs(fn.flip(resized, horizontal=fn.random.coin_flip()), labels)
    pipe.build()
    batches = pipe.epoch_size("files") // BATCH

    def one_epoch() -> int:
        return sum(len(pipe.run()[0]) for _ in range(batches))

    return one_epoch


def measure(paths: dict[str, OneEpoch], rounds: int) -> dict[str, list[float]]:
    """Samples per CPU second of each path, one number a round; the first, warming, round is left out."""
    found: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(rounds + 1):
        for name, one_epoch in paths.items():
            begin = time.process_time()
            samples = one_epoch()
            if turn:
                found[name].append(samples / (time.process_time() - begin))
    return found


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = options.source or make_folder(scratch / "pictures", options.pictures)
        packs = {}
        for kind, recipe in PACKS.items():
            listing = SOURCES.load(guess(folder))(folder, None)
            packs[kind] = write_pack(plan(listing, recipe, Layout(seed=0)), scratch / kind, workers=1).directory
        paths: dict[str, OneEpoch] = {"stock": stock_path(folder)}
        paths |= {ours: our_path(packs[kind], how) for ours, (kind, how) in OURS.items()}
        paths |= {f"decoding {kind} alone": decoder_path(pack) for kind, pack in packs.items()}
        absent = {
            "torchvision": "its own code is not run: stock is the same steps, written out",
            "FFCV": "has no wheel and needs the headers of OpenCV and libturbojpeg; not run here",
        }
        peers: dict[str, Callable[[], OneEpoch]] = {
            "WebDataset": lambda: webdataset_path(folder, scratch),
            "DALI on the CPU": lambda: dali_path(folder),
        }
        for peer, make in peers.items():
            try:
                paths[peer] = make()
            except (ImportError, RuntimeError, OSError) as error:
                absent[peer] = f"{type(error).__name__}: {error}"
        result = summary(measure(paths, options.rounds))
        resizer = PackedSource(packs["jpeg"], Plan(global_batch=1, rank=0, ranks=1, seed=0), LOOK).resizer
    pictures = {"pictures": "given" if options.source else f"{options.pictures} made", "rounds": options.rounds}
    keep(options.output, {**pictures, "resizer": resizer, "paths": result, "absent": absent})


def summary(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, low and high, and the median of the ratios to stock of the same round."""
    made = {}
    for name, values in found.items():
        ratios = [value / base for value, base in zip(values, found["stock"], strict=True)]
        made[name] = {
            "samples_per_cpu_s": round(statistics.median(values), 1),
            "low": round(min(values), 1),
            "high": round(max(values), 1),
            "times_stock": round(statistics.median(ratios), 2),
        }
    return made


if __name__ == "__main__":
    main()
