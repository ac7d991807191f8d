"""Make a data set like BigEarthNet from real pictures: 12 bands of Sentinel-2, several labels a patch.

    python benchmarks/twelve_bands_data.py DIR [--train 4000] [--test 1000] [--seed 0] [--fashion-mnist DIR]
    allpull pack DIR/train DIR/packs/train --classes 19
    allpull pack DIR/test DIR/packs/test --classes 19

Clothing (Fashion-MNIST) and digits lie on a mottled ground. Each picture says where a kind of land is, and how much of
it: a pixel of band b is Σ (share of each thing in it) × (the thing's reflectance in b), the linear mixing model
(Keshava & Mustard 2002, IEEE Signal Processing Magazine 19), with haze, light and the sensor's noise. A label is told
by shape and spectrum together: the labels of a family have one spectrum, which varies from thing to thing, and all
shapes but one stand for labels of two families. Training and test patches are made of different pictures, those of
the sets' own parts.

A patch follows from (seed, part, its number) alone, so a smaller set is the beginning of a larger one. The folder is
what `allpull pack` reads as ``bigearthnet``; besides the labels each patch's JSON lists the pictures in it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from allpull.data.datasets import digits
from allpull.data.datasets.dataset import Part
from allpull.data.datasets.fashion_mnist import read_fashion_mnist
from allpull.data.sources.bigearthnet import BANDS, LABELS, SIDE

Floats = npt.NDArray[np.float32]
Half = Literal["train", "test"]
HALVES: tuple[Half, ...] = ("train", "test")

METRES = {"B02": 10, "B03": 10, "B04": 10, "B08": 10, "B01": 60, "B09": 60}  # a pixel; the other bands have 20
SIGNAL_TO_NOISE = np.array([129, 154, 168, 142, 117, 89, 105, 174, 72, 114, 100, 100], np.float32)
"""Of each band, as specified (ESA, Sentinel-2 User Handbook, 2015)."""
NOISE_AT = 0.15  # reflectance that the ratios are taken at, about that of their reference radiances
FULL = 10_000  # digital numbers of reflectance 1, as in Sentinel-2's products
MATERIALS: dict[str, tuple[float, ...]] = {
    "green": (0.03, 0.04, 0.08, 0.04, 0.10, 0.28, 0.36, 0.38, 0.40, 0.40, 0.20, 0.09),
    "dry": (0.08, 0.10, 0.14, 0.18, 0.22, 0.26, 0.29, 0.31, 0.33, 0.34, 0.36, 0.26),
    "soil": (0.10, 0.12, 0.17, 0.23, 0.26, 0.28, 0.30, 0.32, 0.34, 0.35, 0.41, 0.37),
    "stone": (0.16, 0.18, 0.20, 0.22, 0.23, 0.24, 0.25, 0.26, 0.27, 0.27, 0.29, 0.27),
    "sand": (0.20, 0.24, 0.30, 0.36, 0.39, 0.41, 0.43, 0.44, 0.46, 0.47, 0.54, 0.50),
    "water": (0.07, 0.06, 0.05, 0.03, 0.025, 0.02, 0.02, 0.015, 0.015, 0.012, 0.008, 0.006),
}
"""Reflectance in the twelve bands: rounded by hand after the usual curves of such materials, not measured ones."""
FAMILIES: dict[str, tuple[float, ...]] = {
    "built": (0.05, 0.05, 0.10, 0.80, 0.00, 0.00),
    "field": (0.55, 0.15, 0.30, 0.00, 0.00, 0.00),
    "forest": (0.85, 0.00, 0.05, 0.00, 0.00, 0.10),
    "open": (0.05, 0.35, 0.00, 0.10, 0.50, 0.00),
    "wet": (0.15, 0.05, 0.00, 0.05, 0.00, 0.75),
}
"""Share of each of ``MATERIALS`` in the things of a family."""
GROUND = ((0.05, 0.15, 0.80, 0.00, 0.00, 0.00), (0.25, 0.65, 0.10, 0.00, 0.00, 0.00))  # what things lie on: bare, grown


@dataclass(frozen=True, slots=True)
class Land:
    """A kind of land: its label, one of BigEarthNet's 43; its family; the pictures that stand for it; how frequent."""

    label: str
    family: str
    pictures: str
    kind: int
    weight: int = 2


