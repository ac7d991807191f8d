"""What `loader_peers.py` compares: each way from a data set to samples as a function that makes one epoch.

All make 224 × 224 random-resized crops (8 to 100 % of the area, 3/4 to 4/3 in shape), half of them mirrored, in batches
of ``BATCH``, with one thread or none. ``stock`` and what is built on it end in normalised float32, as torchvision's
reference does; the others in uint8, which is normalised on the device. Each resizes as it does by default: Pillow
antialiased, FFCV by OpenCV's areas, DALI and allpull (with OpenCV) by an aliased linear filter.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from allpull.data.images import resized
from allpull.data.loader.batches import Plan
from allpull.data.loader.crop import DRAWS, Transform, views
from allpull.data.loader.decode import JOB_BYTES, jobs, read
from allpull.data.loader.order import uniforms
from allpull.data.loader.pack_batches import PackBatches, Reading
from allpull.data.loader.throughput import drain

LOOK = Transform(size=224, mirror=True)
BATCH = 64
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
QUALITY = 94  # of the made pictures: 3.1 bits a pixel; ImageNet's have nearly 5, as 98 gives
SMALL_SIDE, SMALL_QUALITY = 256, 90

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


def make_folder(root: Path, pictures: int, quality: int = QUALITY) -> Path:
    """An ImageFolder of ``pictures`` cuts."""
    chance, photos = random.Random(0), photographs()
    for number in range(pictures):
        width, height = chance.choice([(500, 375), (500, 333), (375, 400), (500, 400)])
        photo = photos[number % len(photos)]
        left, top = chance.randrange(photo.width - width + 1), chance.randrange(photo.height - height + 1)
        path = root / f"class{number % 4}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.crop((left, top, left + width, top + height)).save(path, quality=quality)
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


def torchvision_path(folder: Path) -> OneEpoch:
    """Torchvision's own ImageFolder and transforms under torch's DataLoader, in this process."""
    transforms, folders = _torchvision("transforms"), _torchvision("datasets.folder")
    steps = [transforms.RandomResizedCrop(LOOK.size), transforms.RandomHorizontalFlip()]
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN.tolist(), STD.tolist())]
    data = folders.ImageFolder(str(folder), transforms.Compose(steps), loader=folders.pil_loader)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    return lambda: sum(len(images) for images, _ in loader)


def _torchvision(name: str) -> Any:
    """A module of torchvision; where its compiled half is for another torch, without that half, which is not used."""
    try:
        return import_module(f"torchvision.{name}")
    except RuntimeError:  # operator torchvision::nms does not exist
        found = find_spec("torchvision")
        for one in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
            del sys.modules[one]
        package = sys.modules["torchvision"] = ModuleType("torchvision")
        package.__path__ = list(found.submodule_search_locations or []) if found else []
        return import_module(f"torchvision.{name}")


def our_path(pack: Path, reading: Reading) -> OneEpoch:
    """The loader, as a trainer runs it."""
    source, epochs = PackBatches(pack, Plan(global_batch=BATCH, rank=0, ranks=1, seed=0), LOOK, reading), count()
    return lambda: drain(source.training(next(epochs))).samples + BATCH  # it leaves the first batch out of its time


def decoding_path(pack: Path, reading: Reading) -> OneEpoch:
    """The same samples by the same calls as the loader's thread makes, in this thread, one after the other.

    Views are drawn, records read, decoded, cut, resized and mirrored in the order of the epoch, each into the same
    image, which stays in the cache; there are no batches, labels, slots, threads or futures.
    """
    source, epochs = PackBatches(pack, Plan(global_batch=BATCH, rank=0, ranks=1, seed=0), LOOK, reading), count()
    image, memory = np.zeros((LOOK.size, LOOK.size, source.channels), source.dtype), np.empty(JOB_BYTES, np.uint8).data
    sizes = np.stack([source.pack.rows["height"], source.pack.rows["width"]], 1).astype(np.int64)

    def one_epoch() -> int:
        epoch = next(epochs)
        for share in source.shares.of(epoch):
            seen = views(LOOK, sizes[share.records], uniforms(0, epoch, share.records, DRAWS))
            for job in jobs(source.pack, epoch, share.records, seen):
                stored = read(source.pack, job.samples, memory)
                for one in job.samples:
                    source.decoder.into(image, next(stored), one.view)
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
        found = webdataset.WebDataset(str(scratch / "all.tar"), shardshuffle=False).shuffle(100)
        for number, sample in enumerate(found):
            yield stock(io.BytesIO(sample["jpg"]), number, epoch)

    return lambda: sum(len(torch.stack(part)) for part in _parts(samples()))


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
    """DALI on the CPU with one thread: fused decoding of random crops, linear resizing, flips."""
    dali, fn = import_module("nvidia.dali"), import_module("nvidia.dali.fn")
    # nothing in advance: what it did while others are measured would be counted as theirs
    serial = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
    pipe = dali.Pipeline(batch_size=BATCH, num_threads=1, device_id=None, seed=0, **serial)
    with pipe:
        jpegs, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="files")
        pictures = fn.decoders.image_random_crop(jpegs, device="cpu", random_area=[0.08, 1.0])
        small = fn.resize(pictures, size=[LOOK.size, LOOK.size], antialias=False)
        pipe.set_outputs(fn.flip(small, horizontal=fn.random.coin_flip()), labels)
    pipe.build()
    batches = pipe.epoch_size("files") // BATCH

    def one_epoch() -> int:
        return sum(len(pipe.run()[0]) for _ in range(batches))

    return one_epoch


class Pictures:
    """A folder's pictures as FFCV's writer wants them, the shorter side made ``side`` pixels where that is given."""

    def __init__(self, folder: Path, side: int | None) -> None:
        self._files, self._side = sorted(folder.rglob("*.jpg")), side

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self._files[index]) as file:
            picture = file.convert("RGB")
        if self._side is None:
            return picture, 0
        return Image.fromarray(resized(np.array(picture), self._side)), 0


def ffcv_path(folder: Path, scratch: Path, mode: str, side: int | None, quality: int) -> OneEpoch:
    """FFCV with one worker on a file of its own, made of the same pictures; its pages stay mapped (``os_cache``).

    It codes JPEGs anew: with ``quality``.
    """
    fields, loader, rgb = (import_module(f"ffcv.{name}") for name in ("fields", "loader", "fields.rgb_image"))
    transforms, decoders = import_module("ffcv.transforms"), import_module("ffcv.fields.decoders")
    path = str(scratch / f"{mode}-{side}.beton")
    image = fields.RGBImageField(write_mode=mode, jpeg_quality=quality)
    writer = import_module("ffcv.writer").DatasetWriter(
        path, {"image": image, "label": fields.IntField()}, num_workers=1
    )
    writer.from_indexed_dataset(Pictures(folder, side))
    crops = [rgb.RandomResizedCropRGBImageDecoder((LOOK.size, LOOK.size)), transforms.RandomHorizontalFlip()]
    batches = loader.Loader(
        path,
        batch_size=BATCH,
        num_workers=1,
        order=loader.OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        seed=0,
        pipelines={
            "image": [*crops, transforms.ToTensor()],
            "label": [decoders.IntDecoder(), transforms.ToTensor()],
        },
    )
    return lambda: sum(len(images) for images, _ in batches)
