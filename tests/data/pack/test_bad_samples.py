"""Unusual files are packed by the stated policy or left out, counted and listed; nothing crashes."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from tests.data.conftest import as_jpeg

from allpull.data.images import Refused, decode, resized
from allpull.data.pack.read import Pack
from allpull.data.pack.verify import verify
from allpull.data.pack_format import JPEG, JPEG_SEGMENTS, PICTURE
from allpull.errors import BadInput


def saved(picture: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


def sixteen_bits() -> Image.Image:
    ramp = np.arange(0, 65536, 1024, dtype=np.uint16)[None].repeat(8, 0)
    return Image.fromarray(ramp)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that claims a size."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(100))),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.fixture(scope="module")
def odd(photos) -> dict[str, bytes]:
    """Name → file. Those of ``left-out`` are in no pack."""
    picture = photos[0].resize((120, 80))
    plain = as_jpeg(picture)
    lying = bytearray(plain)
    at = plain.index(b"\xff\xc0")
    lying[at + 5 : at + 9] = b"\xff\xff\xff\xff"  # 65,535 × 65,535
    taller = bytearray(plain)
    taller[at + 5 : at + 7] = (400).to_bytes(2, "big")  # five times the rows that there are
    return {
        "kept/plain.jpg": plain,
        "kept/one-pixel.jpg": as_jpeg(picture.resize((1, 1))),
        "kept/wide.jpg": as_jpeg(picture.resize((20_000, 3))),
        "kept/grey.jpg": as_jpeg(picture.convert("L")),
        "kept/cmyk.jpg": as_jpeg(picture.convert("CMYK")),
        "kept/png-called.jpg": saved(picture, "PNG"),
        "kept/palette.png": saved(picture.quantize(16), "PNG"),
        "kept/alpha.png": saved(picture.convert("RGBA"), "PNG"),
        "kept/sixteen-bits.png": saved(sixteen_bits(), "PNG"),
        "kept/after-the-end.jpg": plain + b"\0" * 50,
        "left-out/empty.jpg": b"",
        "left-out/cut.jpg": plain[: len(plain) // 2],
        "left-out/head-only.jpg": plain[:40],
        "left-out/lying.jpg": bytes(lying),
        "kept/taller.jpg": bytes(taller),
        "left-out/text.jpg": b"<html>not found</html>",
        "left-out/bomb.png": png_of_size(60_000, 60_000),
        "left-out/bomb-below-the-limit.png": png_of_size(8_000, 8_000),
    }


@pytest.fixture
def odd_folder(odd, tmp_path) -> Path:
    root = tmp_path / "odd"
    for name, data in odd.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-restart", "jpeg-side", "raw"])
def test_odd_files_are_packed_or_listed(odd, odd_folder, make_pack, kind):
    side = 64 if kind == "jpeg-side" else None
    done = make_pack(odd_folder, kind=kind, side=side)
    kept = {name for name in odd if name.startswith("kept")}
    lines = (done.directory / "skipped.txt").read_text().splitlines()
    reasons = dict(line.split("\t") for line in lines)
    assert set(reasons) == set(odd) - kept
    assert reasons["left-out/empty.jpg"] == "empty file"
    assert reasons["left-out/lying.jpg"] == "more than 67,108,864 pixels"
    assert reasons["left-out/bomb.png"] == "more than 67,108,864 pixels"
    assert reasons["left-out/text.jpg"] == "not an image"
    assert done.header.skipped == len(reasons)
    with Pack.open(done.directory) as pack:
        names = pack.names()
        assert set(names) == kept
        for index, name in enumerate(names):
            wanted = decode(odd[name])[0]
            if kind == "raw":
                assert np.array_equal(pack.pixels(index), wanted)
            elif kind == "jpeg-side":
                assert decode(pack.record(index))[0].shape == resized(wanted, 64).shape
                assert decode(pack.record(index))[1] == ""  # the fast decoder takes all of them
            else:
                assert np.array_equal(decode(pack.record(index))[0], wanted)
        codecs = dict(zip(names, pack.rows["codec"].tolist(), strict=True))
    if kind == "jpeg-restart":
        assert codecs["kept/plain.jpg"] == codecs["kept/wide.jpg"] == JPEG_SEGMENTS
        assert codecs["kept/cmyk.jpg"] == codecs["kept/png-called.jpg"] == codecs["kept/taller.jpg"] == PICTURE
        odd_ones = dict(line.split("\t") for line in (done.directory / "odd.txt").read_text().splitlines())
        assert odd_ones["kept/taller.jpg"] == "JPEG that strict decoders reject, kept unchanged"
        assert set(odd_ones) == {name for name in names if codecs[name] == PICTURE}
        assert done.header.remarks["JPEG of mode CMYK, kept unchanged"] == 1
    if kind == "jpeg":
        assert codecs["kept/plain.jpg"] == codecs["kept/grey.jpg"] == JPEG
    assert verify(done.directory).faults == 0


def test_workers_count_the_same_odd_files(odd_folder, make_pack):
    one, two = (make_pack(odd_folder, workers=workers, to=str(workers)) for workers in (1, 2))
    assert one.header == two.header


def test_sixteen_bits_become_eight_by_division(odd):
    grey = decode(odd["kept/sixteen-bits.png"])[0][0, :, 0]
    assert grey.tolist() == [round(value / 257) for value in range(0, 65536, 1024)]


def test_a_limit_of_pixels_is_kept_by_both_decoders(photos):
    picture = photos[0].resize((100, 100))
    for data in (as_jpeg(picture), saved(picture, "PNG")):
        assert decode(data, max_pixels=10_000)[0].shape == (100, 100, 3)
        with pytest.raises(Refused, match="more than 9,999 pixels"):
            decode(data, max_pixels=9_999)


def test_the_fast_decoder_and_pillow_agree(photos):
    data = as_jpeg(photos[0].resize((99, 77)), subsampling=2)
    by_pillow = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(simplejpeg.decode_jpeg(data).astype(int) - by_pillow).max() <= 1
    assert np.array_equal(decode(data)[0], simplejpeg.decode_jpeg(data))


def test_a_source_of_which_nothing_is_left_is_an_error(tmp_path, make_pack):
    (tmp_path / "source" / "class").mkdir(parents=True)
    (tmp_path / "source" / "class" / "a.jpg").write_bytes(b"")
    with pytest.raises(BadInput, match="none of 1 samples could be packed: empty file"):
        make_pack(tmp_path / "source")


def test_never_made_larger(photos):
    small = np.asarray(photos[0].resize((50, 40)))
    assert resized(small, 64) is small
    assert resized(np.asarray(photos[0].resize((300, 200))), 64).shape == (64, 96, 3)
