"""The 12-band set of real pictures is what it says: packed as BigEarthNet, seeded, its halves of different pictures."""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from allpull.data.pack.read import Pack
from allpull.data.sources.bigearthnet import BANDS
from allpull.data.sources.corine_labels import CLASSES_43, GROUPS_19, TO_19


@pytest.fixture(scope="module")
def maker() -> Any:
    """The script."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        return import_module("twelve_bands_data")
    finally:
        sys.path[:] = before


@pytest.fixture(scope="module")
def pictures(maker: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The digits, and in place of clothing plain squares to train on and nothing at all to test on."""
    folder = tmp_path_factory.mktemp("clothing")
    for prefix, grey in (("train", 200), ("t10k", 0)):
        images = np.zeros((40, 28, 28), np.uint8)
        images[:, 4:24, 4:24] = grey
        head = b"\0\0\x08\x03" + struct.pack(">3I", *images.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = (np.arange(40) % 10).astype(np.uint8)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 40) + labels.tobytes())
    return maker.Pictures(str(folder))


def test_a_label_needs_both_its_shape_and_its_spectrum(maker: Any) -> None:
    pairs = {(land.pictures, land.kind, land.family) for land in maker.LANDS}
    assert len(pairs) == len(maker.LANDS) == 19
    families = Counter((land.pictures, land.kind) for land in maker.LANDS)
    assert sorted(families.values()) == [1, *[2] * 9]
    assert min(Counter(land.family for land in maker.LANDS).values()) >= 2
    groups = [TO_19[CLASSES_43.index(land.label)] for land in maker.LANDS]
    assert sorted(groups) == list(range(19)), "each of the 19 groups has one label"


def test_materials_fill_their_things(maker: Any) -> None:
    for shares in (*maker.FAMILIES.values(), *maker.GROUND):
        assert len(shares) == len(maker.MATERIALS)
        assert sum(shares) == pytest.approx(1)
    assert {len(curve) for curve in maker.MATERIALS.values()} == {len(BANDS), len(maker.SIGNAL_TO_NOISE)}


def test_test_patches_show_no_training_picture(maker: Any, pictures: Any) -> None:
    chance = np.random.default_rng(0)
    for kind in (None, *range(10)):
        assert pictures.draw(chance, maker.CLOTHING, "train", kind)[0].max() == 1
        assert pictures.draw(chance, maker.CLOTHING, "test", kind)[0].max() == 0
    seen = {
        half: {pictures.draw(chance, maker.DIGITS, half, 4)[0].tobytes() for _ in range(300)} for half in maker.HALVES
    }
    assert len(seen["train"]) > 100
    assert not seen["train"] & seen["test"]
    for half in maker.HALVES:
        used = [used for number in range(10) for used in maker.patch(pictures, half, number, 0)[1]["pictures"]]
        assert {where for _, where, _ in used} == {half}


def test_a_patch_follows_from_seed_half_and_number_alone(maker: Any, pictures: Any) -> None:
    def content(half: str, number: int, seed: int) -> tuple[bytes, ...]:
        bands, said = maker.patch(pictures, half, number, seed)
        return (json.dumps(said).encode(), *(bands[band].tobytes() for band in BANDS))

    made = [content(*one) for one in (("train", 3, 0), ("train", 4, 0), ("test", 3, 0), ("train", 3, 1))]
    assert content("train", 3, 0) == made[0]
    assert len({one[1] for one in made}) == 4


def test_the_sensor_adds_noise_as_specified(maker: Any) -> None:
    """Of an even scene the mean is that of all bands but for haze, which the infrared has least of; noise by band."""
    bands = maker._seen(np.full((120, 120, 12), 0.4, np.float32), np.random.default_rng(5))
    assert {band: len(pixels) for band, pixels in bands.items()} == {
        **dict.fromkeys(BANDS, 60),
        **dict.fromkeys(("B02", "B03", "B04", "B08"), 120),
        **dict.fromkeys(("B01", "B09"), 20),
    }
    for band, ratio in (("B08", 174), ("B8A", 72), ("B02", 154), ("B12", 100)):
        assert bands[band].std() == pytest.approx(0.15 / ratio * 10_000, rel=0.05)
    means = {band: bands[band].mean() for band in BANDS}
    assert means["B01"] > means["B02"] > means["B03"] > means["B08"]
    assert means["B08"] == pytest.approx(means["B12"], abs=3)
    assert 3400 <= means["B12"] <= 4630


@pytest.mark.parametrize("classes", [19, 43])
def test_what_is_written_is_packed_as_bigearthnet(
    maker: Any, pictures: Any, tmp_path: Path, make_pack: Any, classes: int
) -> None:
    folder = maker.write_half(tmp_path, "train", 8, 0, pictures)
    with Pack.open(make_pack(folder, classes=classes, seed=None).directory) as pack:
        assert len(pack) == 8
        assert pack.header.multi_label
        for index, name in enumerate(pack.names()):
            bands, said = maker.patch(pictures, "train", index, 0)
            pixels = pack.pixels(index)
            for band in ("B02", "B08"):
                assert np.array_equal(pixels[..., BANDS.index(band)], bands[band])
            names = {CLASSES_43[number] for number in range(43)} if classes == 43 else {one for one, _ in GROUPS_19}
            assert set(pack.header.classes) == names
            own = {label if classes == 43 else GROUPS_19[TO_19[CLASSES_43.index(label)]][0] for label in said["labels"]}
            assert {pack.header.classes[number] for number in np.flatnonzero(pack.labels[index])} == own
            with Image.open(folder / name / f"{name}_B11.tif") as image:
                assert image.size == (60, 60)
                assert image.tag_v2[33550] == (20, 20, 0)  # type: ignore[attr-defined]
