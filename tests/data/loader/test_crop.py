"""Crops lie in their pictures, follow the stated law, and belong to (seed, epoch, sample)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from allpull.data.loader.crop import DRAWS, Transform, middle, random_boxes, views
from allpull.data.loader.order import uniforms
from allpull.data.loader.resize import resize_antialiased, resize_middle, resizing, turn


@given(
    sides=st.lists(st.tuples(st.integers(1, 65_535), st.integers(1, 65_535)), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_boxes_lie_in_their_pictures(sides, seed):
    sizes = np.array(sides, np.int64)
    boxes = random_boxes(Transform(size=8), sizes, uniforms(seed, 0, np.arange(len(sides)), DRAWS))
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


def test_area_and_aspect_are_those_of_the_law():
    """On a large square no attempt with a lawful area up to 3/4 can fail, so area is uniform, aspect log-uniform."""
    count = 20_000
    transform = Transform(size=8, area=(0.08, 0.7))
    boxes = random_boxes(transform, np.full((count, 2), 10_000), uniforms(1, 2, np.arange(count), DRAWS))
    area = np.sort(boxes[:, 2] * boxes[:, 3] / 1e8)
    aspect = np.sort(np.log(boxes[:, 3] / boxes[:, 2]))
    even = (np.arange(count) + 0.5) / count
    for values, low, high in ((area, 0.08, 0.7), (aspect, np.log(3 / 4), np.log(4 / 3))):
        assert np.abs((values - low) / (high - low) - even).max() < 2.2 / np.sqrt(count)  # Kolmogorov, 1 in 10,000


def test_where_no_attempt_fits_the_middle_is_taken():
    draws = uniforms(0, 0, np.arange(2), DRAWS)
    boxes = random_boxes(Transform(size=8, area=(0.5, 1.0)), np.array([[3, 20_000], [20_000, 3]]), draws)
    assert boxes.tolist() == [[0, 9998, 3, 4], [9998, 0, 4, 3]]


def test_options_move_no_other_numbers():
    sizes, draws = np.full((50, 2), 300), uniforms(3, 4, np.arange(50), DRAWS)
    plain = views(Transform(size=8), sizes, draws)
    turned = views(Transform(size=8, mirror=True, turn=True), sizes, draws)
    assert [one.box for one in plain] == [one.box for one in turned]
    assert {(one.mirrored, one.turns) for one in turned} == {
        (flip, turn) for flip in (False, True) for turn in range(4)
    }


@pytest.mark.parametrize("bad", [{"size": 0}, {"size": 8, "area": (0.5, 0.1)}, {"size": 300, "crop": "centre"}])
def test_impossible_looks_are_refused(bad):
    with pytest.raises(ValueError, match="impossible transform"):
        Transform(**bad)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (100, 80), (256, 256), (31, 900)])
def test_evaluation_is_resizing_all_then_cutting_the_middle(height, width):
    transform = Transform(size=224, crop="centre", short_side=256)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    (tall, wide), (top, left) = middle(transform, height, width)
    whole = np.asarray(Image.fromarray(pixels).resize((wide, tall), Image.Resampling.BILINEAR)).astype(int)
    slot = np.zeros((224, 224, 3), np.uint8)
    resize_middle(pixels, slot, transform)
    assert np.abs(whole[top : top + 224, left : left + 224] - slot).max() <= 1  # the one level of rounding


@pytest.mark.parametrize(("dtype", "levels"), [(np.uint16, 65_535), (np.float32, 1)])
def test_bands_of_other_types_are_resized_each_alone(dtype, levels):
    bands = (np.random.default_rng(1).random((40, 30, 12)) * levels).astype(dtype)
    slot = np.zeros((20, 20, 12), dtype)
    resize_antialiased(bands, slot)
    alone = np.zeros((20, 20, 1), dtype)
    resize_antialiased(bands[..., 7:8], alone)
    assert np.array_equal(slot[..., 7:8], alone)
    assert abs(slot.mean() / bands.mean() - 1) < 0.02  # a filter whose weights are one keeps the mean


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 3), (np.uint8, 1), (np.uint16, 12), (np.float32, 5)])
def test_opencv_resizes_what_pillow_does(dtype, channels):
    """A plane stays a plane under any linear filter, away from the edges."""
    pytest.importorskip("cv2")
    opencv = resizing("opencv")
    ramp = np.add.outer(np.arange(64), np.arange(48))[..., None] * np.ones(channels)
    slot, other = np.zeros((2, 40, 40, channels), dtype)
    opencv.resize(ramp.astype(dtype), slot)
    resize_antialiased(ramp.astype(dtype), other)
    assert np.abs(slot[4:-4, 4:-4].astype(float) - other[4:-4, 4:-4]).max() <= 1
    mirrored = slot[:, ::-1].copy()
    opencv.mirror(slot)
    assert np.array_equal(slot, mirrored)


@pytest.mark.parametrize("channels", [128, 129, 300])
def test_opencv_resizes_and_mirrors_any_number_of_channels_as_each_alone(channels):
    """Its arrays end at 128 channels; EnMAP has 224 bands, AVIRIS too."""
    pytest.importorskip("cv2")
    opencv = resizing("opencv")
    cube = np.random.default_rng(0).integers(0, 10_000, (31, 23, channels), np.uint16)
    slot, alone = np.zeros((16, 16, channels), np.uint16), np.zeros((16, 16, 1), np.uint16)
    opencv.resize(cube, slot)
    for channel in (0, 127, channels - 1):
        opencv.resize(np.ascontiguousarray(cube[..., channel : channel + 1]), alone)
        assert np.array_equal(slot[..., channel], alone[..., 0])
    mirrored = slot[:, ::-1].copy()
    opencv.mirror(slot)
    assert np.array_equal(slot, mirrored)


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 3), (np.uint16, 12), (np.float32, 1)])
def test_slots_are_turned_where_they_lie(dtype, channels):
    slot = np.random.default_rng(0).integers(0, 250, (9, 9, channels)).astype(dtype)
    for turns in range(4):
        wanted = np.rot90(slot, turns).copy()
        turn(slot, turns)
        assert np.array_equal(slot, wanted)
    wanted = slot[:, ::-1].copy()
    turn(slot)
    assert np.array_equal(slot, wanted)