CLOTHING, DIGITS = "fashion-mnist", "digits"
TROUSERS, DRESS, SANDAL, SNEAKER, BAG, BOOT = 1, 3, 5, 7, 8, 9  # classes of Fashion-MNIST
LANDS = (
    Land("Discontinuous urban fabric", "built", CLOTHING, BAG, 3),
    Land("Industrial or commercial units", "built", CLOTHING, TROUSERS),
    Land("Non-irrigated arable land", "field", CLOTHING, TROUSERS, 4),
    Land("Vineyards", "field", DIGITS, 1, 1),
    Land("Pastures", "field", CLOTHING, SNEAKER, 3),
    Land("Complex cultivation patterns", "field", CLOTHING, BAG, 3),
    Land(
        "Land principally occupied by agriculture, with significant areas of natural vegetation",
        *("field", DIGITS, 4, 3),
    ),
    Land("Agro-forestry areas", "field", DIGITS, 0, 1),
    Land("Broad-leaved forest", "forest", CLOTHING, DRESS, 3),
    Land("Coniferous forest", "forest", CLOTHING, BOOT, 4),
    Land("Mixed forest", "forest", DIGITS, 0, 4),
    Land("Natural grassland", "open", CLOTHING, SANDAL, 1),
    Land("Moors and heathland", "open", CLOTHING, DRESS, 1),
    Land("Transitional woodland/shrub", "forest", DIGITS, 7, 3),
    Land("Beaches, dunes, sands", "open", DIGITS, 7, 1),
    Land("Inland marshes", "wet", CLOTHING, SANDAL, 1),
    Land("Salt marshes", "wet", DIGITS, 4, 1),
    Land("Water bodies", "wet", CLOTHING, BOOT),
    Land("Sea and ocean", "wet", CLOTHING, SNEAKER),
)
"""One label of each of the 19 groups: packed with 43 classes or with 19, the set has 19 that occur."""

HOW_MANY = (0.20, 0.30, 0.25, 0.15, 0.10)  # share of the patches with 1, 2, … 5 things; BigEarthNet's mean is near 3
CELLS = 3  # the ground has 3 × 3 places for things
JITTER = 6  # pixels that a thing may lie beside the middle of its place
SIZES = (32, 48)  # pixels of a thing
SPREAD = 30.0  # of a thing's materials around its family's: concentration of a Dirichlet distribution


class Pictures:
    """The source pictures of both halves, by set and class."""

    def __init__(self, fashion_mnist: str = "") -> None:
        """Read them.

        Raises:
            BadInput: Fashion-MNIST is not there, or damaged.
        """
        read = {CLOTHING: read_fashion_mnist(fashion_mnist), DIGITS: digits.read("")}
        self._parts: dict[tuple[str, Half], Part] = {}
        self._of_kind: dict[tuple[str, Half, int], npt.NDArray[np.int64]] = {}
        for name, dataset in read.items():
            for half, part in zip(HALVES, (dataset.train, dataset.test), strict=True):
                self._parts[name, half] = part
                for kind in range(dataset.classes):
                    self._of_kind[name, half, kind] = np.flatnonzero(part.labels == kind)

    def draw(self, chance: np.random.Generator, name: str, half: Half, kind: int | None = None) -> tuple[Floats, int]:
        """A picture of ``half`` [h, w] from 0 to 1, of class ``kind`` or any, and its number in its set and half."""
        part = self._parts[name, half]
        number = int(chance.integers(len(part)) if kind is None else chance.choice(self._of_kind[name, half, kind]))
        picture = part.images[number, ..., 0].astype(np.float32)
        return picture / max(1.0, float(picture.max())), number


def patch(pictures: Pictures, half: Half, number: int, seed: int) -> tuple[dict[str, npt.NDArray[np.uint16]], Any]:
    """Patch ``number`` of ``half``: its bands at their own sizes, and what its JSON file says."""
    chance = np.random.default_rng([seed, HALVES.index(half), number])
    scene, used = _ground(pictures, chance, half)
    weights = np.array([land.weight for land in LANDS], float)
    count = 1 + int(chance.choice(len(HOW_MANY), p=HOW_MANY))
    lands = [LANDS[i] for i in chance.choice(len(LANDS), count, replace=False, p=weights / weights.sum())]
    places = chance.choice(CELLS * CELLS, count, replace=False)
    for land, place in zip(lands, places.tolist(), strict=True):
        picture, which = pictures.draw(chance, land.pictures, half, land.kind)
        used.append([land.pictures, half, which])
        share = _laid(picture, chance, place)[..., None]
        scene = (1 - share) * scene + share * _spectrum(chance, land.family)
    return _seen(scene, chance), {"labels": sorted(land.label for land in lands), "pictures": used}


