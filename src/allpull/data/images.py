"""Decode any image to 8-bit RGB with simplejpeg or else Pillow, checking sizes before allocating memory.

Policy for unusual files: Pillow converts CMYK and YCCK to RGB, palettes are resolved and alpha is dropped, 16 bits
become 8 by division by 257, animations give their first frame, EXIF orientation is ignored (as in torchvision).
Truncated, empty and unknown files, and images above the pixel limit, are rejected with a reason.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allpull.data.jpeg.header import NotJpeg, parse_jpeg
from allpull.data.pack_format import MAX_SIDE, Buffer
from allpull.errors import MissingPart

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

MAX_SOURCE_BYTES = 1 << 29  # of one file: a larger one is not an image
MAX_PIXELS = 1 << 26  # 67 megapixels, 201 MB as RGB: more than any photograph of the usual sets
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")  # Pillow knows rarer and less tested ones
SIXTEEN_BITS = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})
INSTALL = "pip install 'allpull[data]'"


class Refused(ValueError):
    """A sample that cannot be used; the message is the reason, identical for identical faults."""


def decode(data: Buffer, *, max_pixels: int = MAX_PIXELS) -> tuple[Pixels, str]:
    """Pixels [height, width, 3], and what is unusual about the image ("" if the fast decoder accepts it).

    Raises:
        Refused: it is not an image, is damaged, or has more than ``max_pixels``.
        MissingPart: Pillow or simplejpeg is not installed.
    """
    if len(data) == 0:
        raise Refused("empty file")
    simplejpeg = import_simplejpeg()
    try:
        header = parse_jpeg(data)
    except NotJpeg:
        return _by_pillow(data, max_pixels)
    check_size(header.height, header.width, max_pixels)
    if header.precision == 8 and len(header.components) in (1, 3):
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
        except ValueError:  # including libjpeg's warnings
            pixels, unusual = _by_pillow(data, max_pixels)
            return pixels, unusual or "JPEG that strict decoders reject"
        return pixels, ""
    return _by_pillow(data, max_pixels)


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuse sizes that are too large to decode, before they are.

    Raises:
        Refused: more than ``max_pixels``, or a side longer than JPEG can say.
    """
    if height * width > max_pixels:
        raise Refused(f"more than {max_pixels:,} pixels")
    if max(height, width) > MAX_SIDE:
        raise Refused(f"a side longer than {MAX_SIDE:,} pixels")


def _by_pillow(data: Buffer, max_pixels: int) -> tuple[Pixels, str]:
    image_module = import_pillow()
    try:
        formats = [one for one in FORMATS if one in image_module.OPEN]  # WebP is optional in Pillow
        with image_module.open(io.BytesIO(data), formats=formats) as image:
            check_size(image.height, image.width, max_pixels)
            unusual = _irregularity(image)
            image.load()
            return _as_rgb(image), unusual
    except Refused:
        raise
    except image_module.DecompressionBombError as error:
        raise Refused(f"more than {max_pixels:,} pixels") from error
    except MemoryError as error:
        raise Refused("not enough memory to decode it") from error
    except Exception as error:  # Pillow's plug-ins raise whatever damaged files provoke
        name = type(error).__name__
        unknown = name == "UnidentifiedImageError"
        raise Refused("not an image" if unknown else f"truncated or damaged ({name})") from error


def _irregularity(image: Image) -> str:
    if image.format not in ("JPEG", "MPO"):
        return f"{image.format} of mode {image.mode}"
    return f"JPEG of mode {image.mode}" if image.mode not in ("RGB", "L") else ""


def _as_rgb(image: Image) -> Pixels:
    if image.mode in SIXTEEN_BITS:
        grey = (np.asarray(image).astype(np.int64).clip(0, 65535) + 128) // 257
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise Refused("a floating-point image: convert it to an array")
    return np.array(image.convert("RGB"))


def resized(pixels: Pixels, short_side: int) -> Pixels:
    """``pixels`` downscaled to ``short_side`` by an antialiased bicubic filter; never upscaled."""
    height, width = pixels.shape[:2]
    if min(height, width) <= short_side:
        return pixels
    scale = short_side / min(height, width)
    size = max(short_side, round(width * scale)), max(short_side, round(height * scale))
    image_module = import_pillow()
    return np.array(image_module.fromarray(pixels).resize(size, image_module.Resampling.BICUBIC))


def encode_jpeg(pixels: Pixels, quality: int, interval: int) -> bytes:
    """A baseline 4:2:0 JPEG of ``pixels`` [height, width, 3] with a restart marker after every ``interval`` MCUs."""
    file = io.BytesIO()
    options = {"subsampling": "4:2:0", "optimize": True, "restart_marker_blocks": interval}
    import_pillow().fromarray(pixels).save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def import_pillow() -> Any:
    """``PIL.Image``, with its plug-ins registered and its warnings off."""
    try:
        from PIL import Image  # noqa: PLC0415  needed only to decode images
    except ImportError as error:
        raise MissingPart("Pillow is not installed", hint=INSTALL) from error
    Image.init()  # otherwise it finds no plug-in when given ``formats``
    warnings.filterwarnings("ignore", module="PIL")  # about large images and unusual tags; bad samples are counted here
    return Image


def import_simplejpeg() -> Any:
    """``simplejpeg``."""
    try:
        import simplejpeg  # noqa: PLC0415
    except ImportError as error:
        raise MissingPart("simplejpeg is not installed", hint=INSTALL) from error
    return simplejpeg
