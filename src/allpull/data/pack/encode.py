"""Encode a sample of a source as a record, depending on the kind of pack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.data.images import MAX_PIXELS, MAX_SOURCE_BYTES, Pixels, Refused, check_size, decode, encode_jpeg, resized
from allpull.data.jpeg.header import NotJpeg, parse_jpeg
from allpull.data.jpeg.restart import best_interval, find_segments, with_restarts
from allpull.data.pack_format import DTYPES, JPEG, JPEG_SEGMENTS, MAX_CHANNELS, MAX_RECORD_BYTES, PICTURE, RAW, Kind
from allpull.errors import BadInput

UNIT_PIXELS = 16  # side of an MCU of a 4:2:0 JPEG


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How records are encoded.

    ``side`` is the length of the shorter side in pixels (None: unchanged), ``quality`` that of re-encoded JPEGs,
    ``tool`` the program that inserts restart markers, ``dtype`` that of raw pixels.
    """

    kind: Kind
    side: int | None = None
    quality: int = 90
    tool: str = "own"
    dtype: str = "|u1"
    max_pixels: int = MAX_PIXELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The bytes of one record, with the fields of its row; ``remark`` says what is unusual, to be counted."""

    data: bytes
    height: int
    width: int
    channels: int
    codec: int
    tail: int = 0
    remark: str = ""


def encode(sample: bytes | npt.NDArray[np.generic], recipe: Recipe) -> Encoded:
    """The record of one sample: a file's bytes, or pixels [height, width, channels].

    Raises:
        Refused: the sample cannot be packed; the message is the reason.
        BadInput: an array in a pack of images.
    """
    if isinstance(sample, np.ndarray):
        return _raw(_checked(sample, recipe))
    if len(sample) > MAX_SOURCE_BYTES:
        raise Refused("a file too large for an image")
    pixels, unusual = decode(sample, max_pixels=recipe.max_pixels)
    if recipe.kind == "jpeg":
        return _unchanged(sample, pixels, unusual)
    if recipe.kind == "jpeg-restart":
        return _with_restarts(sample, pixels, unusual, recipe)
    small = resized(pixels, recipe.side) if recipe.side is not None else pixels
    if recipe.kind == "raw":
        return _raw(small, unusual)
    if small is pixels and not unusual:
        return _unchanged(sample, pixels, "")  # already small: keeping it loses nothing
    return _reencoded(small, unusual, recipe.quality)


def _checked(sample: npt.NDArray[np.generic], recipe: Recipe) -> npt.NDArray[np.generic]:
    if recipe.kind != "raw":
        raise BadInput(f"this source holds arrays, which a pack of kind '{recipe.kind}' cannot hold", hint="--kind raw")
    if sample.ndim != 3 or 0 in sample.shape or sample.shape[2] > MAX_CHANNELS:
        raise Refused("an array that is not [height, width, channels]")
    check_size(sample.shape[0], sample.shape[1], recipe.max_pixels)
    if sample.dtype.newbyteorder("=").str.replace(">", "<") not in DTYPES:
        raise Refused(f"pixels of type {sample.dtype}")
    return sample.astype(recipe.dtype, copy=False)


def _raw(pixels: npt.NDArray[np.generic], unusual: str = "") -> Encoded:
    height, width, channels = pixels.shape
    if pixels.nbytes > MAX_RECORD_BYTES:
        raise Refused("an array larger than a record can be")
    data = pixels.tobytes()
    return Encoded(data=data, height=height, width=width, channels=channels, codec=RAW, remark=unusual)


def _unchanged(sample: bytes, pixels: Pixels, unusual: str) -> Encoded:
    height, width = pixels.shape[:2]
    codec, remark = (PICTURE, f"{unusual}, kept unchanged") if unusual else (JPEG, "")
    return Encoded(data=sample, height=height, width=width, channels=3, codec=codec, remark=remark)


def _reencoded(pixels: Pixels, unusual: str, quality: int) -> Encoded:
    """A JPEG with restart markers, which add 1 % of the bytes and halve the time of a crop."""
    height, width = pixels.shape[:2]
    data = encode_jpeg(pixels, quality, best_interval(-(-width // UNIT_PIXELS), UNIT_PIXELS))
    try:
        table = find_segments(data).to_bytes()
    except NotJpeg:  # a segment too long for the table: noise in images many thousand pixels wide
        return Encoded(data=data, height=height, width=width, channels=3, codec=JPEG, remark=unusual)
    whole = data + table
    return Encoded(
        data=whole, height=height, width=width, channels=3, codec=JPEG_SEGMENTS, tail=len(table), remark=unusual
    )


def _with_restarts(sample: bytes, pixels: Pixels, unusual: str, recipe: Recipe) -> Encoded:
    if unusual:
        return _unchanged(sample, pixels, unusual)
    try:
        parse_jpeg(sample)
        jpeg, segments = with_restarts(sample, tool=recipe.tool)
        again, _ = decode(jpeg, max_pixels=recipe.max_pixels)
        if not np.array_equal(again, pixels):
            raise NotJpeg("its pixels would change")  # never observed; keep the original then
    except (NotJpeg, Refused) as error:
        kept = _unchanged(sample, pixels, "")
        return Encoded(
            data=kept.data,
            height=kept.height,
            width=kept.width,
            channels=3,
            codec=JPEG,
            remark=f"no restart markers: {error}",
        )
    table = segments.to_bytes()
    height, width = pixels.shape[:2]
    data = jpeg + table
    return Encoded(data=data, height=height, width=width, channels=3, codec=JPEG_SEGMENTS, tail=len(table))
