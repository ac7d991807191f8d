"""What tests of packs share: photographs, real where scikit-learn is installed, and small data sets made of them."""

from __future__ import annotations

import importlib.util
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.write import Written, write_pack
from allpull.data.sources import SOURCES, guess


def photographs() -> list[Image.Image]:
    """Photographs that scikit-learn ships; without it, pictures with a photograph's spectrum."""
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.submodule_search_locations:
        folder = Path(found.submodule_search_locations[0]) / "datasets" / "images"
        return [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))]
    return [synthetic(seed) for seed in (1, 2)]


def synthetic(seed: int) -> Image.Image:
    """640 × 427 pixels of noise whose amplitude falls with frequency, as in photographs (Field 1987)."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(427)[:, None], np.fft.fftfreq(640)[None])
    frequency[0, 0] = 1
    grey, *colours = np.fft.fft2(generator.normal(size=(4, 427, 640))) / frequency
    planes = np.fft.ifft2(grey + 0.2 * np.array(colours) / np.maximum(1, 60 * frequency)).real  # colour is smoother
    planes = (planes - planes.min()) / (planes.max() - planes.min()) * 255
    return Image.fromarray(planes.transpose(1, 2, 0).astype(np.uint8))


def as_jpeg(picture: Image.Image, quality: int = 90, **options: object) -> bytes:
    """A JPEG by Pillow."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


@pytest.fixture(scope="session")
def photos() -> list[Image.Image]:
    return photographs()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, photos: list[Image.Image]) -> Path:
    """An ImageFolder of 40 photographs in 3 classes, of the sizes and sub-samplings that photographs have."""
    root = tmp_path_factory.mktemp("folder")
    chance = random.Random(0)
    for number in range(40):
        picture = photos[number % len(photos)]
        left, top = chance.randrange(200), chance.randrange(150)
        width, height = chance.choice([(320, 240), (240, 181), (333, 200), (97, 131), (250, 250)])
        cut = picture.crop((left, top, left + width, top + height))
        (root / f"class {number % 3}").mkdir(exist_ok=True)
        path = root / f"class {number % 3}" / f"{number:02d}.jpg"
        path.write_bytes(as_jpeg(cut, subsampling=chance.choice([0, 1, 2])))
    return root


@pytest.fixture
def make_pack(tmp_path: Path) -> Callable[..., Written]:
    """A function that packs: ``make_pack(source, kind="raw", shard_bytes=…, workers=…, to=…)``."""

    def make(
        source: Path,
        *,
        to: str = "pack",
        workers: int = 1,
        classes: int | None = None,
        shard_bytes: int = 1 << 20,
        seed: int | None = 0,
        **recipe: object,
    ) -> Written:
        listing = SOURCES.load(guess(source))(source, classes)
        made = Recipe(**{"kind": listing.source.kind, "dtype": listing.source.dtype, **recipe})
        return write_pack(
            plan(listing, made, Layout(seed=seed, shard_bytes=shard_bytes)), tmp_path / to, workers=workers
        )

    return make