def _ground(pictures: Pictures, chance: np.random.Generator, half: Half) -> tuple[Floats, list[list[Any]]]:
    """Soil and plants in shares that three enlarged, blurred pictures say: reflectance [120, 120, 12]."""
    mottle, used = np.zeros((SIDE, SIDE), np.float32), []
    for _ in range(3):
        picture, which = pictures.draw(chance, CLOTHING, half)
        used.append([CLOTHING, half, which])
        blurred = _resized(_resized(picture, 14), 2 * SIDE)  # larger than the patch, which shows a part of it
        top, left = chance.integers(SIDE, size=2)
        mottle += np.rot90(blurred[top : top + SIDE, left : left + SIDE], int(chance.integers(4))) / 3
    share = np.clip(chance.uniform(0.1, 0.5) + 0.5 * mottle, 0, 1)[..., None]
    bare, grown = (_materials(chance, shares) for shares in GROUND)
    return share * bare + (1 - share) * grown, used


def _laid(picture: Floats, chance: np.random.Generator, place: int) -> Floats:
    """How much of each pixel of the patch a thing covers, [120, 120]: its picture, enlarged, at its place."""
    size = int(chance.integers(SIZES[0], SIZES[1] + 1))
    enlarged = np.clip(_resized(picture, size), 0, 1)
    step = SIDE // CELLS
    middle = np.array(divmod(place, CELLS)) * step + step // 2 + chance.integers(-JITTER, JITTER + 1, size=2)
    wide = np.zeros((SIDE + 2 * size, SIDE + 2 * size), np.float32)  # a thing at the edge is cut off
    top, left = (middle - size // 2 + size).tolist()
    wide[top : top + size, left : left + size] = enlarged
    return wide[size:-size, size:-size]


def _spectrum(chance: np.random.Generator, family: str) -> Floats:
    return _materials(chance, FAMILIES[family]) * np.float32(chance.uniform(0.85, 1.15))


def _materials(chance: np.random.Generator, shares: tuple[float, ...]) -> Floats:
    """Reflectance [12] of a mixture around ``shares``, which varies from thing to thing."""
    drawn = chance.dirichlet(np.array(shares) * SPREAD + 0.02)
    mixture: Floats = (drawn @ np.array(list(MATERIALS.values()))).astype(np.float32)
    return mixture


def _seen(scene: Floats, chance: np.random.Generator) -> dict[str, npt.NDArray[np.uint16]]:
    """What the sensor makes of reflectances [120, 120, 12]: each band averaged over its pixels, hazy, lit and noisy."""
    haze = np.float32(chance.uniform(0, 0.03)) * np.array([1, 0.8, 0.5, 0.3, *[0.1] * 8], np.float32)  # blue scatters
    light = np.float32(chance.uniform(0.85, 1.15))
    bands = {}
    for index, band in enumerate(BANDS):
        side = 10 * SIDE // METRES.get(band, 20)
        block = SIDE // side
        seen = scene[..., index].reshape(side, block, side, block).mean((1, 3)) * light + haze[index]
        noise = chance.standard_normal((side, side), np.float32) * (NOISE_AT / SIGNAL_TO_NOISE[index])
        bands[band] = np.rint((seen + noise).clip(0, 6) * FULL).astype(np.uint16)
    return bands


def _resized(picture: Floats, side: int) -> Floats:
    bilinear = Image.Resampling.BILINEAR
    resized: Floats = np.asarray(Image.fromarray(picture).resize((side, side), bilinear))
    return resized


def write_half(root: Path, half: Half, patches: int, seed: int, pictures: Pictures) -> Path:
    """Write the first ``patches`` patches of ``half`` below ``root``; the folder that was written, as BigEarthNet's.

    Raises:
        FileExistsError: some of them are there already.
    """
    for number in range(patches):
        name = f"S2A_{half}_{number:06d}"
        folder = root / half / name
        folder.mkdir(parents=True)
        bands, said = patch(pictures, half, number, seed)
        for band, pixels in bands.items():
            tags = TiffImagePlugin.ImageFileDirectory_v2()
            tags.tagtype[33550] = 12  # doubles
            tags[33550] = (float(METRES.get(band, 20)), float(METRES.get(band, 20)), 0.0)  # GeoTIFF: metres a pixel
            Image.fromarray(pixels).save(folder / f"{name}_{band}.tif", tiffinfo=tags)
        (folder / f"{name}{LABELS}").write_text(json.dumps(said), encoding="utf-8")
    return root / half


def main() -> None:
    """Write both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train", type=int, default=4000, help="patches to train on")
    parser.add_argument("--test", type=int, default=1000, help="patches to test on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fashion-mnist", default="", help="folder of its IDX files; not given: Debian's")
    options = parser.parse_args()
    pictures = Pictures(options.fashion_mnist)
    for half, patches in zip(HALVES, (options.train, options.test), strict=True):
        written = write_half(options.directory, half, patches, options.seed, pictures)
        print(f"{written}: {patches:,} patches", flush=True)


if __name__ == "__main__":
    main()
