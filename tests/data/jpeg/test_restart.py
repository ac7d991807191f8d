"""Restart markers change no pixel, and a crop of the segments is the crop of the whole, to the bit."""

from __future__ import annotations

import io
import random
import shutil

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.conftest import as_jpeg

from allpull.data.jpeg.crop import LEFT_OVER, Box, crop, shortened
from allpull.data.jpeg.header import NotJpeg, parse_jpeg
from allpull.data.jpeg.restart import best_interval, find_segments, parse_segments, with_restarts
from allpull.data.pack_format import PackError

TOOLS = [
    "own",
    pytest.param("jpegtran", marks=pytest.mark.skipif(not shutil.which("jpegtran"), reason="jpegtran is not here")),
]
FORMS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "own tables": {"subsampling": 2, "optimize": True},
    "other restarts": {"subsampling": 2, "restart_marker_blocks": 7},
    "a restart a row": {"subsampling": 1, "restart_marker_rows": 1, "optimize": True},
}


def pixels(jpeg: bytes, **options: object) -> np.ndarray:
    return simplejpeg.decode_jpeg(jpeg, "RGB", strict=True, **options)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("form", FORMS)
def test_pixels_and_crops_are_those_of_the_original(photos, tool, form):
    chance = random.Random(form)
    for size in ((500, 333), (331, 200), (61, 47), (16, 16), (9, 200)):
        original = as_jpeg(photos[0].resize(size), **FORMS[form])
        whole = pixels(original)
        jpeg, segments = with_restarts(original, tool=tool)
        table = segments.to_bytes()
        record = jpeg + table
        assert np.array_equal(pixels(jpeg), whole)
        assert np.array_equal(pillow(record), pillow(original))  # the table behind the end disturbs nobody
        for _ in range(12):
            height, width = chance.randint(1, size[1]), chance.randint(1, size[0])
            box = Box(
                top=chance.randint(0, size[1] - height),
                left=chance.randint(0, size[0] - width),
                height=height,
                width=width,
            )
            cut = crop(record, len(table), box)
            inner = cut.box
            found = pixels(cut.jpeg)[inner.top : inner.top + height, inner.left : inner.left + width]
            assert np.array_equal(found, whole[box.top : box.top + height, box.left : box.left + width])


def pillow(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)))


def test_a_crop_holds_only_the_segments_that_cover_it(photos):
    jpeg, segments = with_restarts(as_jpeg(photos[0].resize((640, 480)), subsampling=2), tool="own")
    table = segments.to_bytes()
    cut = crop(jpeg + table, len(table), Box(top=200, left=100, height=10, width=20))
    header = parse_jpeg(cut.jpeg)
    assert header.height <= 32  # two rows of units at most: the box and two pixels around it
    assert header.width <= 128  # two segments of 64 pixels
    assert len(cut.jpeg) < len(jpeg) / 15
    assert find_segments(cut.jpeg).lengths.sum() < segments.lengths.sum() / 20


def test_grey_pictures_too(photos):
    original = as_jpeg(photos[0].convert("L").resize((200, 100)))
    whole = simplejpeg.decode_jpeg(original, "GRAY")
    jpeg, segments = with_restarts(original, tool="own")
    table = segments.to_bytes()
    cut = crop(jpeg + table, len(table), Box(top=17, left=33, height=50, width=90))
    found = simplejpeg.decode_jpeg(cut.jpeg, "GRAY")[cut.box.top : cut.box.top + 50, cut.box.left : cut.box.left + 90]
    assert np.array_equal(found, whole[17:67, 33:123])


@pytest.mark.skipif(not shutil.which("jpegtran"), reason="jpegtran is not here")
def test_progressive_ones_need_jpegtran(photos):
    original = as_jpeg(photos[0].resize((200, 150)), progressive=True)
    with pytest.raises(NotJpeg, match="install jpegtran"):
        with_restarts(original, tool="own")
    jpeg, _ = with_restarts(original, tool="jpegtran")
    assert np.array_equal(pixels(jpeg), pixels(original))


def test_dc_tables_that_lack_a_code_are_replaced():
    """A flat bright picture has one DC difference, so its own tables have no code for a second one."""
    flat = Image.new("RGB", (256, 64), (250, 128, 3))
    original = as_jpeg(flat, subsampling=2, optimize=True)
    jpeg, segments = with_restarts(original, tool="own")
    assert len(segments.lengths) == 16 // segments.interval * 4
    assert np.array_equal(pixels(jpeg), pixels(original))


@given(columns=st.integers(1, 4096), width=st.sampled_from([8, 16, 32]))
def test_every_row_begins_with_a_marker(columns, width):
    assert columns % best_interval(columns, width) == 0


@pytest.fixture(scope="module")
def record(photos) -> tuple[bytes, int]:
    jpeg, segments = with_restarts(as_jpeg(photos[1].resize((160, 120)), subsampling=2), tool="own")
    table = segments.to_bytes()
    return jpeg + table, len(table)


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_records_are_refused_or_decode_to_something_of_their_size(record, data):
    """Flipped bits in the table, the header or the scan: an error with a name, or some pixels; nothing else."""
    whole, tail = record
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        near_table = data.draw(st.booleans())
        at = data.draw(st.integers(len(whole) - tail if near_table else 0, len(whole) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        cut = crop(bytes(damaged), tail, Box(top=20, left=30, height=50, width=60))
    except (PackError, ValueError):
        return
    assert len(cut.jpeg) <= len(whole)


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_jpegs_are_refused_by_name_or_transcoded(record, data):
    whole, tail = record
    damaged = bytearray(whole[:-tail])
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.sampled_from([0, 1, 0x7F, 0xD9, 0xDA, 0xFF])
        )
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for jpeg in (bytes(damaged), cut):
        try:
            done, _ = with_restarts(jpeg, tool="own")
        except NotJpeg:
            continue
        assert len(done) < 4 * len(jpeg)


@given(text=st.binary(max_size=300))
def test_any_bytes_are_refused_by_name(text):
    with pytest.raises(NotJpeg):
        parse_jpeg(text)
    with pytest.raises(NotJpeg):
        parse_jpeg(b"\xff\xd8" + text)
    with pytest.raises(PackError):
        parse_segments(text, 1000)


@pytest.mark.parametrize("form", ["4:2:0", "4:2:2", "4:4:4", "own tables"])
def test_a_jpeg_with_a_smaller_height_has_the_pixels_of_the_whole(photos, form):
    original = as_jpeg(photos[0].resize((331, 200)), **FORMS[form])
    whole = pixels(original)
    for bottom in (1, 15, 17, 100, 160):
        jpeg, height = shortened(original, (200, 331), bottom)
        assert bottom < height < bottom + 20
        found = simplejpeg.decode_jpeg(jpeg, "RGB", strict=False)
        assert found.shape == (height, 331, 3)
        assert np.array_equal(found[:bottom], whole[:bottom])
        with pytest.raises(ValueError, match=LEFT_OVER):
            pixels(jpeg)
    assert shortened(original, (200, 331), 199) is None  # nothing to win
    assert shortened(original, (200, 330), 50) is None


@pytest.mark.parametrize("options", [{"progressive": True}, {"restart_marker_rows": 1}])
def test_what_must_be_decoded_to_its_end_is_not_shortened(photos, options):
    assert shortened(as_jpeg(photos[0].resize((331, 200)), **options), (200, 331), 20) is None
